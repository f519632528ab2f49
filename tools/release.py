#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes everything of a release from one commit.

    tools/release.py [--out FOLDER] [--verify] [COMMIT]     COMMIT is HEAD if absent, FOLDER is dist/release

FOLDER gets the Debian packages, the tarball, the wheel and the source archive of the Python client, the site of the
documents, the archive of the sources, a bill of materials, and SHA256SUMS of them all. The release is built from the
archive that git makes of the commit, so a file that the commit does not have cannot get in.

The same commit gives the same bytes on machines with the same packages. With --verify the release is made again in
another folder, without ccache, and compared.
"""

import argparse
import gzip
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
SUMS = "SHA256SUMS"


def say(text):
    print(f"release: {text}", flush=True)


def run(*command, cwd, **variables):
    """Its output only if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, env={**os.environ, **variables})
    if done.returncode != 0:
        sys.exit(f"release: {command[0]} has failed:\n{done.stdout}")
    return done.stdout


def pack(path, write):
    """A gzip file without a name and a time of its own."""
    with open(path, "wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        write(packed)


def unpack_sources(commit, folder):
    archive = subprocess.run(["git", "-C", ROOT, "archive", "--format=tar", commit], check=True,
                             stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x", "-C", folder], input=archive, check=True)


def archive_sources(commit, name, path):
    archive = subprocess.run(["git", "-C", ROOT, "archive", "--format=tar", f"--prefix={name}/", commit], check=True,
                             stdout=subprocess.PIPE).stdout
    pack(path, lambda file: file.write(archive))


def archive_folder(folder, name, time, path):
    """A folder's files, with nothing of today's and of this user's."""

    def plain(member):
        member.mtime, member.uid, member.gid, member.uname, member.gname = time, 0, 0, "root", "root"
        member.mode = 0o755 if member.isdir() else 0o644
        return member

    def write(file):
        with tarfile.open(fileobj=file, mode="w", format=tarfile.GNU_FORMAT) as archive:
            for each in sorted(folder.rglob("*")):
                archive.add(each, f"{name}/{each.relative_to(folder)}", recursive=False, filter=plain)

    pack(path, write)


def make(commit, folder, **variables):
    """Everything of the commit, in `folder`, which is empty."""
    with tempfile.TemporaryDirectory(prefix="gpumux-release-") as scratch:
        sources = pathlib.Path(scratch) / "sources"
        sources.mkdir()
        unpack_sources(commit, sources)
        version, _, time = run("tools/version.sh", cwd=sources).split()
        variables = {"SOURCE_DATE_EPOCH": time, "CCACHE_BASEDIR": str(sources), **variables}
        say(f"building {version}")
        run("tools/build.sh", "dist", cwd=sources, **variables)
        say("packing")
        run("tools/build_packages.sh", folder, cwd=sources, **variables)
        run("tools/build_tarball.sh", folder, cwd=sources, **variables)
        run("tools/build_python.py", folder, cwd=sources, **variables)
        archive_sources(commit, f"gpumux-{version}", folder / f"gpumux-{version}-source.tar.gz")
        run("tools/make_sbom.py", "--build", "build/release", "--dist", "dist", "--out",
            folder / f"gpumux-{version}.spdx.json", cwd=sources, **variables)
        run("tools/make_reference.py", "--bin", "dist/bin", "--out", "build/reference", cwd=sources, **variables)
        run("tools/make_site.py", "--generated", "build/reference", cwd=sources, **variables)
        archive_folder(sources / "build" / "site", f"gpumux-{version}-docs", int(time),
                       folder / f"gpumux-{version}-docs.tar.gz")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(folder.iterdir())]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def differences(folder, other):
    """Names of files that are not the same in both."""
    names = {path.name for path in folder.iterdir()} | {path.name for path in other.iterdir()}
    return sorted(name for name in names if not (folder / name).exists() or not (other / name).exists() or
                  (folder / name).read_bytes() != (other / name).read_bytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commit", nargs="?", default="HEAD", metavar="COMMIT", help="default: HEAD")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist" / "release", metavar="FOLDER",
                        help="default: dist/release; what it holds goes")
    parser.add_argument("--verify", action="store_true", help="make it twice, once without ccache, and compare")
    arguments = parser.parse_args()
    folder = arguments.out.resolve()
    # A branch may move on meanwhile.
    commit = run("git", "rev-parse", "--verify", f"{arguments.commit}^{{commit}}", cwd=ROOT).strip()
    with tempfile.TemporaryDirectory(prefix="gpumux-made-") as scratch:
        made, again = pathlib.Path(scratch) / "made", pathlib.Path(scratch) / "again"
        made.mkdir()
        make(commit, made)
        if arguments.verify:
            say("once more, without ccache")
            again.mkdir()
            make(commit, again, CCACHE_DISABLE="1")
            if different := differences(made, again):
                sys.exit(f"release: the second time these were different: {', '.join(different)}")
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(made, folder)
    for path in sorted(folder.iterdir()):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
