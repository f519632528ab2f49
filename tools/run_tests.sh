#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs one preset's tests, with ctest's summary as the last thing printed:
# tools/run_tests.sh dev|release|asan|tsan|arm64 [ctest arguments]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
preset=${1:?which preset? dev, release, asan, tsan or arm64}
shift
case $preset in
  asan) set -- -L unit "$@" ;;
  # An emulator takes ten times as long as a processor. It needs some 24 bytes for each page that a program reserves.
  # The simulated driver reserves 2 TiB if it can, which costs 12 GiB for each test. With this limit it reserves less.
  arm64)
    export GPUMUX_TEST_KILLS=${GPUMUX_TEST_KILLS:-20} GPUMUX_TEST_ALLOCATIONS=${GPUMUX_TEST_ALLOCATIONS:-10000}
    ulimit -v $((640 << 20))  # KiB
    ;;
  tsan)
    tests='gate|client|tenant|wire|base|memory|pager_thread|pager_stress|interrupter'
    set -- -R "^($tests|mover_worker|mover_pager|mover_process)_test\$" "$@"
    ;;
esac
export GTEST_BRIEF=${GTEST_BRIEF:-1}  # of a program that fails, what has failed
# Two places for each processor: a test that waits takes one, a test that computes takes two (cmake/gpumux.cmake).
places=${TEST_JOBS:-$((2 * $(nproc)))}
exec ctest --test-dir "build/$preset" --output-on-failure --no-tests=error --parallel "$places" "$@"
