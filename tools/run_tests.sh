#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one preset's tests, with ctest's summary as the last thing printed:
# tools/run_tests.sh dev|release|asan|tsan [ctest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?which preset? dev, release, asan or tsan}
shift
case $preset in
  asan) set -- -L unit "$@" ;;
  # As tools/build.sh builds.
  tsan) set -- -R '^(gate|client|seat_frames|tenant|wire|base|memory|mover|pager_stress)_test$' "$@" ;;
esac
export GTEST_BRIEF=${GTEST_BRIEF:-1}  # of a program that fails, what has failed
# Tests that need the machine to themselves say so with RUN_SERIAL; the others do not mind company.
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "${TEST_JOBS:-$(nproc)}" "$@"
