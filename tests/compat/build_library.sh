#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds libgpumux.so of an earlier revision from this repository's history, and prints its path:
# tests/compat/build_library.sh [REVISION]
#
# REVISION is a tag or a commit; without it, tests/compat/revision names it. Each commit's library is built once, and
# stays in build/compat/COMMIT/. Exit status 77: the history is not here; standard error says why.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
revision=${1:-$(sed '/^#/d' tests/compat/revision)}
no_history=77

# Empty in the top folder of a checkout; else a folder's name, or what git says of a folder that is no checkout.
if [ -n "$(git rev-parse --show-prefix 2>&1)" ]; then
  echo "the library of $revision is not built: this folder is no git checkout, so it has no history" >&2
  exit "$no_history"
fi
if ! commit=$(git rev-parse --quiet --verify "$revision^{commit}"); then
  if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    echo "the library of $revision is not built: this clone is shallow; git fetch --unshallow --tags completes it" >&2
    exit "$no_history"
  fi
  # A repository whose history was begun anew does not have it. A tag can be fetched, and its name mistyped.
  if [[ $revision =~ ^[0-9a-f]{40}$ ]]; then
    echo "the library of $revision is not built: the history of this clone does not have that commit" >&2
    exit "$no_history"
  fi
  echo "build_library.sh: the history has no revision $revision: git fetch --tags, or correct tests/compat/revision" >&2
  exit 1
fi

kept=$PWD/build/compat/$commit
library=$kept/libgpumux.so
if [ ! -e "$library" ]; then
  mkdir -p "$kept"
  # In a folder of its own, so that two builds at once do not disturb each other.
  place=$(mktemp -d "$kept/building.XXXXXX")
  trap 'rm -rf "$place"' EXIT
  git archive "$commit" | tar -x -C "$place"
  # ccache finds again what another clone has compiled, as in tools/build.sh.
  export CCACHE_BASEDIR=$place CCACHE_NOHASHDIR=1
  # As the release preset builds it. Warnings of a newer compiler about old sources do not count.
  if ! {
    cmake -S "$place" -B "$place/build" -G Ninja -DCMAKE_BUILD_TYPE=Release &&
      cmake --build "$place/build" --parallel "${JOBS:-$(tools/jobs.sh)}" --target gpumux_preload
  } >"$kept/build.log" 2>&1; then
    cat "$kept/build.log" >&2
    echo "build_library.sh: the library of $revision cannot be built here; the lines above say why" >&2
    exit 1
  fi
  mv "$place/build/lib/libgpumux.so" "$library"
fi
echo "$library"
