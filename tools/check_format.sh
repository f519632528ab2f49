#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks that C++ sources under version control are as clang-format 14 leaves them; --fix formats them.
# Generated files are left alone.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
formatter=${CLANG_FORMAT:-}
for candidate in clang-format-14 clang-format; do
  [ -n "$formatter" ] && break
  if command -v "$candidate" >/dev/null; then formatter=$candidate; fi
done
[ -n "$formatter" ] || { echo "format: clang-format 14 is missing; tools/setup.sh installs it" >&2; exit 1; }
# Other versions break lines elsewhere: a check with them would fail for no fault of the sources.
case $("$formatter" --version) in
  *"version 14."*) ;;
  *)
    echo "format: needs clang-format 14, and $formatter is $("$formatter" --version); name one in CLANG_FORMAT" >&2
    exit 1
    ;;
esac
mapfile -t files < <(git ls-files -co --exclude-standard -- '*.cc' '*.h' '*.c' '*.cpp' | grep -v '\.gen\.')
if [ "${1:-}" = --fix ]; then
  printf '%s\0' "${files[@]}" | xargs -0 -n 20 -P "$(nproc)" "$formatter" -i --style=file
else
  printf '%s\0' "${files[@]}" | xargs -0 -n 20 -P "$(nproc)" "$formatter" --dry-run --Werror --style=file || {
    echo "format: run make format" >&2
    exit 1
  }
fi
