#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds what tests/gpu/run.py takes to a machine with GPUs: dist/ and in it, under libexec/gpumux-tests, the test
# programs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
tools/build.sh dist
programs=(gpumux_gpu_worker gpumux_gpu_assumptions gpumux_gpu_launch gpumux_gpu_handover
  gpumux_gpu_host_memory gpumux_recorder daemon_bench)
cmake --build build/release --parallel "$(tools/jobs.sh)" --target "${programs[@]}"
cmake --install build/release --component gpu_tests --prefix "$PWD/dist" >/dev/null
du -sh dist
