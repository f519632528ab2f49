# SPDX-License-Identifier: Apache-2.0
"""The training of train.py, under another name."""

import runpy

runpy.run_path("train.py", run_name="__main__")
