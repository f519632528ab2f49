#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a tarball of what dist/ holds, which installs without root: tools/build_tarball.sh FOLDER
#
# `make build` fills dist/ first. The tarball has the script tools/install.sh, and each file that the script's list
# names in the place where the script looks for it. The same dist/ gives the same bytes: every file has the time of its
# commit (or of SOURCE_DATE_EPOCH).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder=$(realpath -m "${1:?where the tarball goes}")
export LC_ALL=C.UTF-8 TZ=UTC
umask 022

[ -e dist/version.txt ] || { echo "build_tarball: dist/ is empty: run make build first" >&2; exit 1; }
{ read -r version && read -r _ && read -r time; } <dist/version.txt
name=gpumux-$version-linux-$(uname -m)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

copy() {
  mkdir -p "$(dirname "$scratch/$name/$2")"
  install -m "$3" "$1" "$scratch/$name/$2"
  if [ "$(head -c 4 "$1" | tail -c 3)" = ELF ]; then tools/strip.sh "$scratch/$name/$2"; fi
}
# DESTDIR: all that a system installs.
while IFS=$'\t' read -r from _ mode _; do
  if [ "$mode" != link ]; then copy "$from" "$from" "$mode"; fi
done < <(DESTDIR=/ tools/install.sh list)
copy dist/version.txt dist/version.txt 644
if [ -e dist/left_out.txt ]; then copy dist/left_out.txt dist/left_out.txt 644; fi
copy README.md README.md 644
copy CHANGELOG.md CHANGELOG.md 644
copy tools/install.sh tools/install.sh 755
copy packaging/tarball/install.sh install.sh 755

mkdir -p "$folder"
tar --directory "$scratch" --create --format=gnu --sort=name --owner=0 --group=0 --numeric-owner \
  --mtime="@${SOURCE_DATE_EPOCH:-$time}" "$name" | gzip -9n >"$folder/.$name.new"
mv "$folder/.$name.new" "$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
