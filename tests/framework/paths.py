# SPDX-License-Identifier: Apache-2.0
"""Where the built files are: GPUMUX_BUILD names the build folder; without it, build/dev.

GPUMUX_TEST_EMULATOR is for a build for another architecture: the command before each program of tests/programs. Daemon
and command are then those of build/dev.
"""

import os
import pathlib
import shlex

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("GPUMUX_BUILD", ROOT / "build" / "dev")).resolve()

EMULATOR = shlex.split(os.environ.get("GPUMUX_TEST_EMULATOR", ""))
OWN_BUILD = ROOT / "build" / "dev" if EMULATOR else BUILD

DAEMON = OWN_BUILD / "bin" / "gpumuxd"
HOOK = OWN_BUILD / "bin" / "gpumux-cdi-hook"
KUBELET_PLUGIN = OWN_BUILD / "bin" / "gpumux-kubelet-plugin"
COMMAND = OWN_BUILD / "bin" / "gpumux"
LIBRARY = BUILD / "lib" / "libgpumux.so"
SIM_LIBRARIES = BUILD / "lib" / "sim"
MPS_CONTROL = SIM_LIBRARIES / "nvidia-cuda-mps-control"
PROGRAMS = BUILD / "bin" / "programs"
# A loader goes past files of another architecture.
SIM_LIBRARY_PATH = f"{SIM_LIBRARIES}:{OWN_BUILD}/lib/sim" if EMULATOR else str(SIM_LIBRARIES)
