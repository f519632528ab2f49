#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a kubectl that knows components of kustomize: kubernetes/tests/get_kubectl.sh
#
# That of GPUMUX_TEST_KUBE_BIN or of this machine, if it is new enough. Debian 12's is not, so Debian 13's is unpacked
# in build/kubelet/. Nothing is installed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

kept=$PWD/build/kubelet/kubectl
for known in "${GPUMUX_TEST_KUBE_BIN:+$GPUMUX_TEST_KUBE_BIN/kubectl}" "$(command -v kubectl || true)" \
  "$kept/usr/bin/kubectl"; do
  if [ -n "$known" ] && "$known" version --client 2>/dev/null | grep -q 'Kustomize Version: v[5-9]'; then
    echo "$known"
    exit 0
  fi
done

mkdir -p build/kubelet
place=$(mktemp -d "$PWD/build/kubelet/kubectl.XXXXXX")
trap 'rm -rf "$place"' EXIT
fetch() {
  # The mirror of Debian 12 that this machine uses, if it does.
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' |
    sed -n 1p)
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian} trixie main" \
    >"$place/sources.list"
  mkdir -p "$place"/{lists,cache/archives}/partial
  local apt=(apt-get -q -o Dir::Etc::SourceList="$place/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists="$place/lists" -o Dir::Cache="$place/cache" -o APT::Sandbox::User=root)
  cd "$place"
  "${apt[@]}" update
  "${apt[@]}" download kubectl/trixie
  dpkg-deb -x kubectl_*.deb "$place/unpacked"
}
if ! (fetch) >"$place/log" 2>&1; then
  cat "$place/log" >&2
  echo "get_kubectl.sh: Debian 13's kubectl cannot be had here; the lines above say why. Put a kubectl of 1.27 or" \
    "newer into the PATH" >&2
  exit 1
fi
rm -rf "$kept"
mv "$place/unpacked" "$kept"
echo "$kept/usr/bin/kubectl"
