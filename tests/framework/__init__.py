# SPDX-License-Identifier: Apache-2.0
"""The framework of the whole-process tests; tests/README.md says how to run them."""
