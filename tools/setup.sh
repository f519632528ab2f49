#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes sure that everything needed to build and test is here: tools/setup.sh [--list | --check]
#
# On Debian 12 as root, installs exactly the packages that are missing. Anywhere else, and without root, it changes
# nothing: it names what is missing, how to get it, and fails. --list prints every package with what it is for; --check
# never installs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# package | probe (a command, or a header in <>) | what for
needed='
g++|g++|the compiler (12 or newer)
make|make|the front of the build
cmake|cmake|configures the build (3.25 or newer)
ninja-build|ninja|runs the build
ccache|ccache|makes second builds quick
git|git|checks read what is under version control
python3|python3|checks and generators (3.11 or newer)
libboost1.81-dev|<boost/beast.hpp>|event loop and HTTP server of the daemon
libexpected-dev|<tl/expected.hpp>|result type
nlohmann-json3-dev|<nlohmann/json.hpp>|JSON of the HTTP API
libcli11-dev|<CLI/CLI.hpp>|command lines
libfmt-dev|<fmt/format.h>|text formatting of daemon and CLI
libspdlog-dev|<spdlog/spdlog.h>|log of the daemon
libtomlplusplus-dev|<toml++/toml.h>|configuration files
libcap-ng-dev|<cap-ng.h>|the daemon drops what root rights it does not need
libsystemd-dev|<systemd/sd-daemon.h>|tells systemd when the daemon is ready
libsqlite3-dev|<sqlite3.h>|files of the job store
libsqlitecpp-dev|<SQLiteCpp/SQLiteCpp.h>|SQLite from C++, for the job store
protobuf-compiler|protoc|C++ from the definitions of messages to a kubelet
protobuf-compiler-grpc|grpc_cpp_plugin|the same, of its calls
libprotobuf-dev|<google/protobuf/message_lite.h>|messages of a kubelet
libgrpc++-dev|<grpcpp/grpcpp.h>|calls of a kubelet
libssl-dev|<openssl/ssl.h>|TLS to the API server of Kubernetes
libslurm-dev|<slurm/spank.h>|the plugin for Slurm, which is left out without it
pkg-config|pkg-config|names the archives of gRPC
libncurses-dev|<curses.h>|the screen of gpumux top
libgtest-dev|<gtest/gtest.h>|tests
tmux|tmux|tests of gpumux top
zsh|zsh|tests of completions
fish|fish|the same
runc|runc|tests of containers
buildah|buildah|tests of the image of pods
mmdebstrap|mmdebstrap|the same, its base
python3-matplotlib|/usr/lib/python3/dist-packages/matplotlib|pictures of the experiment
python3-yaml|/usr/lib/python3/dist-packages/yaml|tests of manifests for Kubernetes
python3-sphinx|sphinx-build|the site of the documents
python3-myst-parser|/usr/lib/python3/dist-packages/myst_parser|the same, its Markdown
furo|/usr/lib/python3/dist-packages/furo|the same, its looks
python3-jsonschema|/usr/lib/python3/dist-packages/jsonschema|tests of the description of the API
python3-venv|/usr/lib/python3.11/ensurepip|tests of the Python client
python3-setuptools|/usr/lib/python3/dist-packages/setuptools|the wheel of the Python client
python3-wheel|/usr/lib/python3/dist-packages/wheel|the same
python3-ipython|/usr/lib/python3/dist-packages/IPython|tests of the magic for notebooks
lintian|lintian|checks the Debian packages
mypy|mypy|checks the types of the Python client
musl-tools|musl-gcc|tests of containers without glibc
prometheus|promtool|tests of the metrics
slurmctld|slurmctld|tests of the plugin for Slurm
slurmd|slurmd|the same
slurm-client|srun|the same
slurm-wlm-basic-plugins|/usr/lib/x86_64-linux-gnu/slurm-wlm/job_submit_lua.so|the same
munge|munged|the same: by it the parts of Slurm know each other
chromium|chromium|tests of the web view
chromium-sandbox|/usr/lib/chromium/chrome-sandbox|the same
g++-aarch64-linux-gnu|aarch64-linux-gnu-g++|the library for arm64
gcc-aarch64-linux-gnu|aarch64-linux-gnu-gcc|the same
libc6-dev-arm64-cross|/usr/aarch64-linux-gnu/include/stdio.h|the same
qemu-user|qemu-aarch64|its tests
googletest|/usr/src/googletest/CMakeLists.txt|the same
libbenchmark-dev|<benchmark/benchmark.h>|benchmarks
clang-format-14|clang-format-14|the format check
clang-tidy-14|clang-tidy-14|make tidy
clang-14|clang-14|fuzzers and tools/check_threads.py
libclang-rt-14-dev|/usr/lib/llvm-14/lib/clang/14.0.6/lib/linux/libclang_rt.fuzzer-x86_64.a|fuzzers
'

