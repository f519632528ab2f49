#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds one preset: tools/build.sh dev|release|asan|tsan|fuzz|arm64|dist|demo
# `dist` is the release preset, and then dist/ filled from it. `demo` is the part of it that tools/demo.sh starts, in
# build/demo. The sanitizer presets build the unit tests only.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?which preset? dev, release, asan, tsan, fuzz, arm64, dist or demo}
jobs=${JOBS:-$(tools/jobs.sh)}

# ccache finds again what another clone or branch compiled: paths count from this folder, and its name does not count.
export CCACHE_BASEDIR=${CCACHE_BASEDIR:-$PWD}
export CCACHE_NOHASHDIR=${CCACHE_NOHASHDIR:-1}
# Without these it passes on whatever uses precompiled headers.
export CCACHE_SLOPPINESS=${CCACHE_SLOPPINESS:-pch_defines,time_macros,include_file_mtime,include_file_ctime}

configured=$preset
target=all
case $preset in
  dist) configured=release target=product ;;
  demo) configured=release target=demonstration ;;
  asan) target=unit_tests ;;
  # Code that runs on several threads: in users' programs, and the mover. The daemon and the command line have one each.
  tsan)
    target="gate_test client_test tenant_test wire_test base_test"
    target+=" memory_test pager_thread_test pager_stress_test interrupter_test"
    target+=" mover_worker_test mover_pager_test mover_process_test"
    ;;
  fuzz) target=fuzzers ;;
esac
# Another Slurm's headers: SLURM_INCLUDE=DIR. Set again each time, so that it does not stay.
cmake --preset "$configured" -DSLURM_INCLUDE="${SLURM_INCLUDE:-}" >"/tmp/gpumux-configure.$$" 2>&1 || {
  cat "/tmp/gpumux-configure.$$" >&2
  rm -f "/tmp/gpumux-configure.$$"
  exit 1
}
rm -f "/tmp/gpumux-configure.$$"
# shellcheck disable=SC2086  # a list of targets
cmake --build "build/$configured" --parallel "$jobs" --target $target
if [ "$preset" = demo ]; then
  rm -rf build/demo
  cmake --install build/release --component demonstration --prefix "$PWD/build/demo" >/dev/null
fi
if [ "$preset" = dist ]; then
  rm -rf dist && mkdir dist
  cmake --install build/release --component dist --prefix "$PWD/dist" >/dev/null
  # Installed, they lie next to the pages of docs/.
  for page in README.md CHANGELOG.md; do sed 's|](docs/|](|g' $page >dist/share/$page; done
  find dist -type f -o -type l | LC_ALL=C sort
fi
