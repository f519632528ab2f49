#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fails when a committed *.gen.* file is not what its generator makes today.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
status=0
for generator in tools/gen_*.py; do
  [ -e "$generator" ] || continue
  case $generator in *_test.py) continue ;; esac
  python3 "$generator" --verify || status=1
done
[ "$status" = 0 ] || echo "generated files differ: run the generator without --verify and commit both in one change" >&2
exit "$status"
