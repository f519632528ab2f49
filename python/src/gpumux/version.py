# SPDX-License-Identifier: Apache-2.0
"""The version of this package. tools/build_python.py writes that of the sources into the wheel and the archive."""

VERSION = "0.1.0+unknown"
