#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds gpumux into dist/ and, with arguments, runs a program under it: ./build_and_run.sh python3 train.py
set -euo pipefail
from=$PWD
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.."
here=$PWD
make build
if [ $# -gt 0 ]; then
  cd "$from"
  exec "$here/dist/bin/gpumux" run -- "$@"
fi
echo "built: dist/bin/gpumux run -- PROGRAM runs a program now; dist/bin/gpumux submit -- PROGRAM, or dist/mgpu_srun,"
echo "hands it in as a job; make demo shows three sharing one GPU"
