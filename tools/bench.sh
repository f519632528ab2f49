#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every benchmark of the release build, one after the other: timings of programs that share cores say nothing.
# tools/bench.sh [--benchmark_filter=...] and other Google Benchmark arguments.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
found=0
for program in build/release/bin/*_bench; do
  [ -x "$program" ] || continue
  found=1
  echo "== $(basename "$program")"
  "$program" "$@"
done
[ "$found" = 1 ] || { echo "bench: no benchmarks in build/release/bin; run tools/build.sh release first" >&2; exit 1; }
