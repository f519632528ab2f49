#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the sources of the Python client: they parse as Python 3.9, and mypy finds them right in its strict mode."""

import ast
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OLDEST = (3, 9)  # as python/pyproject.toml says
# Debian's: its Python is not the one that runs this.
MYPY = "/usr/bin/mypy"


def main():
    wrong = False
    for path in sorted((ROOT / "python" / "src").rglob("*.py")):
        try:
            ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=OLDEST)
        except SyntaxError as error:
            print(f"{path}:{error.lineno}: not Python {'.'.join(map(str, OLDEST))}: {error.msg}", file=sys.stderr)
            wrong = True
    checked = subprocess.run([MYPY, "--no-error-summary", "--cache-dir", str(ROOT / "build" / "mypy"), "src"],
                             cwd=ROOT / "python")
    return 1 if wrong or checked.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
