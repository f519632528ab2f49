#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy 14 on the sources that differ from main, and on main on those of its last 25 commits (TIDY=all: on all; or
# name files). By the commands of the preset `single`, which compiles each file by itself. .clang-tidy has the checks.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v clang-tidy-14 >/dev/null || {
  echo "tidy: clang-tidy-14 is missing; tools/setup.sh installs it" >&2
  exit 1
}
cmake --preset single >/dev/null
cmake --build build/single --target generated_sources >/dev/null
if [ $# -gt 0 ]; then
  wanted=("$@")
elif [ "${TIDY:-changed}" = all ]; then
  mapfile -t wanted < <(git ls-files -- '*.cc')
else
  base=$(git merge-base HEAD main 2>/dev/null || git rev-parse HEAD)
  if [ "$base" = "$(git rev-parse HEAD)" ]; then base=$(git rev-list --max-count=26 HEAD | tail -1); fi
  mapfile -t wanted < <({
    git diff --name-only -M --diff-filter=AM "$base" -- '*.cc'
    git ls-files -o --exclude-standard -- '*.cc'
  } | sort -u)
fi
# Only what this build compiles has a command to be read with; generated files are read by nobody. clang 14 has no C++20
# coroutines with this C++ library, so files that use them are left to the compiler's own warnings.
files=()
for file in "${wanted[@]}"; do
  case $file in *.gen.*) continue ;; esac
  grep -qF "\"file\": \"$PWD/$file\"" build/single/compile_commands.json || continue
  if grep -qE 'co_await|co_return|awaitable' "$file"; then continue; fi
  files+=("$file")
done
[ ${#files[@]} -gt 0 ] || { echo "tidy: nothing to look at"; exit 0; }
echo "tidy: ${#files[@]} files"
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build/single --quiet --extra-arg=-Wno-unknown-warning-option
