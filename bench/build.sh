#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Times the build from nothing, without ccache: bench/build.sh [--tests] [REVISION ...]
#
# Each revision (default: the last commit) is cloned into a temporary folder. Rows:
#   build    make build
#   demo     make demo up to its first picture, in a clone of its own; - in revisions that build all of dist/ for it
#   dev      what make test builds before its first test runs
#   change   one source of src/sched is changed: sched_test is built again and run
#   tests    with --tests, the tests
# Columns: seconds that pass, and seconds of all processors. Compare only what one call prints, on a machine that has
# nothing else to do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
with_tests=no
if [ "${1:-}" = --tests ]; then
  with_tests=yes
  shift
fi
[ $# -gt 0 ] || set -- HEAD
export CCACHE_DISABLE=1
folder=$(mktemp -d "${TMPDIR:-/tmp}/gpumux-build.XXXXXX")
trap 'rm -rf "$folder"' EXIT

clone() {
  git clone --quiet --no-hardlinks "$here" "$2"
  git -C "$2" checkout --quiet --detach "$(git -C "$here" rev-parse "$1")"
  (cd "$2" && tools/setup.sh)
}
measure() {
  local name=$1 status=0
  shift
  TIMEFORMAT='%R %U %S'
  { time "$@" >"$folder/log" 2>&1 || status=$?; } 2>"$folder/time"
  if [ "$status" != 0 ]; then
    tail -n 30 "$folder/log" >&2
    echo "bench: '$*' ended with $status" >&2
    exit 1
  fi
  awk -v revision="$revision" -v name="$name" \
    '{printf "%-12s %-8s %8.0f %8.0f\n", revision, name, $1, $2 + $3}' "$folder/time"
}
changed() {
  echo "// changed" >>src/sched/lease/view.cc
  ninja -C build/dev sched_test && build/dev/bin/sched_test
}

printf '%-12s %-8s %8s %8s   (%s processors)\n' revision what seconds "of CPU" "$(nproc)"
for revision in "$@"; do
  clone "$revision" "$folder/clone"
  cd "$folder/clone"
  measure build make build
  measure dev tools/build.sh dev
  if [ "$with_tests" = yes ]; then measure tests tools/run_tests.sh dev; fi
  measure change changed
  if grep -q 'build.sh demo' Makefile; then
    clone "$revision" "$folder/demo"
    cd "$folder/demo"
    measure demo env GPUMUX_DEMO=simulated GPUMUX_DEMO_SECONDS=1 make demo
  fi
  cd /
  rm -rf "$folder/clone" "$folder/demo"
done
