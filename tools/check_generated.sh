#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when a committed *.gen.* file is not what its generator makes today.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
for generator in tools/gen_*.py; do
  [ -e "$generator" ] || continue
  case $generator in *_test.py) continue ;; esac
  python3 "$generator" --verify && continue
  echo "generated files differ: run $generator, and commit what it writes in the same change" >&2
  status=1
done
exit "$status"
