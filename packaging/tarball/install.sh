#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs gpumux from this folder, or takes it away again: ./install.sh [uninstall]
# PREFIX says where: ~/.local by default, and /usr for root. docs/how-to/install.md tells more.
set -e
case ${1:-install} in
  install | uninstall) exec "$(dirname "$0")/tools/install.sh" "${1:-install}" ;;
  *)
    sed -n '3,4s/^# //p' "$0" >&2
    exit 2
    ;;
esac
