#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes Debian packages of what dist/ holds: tools/build_packages.sh FOLDER [VERSION]
#
# `make build` fills dist/ first. VERSION is that of dist/ if absent. The same dist/ gives the same bytes: every file
# has the time of its commit (or of SOURCE_DATE_EPOCH).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:?where the packages go}")
# Of the machine's settings these two would get into the packages.
export LC_ALL=C.UTF-8 TZ=UTC
umask 022

[ -e dist/version.txt ] || { echo "build_packages: dist/ is empty: run make build first" >&2; exit 1; }
{ read -r built && read -r _ && read -r time; } <dist/version.txt
version=${2:-$built}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$time}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
{
  cmake -S packaging/deb -B "$scratch/build" -DGPUMUX_PACKAGE_VERSION="$version" \
    -DGPUMUX_PACKAGE_DATE="$(date -R -d "@$SOURCE_DATE_EPOCH")" &&
  cpack --config "$scratch/build/CPackConfig.cmake" -B "$scratch/packages"
} >"$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
mkdir -p "$folder"
mv "$scratch"/packages/*.deb "$folder"
find "$folder" -name "*_${version}_*.deb" | LC_ALL=C sort