list() {
  local package probe purpose
  while IFS='|' read -r package probe purpose; do
    if [ -n "$package" ]; then printf '%-22s %s\n' "$package" "$purpose"; fi
  done <<<"$needed"
}

mode=${1:-install}
case $mode in
  --list) list; exit 0 ;;
  --check | install) ;;
  -h | --help) sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 0 ;;
  *) echo "setup: unknown argument $mode; --list, --check or nothing" >&2; exit 2 ;;
esac

debian12=no
if [ -r /etc/os-release ] && (. /etc/os-release && [ "${ID:-}${VERSION_ID:-}" = debian12 ]); then debian12=yes; fi

# The stamp holds this file's sum and the package database's time: any change to either asks again.
stamp=build/.setup
state="$(cksum <"$0") $(stat -c %Y /var/lib/dpkg/status 2>/dev/null || echo none)"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$state" ]; then exit 0; fi

has() {
  case $1 in
    '<'*) printf '#include %s\n' "$1" | g++ -std=c++20 -fsyntax-only -x c++ - 2>/dev/null ;;
    /*) [ -e "$1" ] ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

missing=()
if [ "$debian12" = yes ]; then
  installed=" $(dpkg-query -W -f='${db:Status-Status}=${Package}\n' | sed -n 's/^installed=//p' | tr '\n' ' ') "
fi
while IFS='|' read -r package probe purpose; do
  [ -n "$package" ] || continue
  if [ "$debian12" = yes ]; then
    case $installed in *" $package "*) ;; *) missing+=("$package") ;; esac
  else
    has "$probe" || missing+=("$package")
  fi
done <<<"$needed"

if [ ${#missing[@]} -gt 0 ]; then
  if [ "$debian12" = no ]; then
    {
      echo "setup: this is not Debian 12, so nothing was installed. Missing, by Debian's package names:"
      list | grep -E "^($(IFS='|'; sed 's/[.+]/\\&/g' <<<"${missing[*]}"))[[:space:]]"
      echo "Install your distribution's packages of these libraries and tools, then run this again."
    } >&2
    exit 1
  fi
  if [ "$mode" = --check ] || [ "$(id -u)" != 0 ]; then
    {
      echo "setup: missing packages; nothing was installed:"
      list | grep -E "^($(IFS='|'; sed 's/[.+]/\\&/g' <<<"${missing[*]}"))[[:space:]]"
      echo "As root: apt-get install --no-install-recommends ${missing[*]}"
    } >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Some packages bring services. None is started: Debian asks this program.
  policy=/usr/sbin/policy-rc.d
  if [ ! -e "$policy" ]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi
  install() { apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null; }
  # A machine whose package lists are fresh does not need an update; one that has none, or old ones, fails first.
  if ! install >"/tmp/gpumux-setup.$$" 2>&1; then
    if ! { apt-get update -qq </dev/null && install; } >"/tmp/gpumux-setup.$$" 2>&1; then
      cat "/tmp/gpumux-setup.$$" >&2
      rm -f "/tmp/gpumux-setup.$$"
      echo "setup: could not install ${missing[*]}: see apt-get's words above" >&2
      exit 1
    fi
  fi
  rm -f "/tmp/gpumux-setup.$$"
fi

major=$(g++ -dumpversion | cut -d. -f1)
[ "$major" -ge 12 ] || { echo "setup: g++ $major is too old; 12 or newer is needed" >&2; exit 1; }
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: python3 3.11 or newer is needed" >&2
  exit 1
}

mkdir -p build
echo "$(cksum <"$0") $(stat -c %Y /var/lib/dpkg/status 2>/dev/null || echo none)" >"$stamp"
