#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that can be said about the sources without building them. Runs every check before it fails: one call
# tells all.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
failed=()
check() {
  local name=$1
  shift
  if "$@"; then echo "check $name: good"; else
    failed+=("$name")
    echo "check $name: FAILED" >&2
  fi
}
check layers tools/check_layers.py
check style tools/check_style.py
check prose tools/check_prose.py
check documents tools/check_documents.py
check environment tools/check_environment.py
check python tools/check_python.py
check format tools/check_format.sh
check generated tools/check_generated.sh
if [ ${#failed[@]} -gt 0 ]; then
  echo "checks failed: ${failed[*]}" >&2
  exit 1
fi
