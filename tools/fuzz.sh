#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every fuzzer, the given number of seconds in all (default 60): tools/fuzz.sh [SECONDS] [FUZZER]
# What it finds new goes to build/fuzz/corpus/. A crash is written there too, and the input that made it belongs in the
# fuzzer's checked-in corpus.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
only=${2:-}
tools/build.sh fuzz
mapfile -t fuzzers < <(find build/fuzz/bin -maxdepth 1 -name '*_fuzz' -type f | sort)
[ -n "$only" ] && fuzzers=("build/fuzz/bin/$only")
[ ${#fuzzers[@]} -gt 0 ] || { echo "fuzz: no fuzzers were built" >&2; exit 1; }
each=$((seconds / ${#fuzzers[@]}))
[ "$each" -ge 1 ] || each=1
for fuzzer in "${fuzzers[@]}"; do
  name=$(basename "$fuzzer")
  grown=build/fuzz/corpus/$name
  mkdir -p "$grown"
  checked_in=()
  while IFS= read -r dir; do checked_in+=("$dir"); done < <(find src sim kubernetes -type d -path "*/corpus/$name")
  echo "== $name, $each s, corpus: $grown ${checked_in[*]:-}"
  "$fuzzer" -max_total_time="$each" -timeout=5 -rss_limit_mb=2048 -artifact_prefix="$grown/" -print_final_stats=1 \
    -verbosity=0 -print_funcs=0 "$grown" "${checked_in[@]}"
done
