#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the test suite while other programs keep the machine busy: tools/test_loaded.sh [ctest arguments]
#
# A test that passes alone and fails here depends on how fast the machine is. The load is stress-ng with eight workers;
# it ends with the suite. Not part of .ci/run: the suite takes several times as long.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v stress-ng >/dev/null || {
  echo "test-loaded: stress-ng is missing; as root: apt-get install --no-install-recommends stress-ng" >&2
  exit 1
}
stress-ng --cpu 8 --quiet &
load=$!
trap 'kill "$load" 2>/dev/null; wait "$load" 2>/dev/null || true' EXIT
trap 'exit 130' INT TERM
tools/run_tests.sh dev "$@"
