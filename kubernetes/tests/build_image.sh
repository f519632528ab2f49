#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the image of gpumux's pods from what a build has made: kubernetes/tests/build_image.sh BUILD NAME ARCHIVE
#
# As kubernetes/image/Dockerfile says, with target `dist`, without network, on a base that mmdebstrap makes from Debian
# packages. The base stays in build/image/. The archive has the simulated driver, and NAME as the image's name.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
build=$1
name=$2
archive=$3

base=$PWD/build/image/base.tar
place=$(mktemp -d)
# buildah keeps images' files with modes of their own.
trap 'chmod -R u+rwX "$place" && rm -rf "$place"' EXIT

if [ ! -e "$base" ]; then
  mkdir -p "$(dirname "$base")"
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' |
    sed -n 1p)
  # A shell, ldd and the C library: of Debian's essential packages without their documents.
  mmdebstrap --quiet --mode=root --variant=essential --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/man/*' \
    bookworm "$place/base.tar" "${mirror:-http://deb.debian.org/debian}"
  mv "$place/base.tar" "$base"
fi

# The files of a release build, placed as `tools/build.sh dist` places them.
context=$place/context
mkdir -p "$context"/{kubernetes,dist/bin,dist/libexec/gpumux,dist/lib,dist/sim,base}
cp -r kubernetes/image "$context/kubernetes"
cp "$build"/bin/{gpumux,gpumuxd,gpumux-kubelet-plugin} "$context/dist/bin"
cp "$build"/bin/{gpumux-cdi-hook,gpumux-mover} "$context/dist/libexec/gpumux"
cp "$build/lib/libgpumux.so" "$context/dist/lib"
cp "$build"/lib/sim/{libcuda.so.1,libnvidia-ml.so.1} "$context/dist/sim"
# The base has no strip.
strip --strip-unneeded "$context"/dist/{bin,libexec/gpumux,lib,sim}/*
ln -f "$base" "$context/base/base.tar" 2>/dev/null || cp "$base" "$context/base"
printf 'FROM scratch\nADD base.tar /\n' >"$context/base/Dockerfile"

buildah=(buildah --storage-driver vfs --root "$place/storage" --runroot "$place/run")
{
  "${buildah[@]}" build --isolation chroot --tag localhost/base "$context/base"
  "${buildah[@]}" build --isolation chroot --pull-never --file "$context/kubernetes/image/Dockerfile" --target dist \
    --build-arg BASE=localhost/base --build-arg SIMULATED=yes --tag "$name" "$context"
  "${buildah[@]}" push "$name" "docker-archive:$archive:$name"
} >"$place/log" 2>&1 || {
  cat "$place/log" >&2
  exit 1
}
