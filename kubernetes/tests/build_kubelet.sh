#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the kubelet from Debian 12's source package `kubernetes`, and prints the folder with kubelet and containerd:
# kubernetes/tests/build_kubelet.sh
#
# Both stay in build/kubelet/VERSION/. Nothing is installed: packages are downloaded and unpacked there, so no service
# starts and no package list of the machine changes. Debian has no binary package of the kubelet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
version=1.20.2

kept=$PWD/build/kubelet/$version
bin=$kept/bin
if [ -x "$bin/kubelet" ]; then
  echo "$bin"
  exit 0
fi

for tool in apt-get dpkg-deb tar; do
  command -v "$tool" >/dev/null || {
    echo "build_kubelet.sh: no $tool here: set GPUMUX_TEST_KUBE_BIN to a folder with kubelet and containerd" >&2
    exit 1
  }
done

mkdir -p "$kept"
# In a folder of its own, so that two builds at once do not disturb each other.
place=$(mktemp -d "$kept/building.XXXXXX")
trap 'rm -rf "$place"' EXIT

fetch() {
  # The mirror of Debian 12 that this machine uses, if it does.
  local mirror
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' 'Codename: bookworm' |
    sed -n 1p)
  local archive="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] ${mirror:-http://deb.debian.org/debian}"
  printf '%s bookworm main\n' "deb $archive" "deb-src $archive" >"$place/sources.list"
  mkdir -p "$place"/{lists,cache/archives}/partial
  # An apt of this folder's own. It writes no other folder, so it needs no other user to do so.
  local apt=(apt-get -q -o Dir::Etc::SourceList="$place/sources.list" -o Dir::Etc::SourceParts=-
    -o Dir::State::Lists="$place/lists" -o Dir::Cache="$place/cache" -o APT::Sandbox::User=root)
  cd "$place"
  "${apt[@]}" update
  "${apt[@]}" source --download-only kubernetes
  "${apt[@]}" download golang-1.19-go golang-1.19-src containerd
  local package
  for package in ./*.deb; do dpkg-deb -x "$package" "$place/packages"; done
}

build() {
  # Debian's patches are about kubectl, so the original sources do. GOPATH's layout: the package has its dependencies
  # in vendor/, and needs no modules.
  local source=$place/path/src/k8s.io/kubernetes
  mkdir -p "$source"
  tar -xzf "$place"/kubernetes_*+really"$version".orig.tar.gz -C "$source" --strip-components=1
  cd "$source"
  # Whenever a kubelet starts, its cAdvisor looks for Docker five times, a second apart. Nothing here has Docker.
  sed -i 's/rootDirRetries = 5$/rootDirRetries = 1/' vendor/github.com/google/cadvisor/container/docker/factory.go
  local stamp=k8s.io/kubernetes/vendor/k8s.io/component-base/version
  # -trimpath: Go's cache finds again what another clone has compiled, as ccache does for C++.
  env GOROOT="$place/packages/usr/lib/go-1.19" GOPATH="$place/path" GO111MODULE=off GOPROXY=off GOFLAGS= CGO_ENABLED=0 \
    "$place/packages/usr/lib/go-1.19/bin/go" build -trimpath -p "${JOBS:-$(nproc)}" -o "$place/kubelet" \
    -ldflags "-s -w -X $stamp.gitVersion=v$version -X $stamp.gitMajor=1 -X $stamp.gitMinor=20" ./cmd/kubelet
}

if ! { (fetch) && (build); } >"$kept/build.log" 2>&1; then
  cat "$kept/build.log" >&2
  echo "build_kubelet.sh: kubelet $version cannot be built here; the lines above say why." \
    "GPUMUX_TEST_KUBE_BIN may name a folder with kubelet and containerd instead" >&2
  exit 1
fi
mkdir -p "$bin"
mv "$place"/packages/usr/bin/* "$bin"
# The kubelet comes last: with it, the folder counts as whole.
mv "$place/kubelet" "$bin/kubelet"
echo "$bin"
