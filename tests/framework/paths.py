# SPDX-License-Identifier: Apache-2.0
"""Where the built files are: GPUMUX_BUILD names the build folder; without it, build/dev."""

import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GPUMUX_BUILD", ROOT / "build" / "dev")).resolve()

DAEMON = BUILD / "bin" / "gpumuxd"
HOOK = BUILD / "bin" / "gpumux-cdi-hook"
KUBELET_PLUGIN = BUILD / "bin" / "gpumux-kubelet-plugin"
COMMAND = BUILD / "bin" / "gpumux"
LIBRARY = BUILD / "lib" / "libgpumux.so"
SIM_LIBRARIES = BUILD / "lib" / "sim"
MPS_CONTROL = SIM_LIBRARIES / "nvidia-cuda-mps-control"
PROGRAMS = BUILD / "bin" / "programs"
