# SPDX-License-Identifier: Apache-2.0
"""What the whole-process tests are written with; tests/README.md says how to run them."""
