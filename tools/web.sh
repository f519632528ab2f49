#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The page of `gpumux web`: tools/web.sh build | verify | test
#
# build makes web/built/ from web/page/. verify fails if the committed files are not what a build
# makes now. test runs the page's tests in Debian's chromium, and those of the documents' site; before, how the page
# reads a trace is tested without a browser. All need Node.js 20.19 or newer, npm and its registry: the lock files name
# every package with its checksum, and no package's script runs. Nothing else needs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
page=web/page
built=web/built

command -v npm >/dev/null || { echo "web: npm is missing: install Node.js 20.19 or newer" >&2; exit 1; }
install() { (cd "$1" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error); }
build_into() {
  install $page
  (cd $page && npx --no-install tsc --noEmit && npx --no-install vite build --logLevel warn --outDir "$1")
}
differs() {
  echo "web: $built differs from a fresh build: run make web and commit both" >&2
  exit 1
}

case ${1:-} in
  build) build_into "$PWD/$built" ;;
  verify)
    fresh=$(mktemp -d)
    trap 'rm -rf "$fresh"' EXIT
    build_into "$fresh"
    diff -r "$fresh" $built || differs
    echo "web: $built is what a build makes"
    ;;
  test)
    install $page
    install web/tests
    node web/tests/leases_test.mjs
    python3 -B web/tests/page_test.py
    python3 -B web/tests/site_test.py
    ;;
  *) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
