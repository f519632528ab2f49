#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tells the version of these sources in three lines: version, commit, and the commit's time in seconds since 1970.
#
#   tools/version.sh                   prints them
#   tools/version.sh --write FOLDER    writes them into FOLDER/version.txt, and into FOLDER/version.cc for programs
#
# VERSION names the release that these sources are, or that comes next while it has no tag: MAJOR.MINOR.PATCH. The tag
# vMAJOR.MINOR.PATCH makes it. N commits later the version is MAJOR.MINOR.PATCH+N.gCOMMIT. Where no tag is to be seen it
# is MAJOR.MINOR.PATCH+TIME.gCOMMIT, with the commit's time in seconds since 1970: neither a source archive nor a clone
# without tags can count commits. `.dirty` says that files differ from the commit. dpkg and pip both sort such versions.
# A source archive has no history: git archive has written the same facts into packaging/source.txt. Without either the
# version is MAJOR.MINOR.PATCH+unknown.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Enough of a commit's name that no other commit begins so. Git's own choice depends on the size of the clone.
name_length=12
# A zip archive, as a wheel is one, has no earlier time: 1980-01-01.
earliest=315532800

# From vMAJOR.MINOR.PATCH[-N-gCOMMIT], or nothing, the commit, and its time in seconds since 1970.
version_of() {
  if [[ $1 =~ ^v([0-9]+\.[0-9]+\.[0-9]+)(-([0-9]+)-(g[0-9a-f]+))?$ ]]; then
    echo "${BASH_REMATCH[1]}${BASH_REMATCH[2]:++${BASH_REMATCH[3]}.${BASH_REMATCH[4]}}"
  else
    echo "$(cat VERSION)+$3.g${2:0:name_length}"
  fi
}

tell() {
  local commit='' time='' described='' state=''
  { read -r commit && read -r time && read -r described || true; } <packaging/source.txt
  if [[ $commit != [0-9a-f]* ]]; then
    # Empty in the top folder of a checkout; else a folder's name, or what git says of a folder that is no checkout.
    if [ -n "$(git rev-parse --show-prefix 2>&1)" ] || ! commit=$(git rev-parse --verify --quiet HEAD); then
      printf '%s\n' "$(cat VERSION)+unknown" unknown "$earliest"
      return
    fi
    time=$(git log -1 --format=%ct)
    described=$(git describe --tags --match 'v[0-9]*' --exclude '*-*' --abbrev="$name_length" 2>/dev/null || true)
    if ! GIT_OPTIONAL_LOCKS=0 git diff --quiet HEAD --; then state=.dirty; fi
  fi
  printf '%s\n' "$(version_of "$described" "$commit" "$time")$state" "$commit" "$time"
}

# A file that says the same stays as it is: what is made of it needs no building.
put() {
  local text
  text=$(cat)
  if ! [ -f "$1" ] || [ "$(cat "$1")" != "$text" ]; then printf '%s\n' "$text" >"$1"; fi
}

case ${1:-} in
  '') tell ;;
  --write)
    folder=${2:?which folder?}
    mkdir -p "$folder"
    told=$(tell)
    put "$folder/version.txt" <<<"$told"
    { read -r version && read -r commit; } <<<"$told"
    put "$folder/version.cc" <<TEXT
// Written by tools/version.sh.
#include "base/version.h"

namespace gpumux::base {

const char* version() { return "$version"; }
const char* commit() { return "$commit"; }

}  // namespace gpumux::base
TEXT
    ;;
  *)
    echo "version: unknown argument $1; --write FOLDER or nothing" >&2
    exit 2
    ;;
esac
