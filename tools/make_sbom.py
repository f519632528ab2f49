#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a bill of materials (SPDX 2.3, JSON) of what dist/ holds, and of what its programs carry within them.

    tools/make_sbom.py --build build/release --dist dist --out FILE

Each program and library is linked once more, and the linker tells which objects and members of archives are in it. The
build knows which headers each of our objects was made from. dpkg knows the package and version of each archive and
header. A file that no package owns is an error. The checksums are those of the files in packages and in the tarball.
"""

import argparse
import datetime
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
ELF = b"\x7fELF"
# The object that has the page of `gpumux web`, and the packages that the page is made of.
PAGE_OBJECT = "page_bytes.S.o"
PAGE_LOCK = ROOT / "web" / "page" / "package-lock.json"
LICENSE = "Apache-2.0"
UNKNOWN = "NOASSERTION"


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True,
                          **options).stdout


class Packages:
    """Debian's package of each file of this machine."""

    def __init__(self, folder=pathlib.Path("/var/lib/dpkg/info")):
        self.owners = {}
        for listed in folder.glob("*.list"):
            for path in listed.read_text(encoding="utf-8").splitlines():
                self.owners.setdefault(self.merged(path), listed.stem.partition(":")[0])
        self.versions = {}
        for line in run("dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture} ${source:Package}\n"
                        ).splitlines():
            name, *rest = line.split()
            self.versions[name] = rest

    @staticmethod
    def merged(path):
        """Debian 12 has /lib in /usr, and its packages do not know."""
        return re.sub(r"^/(lib|lib64|bin|sbin)/", r"/usr/\1/", path)

    def owner(self, path):
        for name in (os.path.normpath(path), os.path.realpath(path)):
            if self.merged(name) in self.owners:
                return self.owners[self.merged(name)]
        raise SystemExit(f"make_sbom: no package owns {path}: what is it?")


class Build:
    """A build, as ninja and the linker know it."""

    def __init__(self, folder):
        self.folder = folder.resolve()
        outputs = [line.partition(":")[0] for line in run("ninja", "-C", folder, "-t", "targets", "all").splitlines()
                   if re.search(r": CXX_(EXECUTABLE|SHARED_LIBRARY|MODULE_LIBRARY)_LINKER", line)]
        self.links = {os.path.basename(output): output for output in outputs if "CMakeFiles" not in output}
        self.headers = self.read_headers()

    def read_headers(self):
        """The files that each object was made from."""
        found, name = {}, None
        for line in run("ninja", "-C", self.folder, "-t", "deps").splitlines():
            if line.startswith(" "):
                found[name].append(os.path.join(self.folder, line.strip()))
            elif ": #deps" in line:
                name = line.partition(":")[0]
                found[name] = []
        return found

    def inputs(self, name):
        """The objects of this build, members of archives, and shared libraries that a link puts together."""
        command = run("ninja", "-C", self.folder, "-t", "commands", "-s", self.links[name])
        words = next(words for part in command.split("&&") if "-o" in (words := shlex.split(part)))
        with tempfile.TemporaryDirectory() as scratch:
            listed = pathlib.Path(scratch) / "map"
            words[words.index("-o") + 1] = f"{scratch}/linked"
            subprocess.run([*words, f"-Wl,-Map={listed}"], cwd=self.folder, check=True, stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)
            text = listed.read_text(encoding="utf-8", errors="replace")
        # The list of members comes first, and a line ends behind a long name.
        members, _, rest = text.partition("\nDiscarded input sections\n")
        found = set(re.findall(r"^(\S+\.a\(\S+\.o\))", members, re.MULTILINE))
        found |= {path for path in re.findall(r"^LOAD (\S+)$", rest, re.MULTILINE) if not path.endswith(".a")}
        return found

    def object_of(self, loaded):
        """The build's own object for `x.o`, or for `libx.a(y.cc.o)`; none for a file of the system's."""
        path, _, member = loaded.rstrip(")").partition("(")
        if os.path.isabs(path) and not path.startswith(f"{self.folder}/"):
            return None
        path = os.path.relpath(os.path.join(self.folder, path), self.folder)
        if not member:
            return path
        folder = os.path.dirname(path)
        target = os.path.basename(path).removeprefix("lib").removesuffix(".a")
        matching = [name for name in self.headers if name.endswith(f"/{member}") and
                    name.startswith(f"{folder}/CMakeFiles/{target}.dir/")]
        return matching[0] if matching else f"{folder}/CMakeFiles/{target}.dir/{member}"


def identifier(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]+", "-", "-".join(parts))


