#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the Python client: a wheel and a source archive, without the network.

    tools/build_python.py FOLDER [VERSION]

VERSION is that of the sources if absent.

The same sources give the same bytes, wherever and whenever they are built: every file has the time of the commit (or
of SOURCE_DATE_EPOCH), root as its owner, and a mode that no umask changes. setuptools and wheel are Debian's, so
this runs with Debian's Python.
"""

import argparse
import gzip
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

import documents

ROOT = pathlib.Path(__file__).resolve().parent.parent
PYTHON = os.environ.get("GPUMUX_BUILD_PYTHON", "/usr/bin/python3")
BACKEND = """\
import sys
from setuptools import build_meta
folder = sys.argv[1]  # setuptools writes arguments of its own
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""


def version_and_time():
    """The version of the sources, and their time in seconds since 1970."""
    shown = subprocess.run([ROOT / "tools" / "version.sh"], stdout=subprocess.PIPE, text=True, check=True)
    version, _, time = shown.stdout.split()
    return version, int(os.environ.get("SOURCE_DATE_EPOCH") or time)


def copy_sources(folder, version):
    for name in documents.names(ROOT, "python"):
        to = folder / pathlib.Path(name).relative_to("python")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, to)
        to.chmod(0o644)
    path = folder / "src" / "gpumux" / "version.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub('^VERSION = .*$', f'VERSION = "{version}"', text, flags=re.MULTILINE), encoding="utf-8")


def write_archive_again(path, time):
    """setuptools writes today's time, the user and the umask into it."""
    out = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=out, mode="w", format=tarfile.GNU_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime = time
            member.uid = member.gid = 0
            member.uname = member.gname = "root"
            member.mode = 0o755 if member.isdir() else 0o644
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=time) as packed:
        packed.write(out.getvalue())


def build(folder, version=None):
    """Gives the paths of the source archive and of the wheel."""
    told, time = version_and_time()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        sources, made = pathlib.Path(scratch) / "sources", pathlib.Path(scratch) / "made"
        made.mkdir()
        copy_sources(sources, version or told)
        done = subprocess.run([PYTHON, "-c", BACKEND, made], cwd=sources, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, umask=0o022,
                              env={**os.environ, "SOURCE_DATE_EPOCH": str(time), "PYTHONHASHSEED": "0"})
        if done.returncode != 0:
            sys.exit(f"build_python: setuptools has failed:\n{done.stdout}")
        archive, = made.glob("*.tar.gz")
        write_archive_again(archive, time)
        return [pathlib.Path(shutil.copy(path, folder)) for path in (archive, *made.glob("*.whl"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="where the two files go")
    parser.add_argument("version", nargs="?", metavar="VERSION", help="that of the sources if absent")
    arguments = parser.parse_args()
    for path in build(arguments.folder, arguments.version):
        print(path)


if __name__ == "__main__":
    main()