def debian_package(packages, name):
    version, architecture, source = packages.versions[name]
    return {"SPDXID": identifier("deb", name), "name": name, "versionInfo": version, "supplier": "Organization: Debian",
            "downloadLocation": UNKNOWN, "filesAnalyzed": False, "licenseConcluded": UNKNOWN,
            "licenseDeclared": UNKNOWN, "copyrightText": UNKNOWN,
            "sourceInfo": f"built from Debian's source package {source}",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/debian/{name}@{version}?arch={architecture}"}]}


def page_packages():
    """Packages of npm whose code is in the page's script."""
    lock = json.loads(PAGE_LOCK.read_text(encoding="utf-8"))["packages"]
    for path, package in sorted(lock.items()):
        if path and not package.get("dev"):
            name = path.rpartition("node_modules/")[2]
            yield {"SPDXID": identifier("npm", name), "name": name, "versionInfo": package["version"],
                   "downloadLocation": UNKNOWN, "filesAnalyzed": False,
                   "licenseConcluded": package["license"], "licenseDeclared": package["license"],
                   "copyrightText": UNKNOWN,
                   "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                     "referenceLocator": f"pkg:npm/{name}@{package['version']}"}]}


def checksums(path):
    with tempfile.NamedTemporaryFile() as stripped:
        run(ROOT / "tools" / "strip.sh", path, stripped.name)
        data = pathlib.Path(stripped.name).read_bytes()
    return [{"algorithm": "SHA1", "checksumValue": hashlib.sha1(data).hexdigest()},
            {"algorithm": "SHA256", "checksumValue": hashlib.sha256(data).hexdigest()}]


def carried(build, packages, name):
    """(relation, package) of each Debian package that a program has code of, and the objects of ours in it."""
    found, objects = set(), set()
    for loaded in build.inputs(name):
        ours = build.object_of(loaded)
        if ours is None:
            path = os.path.realpath(loaded.partition("(")[0])
            if not re.search(r"\.so(\.\d+)*$", path):
                found.add(("STATIC_LINK", packages.owner(path)))
            elif pathlib.Path(path).read_bytes()[:4] == ELF:  # others are scripts of the linker
                found.add(("DYNAMIC_LINK", packages.owner(path)))
            continue
        objects.add(ours)
        for header in build.headers.get(ours, []):
            header = os.path.normpath(header)
            if not header.startswith((f"{ROOT}/", f"{build.folder}/")):
                found.add(("GENERATED_FROM", packages.owner(header)))
    return found, objects


def describe(build, dist):
    packages = Packages()
    version, commit, time = (dist / "version.txt").read_text(encoding="utf-8").split()
    time = int(os.environ.get("SOURCE_DATE_EPOCH") or time)
    product = {"SPDXID": "SPDXRef-gpumux", "name": "gpumux", "versionInfo": version, "downloadLocation": UNKNOWN,
               "filesAnalyzed": False, "licenseConcluded": LICENSE, "licenseDeclared": LICENSE,
               "copyrightText": "The gpumux developers", "sourceInfo": f"commit {commit}"}
    files, others, relations = [], {}, set()
    for path in sorted(dist.rglob("*")):
        if path.is_symlink() or not path.is_file() or path.read_bytes()[:4] != ELF:
            continue
        own = identifier("file", str(path.relative_to(dist)))
        files.append({"SPDXID": own, "fileName": f"./{path.relative_to(dist)}", "checksums": checksums(path),
                      "licenseConcluded": LICENSE, "copyrightText": UNKNOWN})
        relations.add((product["SPDXID"], "CONTAINS", own))
        debian, objects = carried(build, packages, path.name)
        for relation, name in debian:
            others[name] = debian_package(packages, name)
            relations.add((own, relation, others[name]["SPDXID"]))
        if any(name.endswith(PAGE_OBJECT) for name in objects):
            for package in page_packages():
                others[package["name"]] = package
                relations.add((own, "CONTAINS", package["SPDXID"]))
    relations.add(("SPDXRef-DOCUMENT", "DESCRIBES", product["SPDXID"]))
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"gpumux-{version}",
        "documentNamespace": f"https://gpumux.io/spdx/gpumux-{version}-{commit}",
        "creationInfo": {"creators": ["Tool: gpumux-make_sbom"], "created":
                         datetime.datetime.fromtimestamp(time, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")},
        "packages": [product, *(others[name] for name in sorted(others))], "files": files,
        "relationships": [{"spdxElementId": one, "relationshipType": relation, "relatedSpdxElement": other}
                          for one, relation, other in sorted(relations)]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="the build that dist/ was filled from")
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    text = json.dumps(describe(Build(arguments.build), arguments.dist.resolve()), indent=1)
    arguments.out.write_text(text + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
