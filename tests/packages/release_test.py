#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A release has everything, names its commit, and is the same bytes in another folder.

Method: tools/release.py makes one of HEAD, in another folder, with another umask and in another time zone. The files
that it shares with dist/ are compared with those made of dist/. A clone in a folder of another name compiles some
programs without ccache, and they are compared with the build's. The bill of materials must name libraries that the
programs are known to have. Needs `make build`.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools")]
import documents  # noqa: E402
import make_sbom  # noqa: E402
import release  # noqa: E402

BUILD = ROOT / "build" / "release"
PACKAGES = ("libgpumux", "gpumux", "gpumux-kubernetes", "gpumux-slurm", "gpumux-sim")
# Compiled once more without ccache: all of what is loaded into programs, and two small programs. A release's --verify
# compiles the rest.
PARTS = {"gpumux_preload": "lib/libgpumux.so", "gpumux_runner_program": "bin/gpumux-runner",
         "gpumux_cdi_hook": "bin/gpumux-cdi-hook", "simulated_nvml": "lib/sim/libnvidia-ml.so.1"}


def git(folder, *arguments, **options):
    return subprocess.run(["git", "-C", folder, *arguments], check=True, stdout=subprocess.PIPE, **options).stdout


def built_version():
    return (ROOT / "dist" / "version.txt").read_text(encoding="utf-8").split()


class Made(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-release-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)


@unittest.skipUnless((ROOT / ".git").exists(), "a release is made of a commit, and this folder has no history")
class ReleaseTest(Made):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.out, scratch = cls.folder / "out", cls.folder / "another folder"
        scratch.mkdir()
        subprocess.run([ROOT / "tools" / "release.py", "--out", cls.out], check=True, stdout=subprocess.DEVNULL,
                       umask=0o077, env={**os.environ, "TZ": "Asia/Tokyo", "TMPDIR": str(scratch)})
        archive, = cls.out.glob("gpumux-*-source.tar.gz")
        cls.version = archive.name.removeprefix("gpumux-").removesuffix("-source.tar.gz")
        subprocess.run(["tar", "-xzf", archive, "-C", cls.folder], check=True)
        cls.sources = cls.folder / f"gpumux-{cls.version}"

    def test_everything_is_there(self):
        names = {path.name for path in self.out.iterdir()}
        version = self.version
        wanted = {f"{name}_{version}_amd64.deb" for name in PACKAGES} | {
            f"gpumux-{version}-linux-x86_64.tar.gz", f"gpumux-{version}-source.tar.gz", f"gpumux-{version}.spdx.json",
            f"gpumux-{version}-docs.tar.gz", f"gpumux-{version}.tar.gz", f"gpumux-{version}-py3-none-any.whl",
            "SHA256SUMS"}
        self.assertEqual(names, wanted)
        checked = subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=self.out, text=True,
                                 stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(len(checked.splitlines()), len(names) - 1)

    def test_the_archive_of_the_sources_tells_its_version(self):
        told = subprocess.run([self.sources / "tools/version.sh"], stdout=subprocess.PIPE, text=True, check=True)
        commit = git(ROOT, "rev-parse", "HEAD", text=True).strip()
        self.assertEqual(told.stdout.split()[:2], [self.version, commit])

    def test_it_is_what_dist_gives(self):
        if built_version()[0] != self.version:
            self.skipTest("the build has changes that HEAD does not have")
        made = self.folder / "made"
        for script in ("build_packages.sh", "build_tarball.sh", "build_python.py"):
            subprocess.run([ROOT / "tools" / script, made], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(len(list(made.iterdir())), len(PACKAGES) + 3)
        for path in made.iterdir():
            self.assertEqual(path.read_bytes(), (self.out / path.name).read_bytes(), path.name)

    def test_differences_are_found(self):
        """A file that is missing, and one that is different, in either folder."""
        one, other = self.folder / "one", self.folder / "other"
        for folder in (one, other):
            folder.mkdir()
            for name in ("same", "different"):
                (folder / name).write_text(name)
        self.assertEqual(release.differences(one, other), [])
        (other / "different").write_text("another")
        (one / "gone").touch()
        self.assertEqual(release.differences(one, other), ["different", "gone"])
        self.assertEqual(release.differences(other, one), ["different", "gone"])


@unittest.skipUnless((ROOT / ".git").exists(), "the version of a copy comes from the history")
class AnotherFolderTest(Made):

    def test_the_same_bytes(self):
        other = self.folder / "a folder of another name"
        git(ROOT, "clone", "--quiet", ROOT, other)
        # The folder's changes, too, for somebody who works on it.
        if changes := git(ROOT, "diff", "--binary", "HEAD"):
            git(other, "apply", "--index", "-", input=changes)
        for name in documents.names(ROOT):
            if not (other / name).exists():
                (other / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / name, other / name)
        environment = {**os.environ, "CCACHE_DISABLE": "1"}
        subprocess.run(["cmake", "--preset", "release"], cwd=other, check=True, stdout=subprocess.DEVNULL)
        jobs = subprocess.run([ROOT / "tools/jobs.sh"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        subprocess.run(["cmake", "--build", "build/release", "--parallel", jobs, "--target", *PARTS], cwd=other,
                       check=True, stdout=subprocess.DEVNULL, env=environment)
        for path in PARTS.values():
            self.assertEqual((other / "build/release" / path).read_bytes(), (BUILD / path).read_bytes(), path)


class BillOfMaterialsTest(Made):

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        out = cls.folder / "bill.json"
        subprocess.run([ROOT / "tools/make_sbom.py", "--build", BUILD, "--dist", ROOT / "dist", "--out", out],
                       check=True)
        cls.text = out.read_text(encoding="utf-8")
        cls.bill = json.loads(cls.text)
        cls.names = {package["SPDXID"]: package["name"] for package in cls.bill["packages"]}

    def has(self, file, relation):
        """Names of the packages that a file of dist/ has this relation with."""
        own, = (each["SPDXID"] for each in self.bill["files"] if each["fileName"] == f"./{file}")
        return {self.names[each["relatedSpdxElement"]] for each in self.bill["relationships"]
                if each["spdxElementId"] == own and each["relationshipType"] == relation}

    def test_known_parts_of_programs(self):
        runtime = {"libstdc++-12-dev", "libgcc-12-dev", "libc6-dev"}
        self.assertLessEqual({"libsqlite3-dev", "libsqlitecpp-dev"} | runtime, self.has("bin/gpumuxd", "STATIC_LINK"))
        self.assertLessEqual({"libgrpc-dev", "libprotobuf-dev"}, self.has("bin/gpumux-kubelet-plugin", "STATIC_LINK"))
        self.assertLessEqual({"libboost1.81-dev", "nlohmann-json3-dev", "libtomlplusplus-dev"},
                             self.has("bin/gpumuxd", "GENERATED_FROM"))
        self.assertEqual(self.has("bin/gpumux", "CONTAINS"), {"preact"})
        self.assertEqual(self.has("lib/libgpumux.so", "STATIC_LINK"), runtime)
        for file in ("lib/libgpumux.so", "bin/gpumux", "bin/gpumuxd", "demo/gpumux_demo"):
            self.assertEqual(self.has(file, "DYNAMIC_LINK"), {"libc6"}, file)
        for file in ("bin/gpumux-kubelet-plugin", "libexec/gpumux/gpumux-cdi-hook"):
            self.assertEqual(self.has(file, "DYNAMIC_LINK"), set(), file)

    def test_versions_are_dpkgs(self):
        for package in self.bill["packages"]:
            if package["SPDXID"].startswith("SPDXRef-deb-"):
                shown = subprocess.run(["dpkg-query", "-W", "-f", "${Version}\n", package["name"]], text=True,
                                       stdout=subprocess.PIPE, check=True).stdout.split()
                self.assertIn(package["versionInfo"], shown)
        version, commit, _ = built_version()
        product, = (package for package in self.bill["packages"] if package["name"] == "gpumux")
        self.assertEqual((product["versionInfo"], product["sourceInfo"]), (version, f"commit {commit}"))

    def test_the_document_is_whole(self):
        """Every reference is there; SPDX has rules for identifiers and times."""
        known = {each["SPDXID"] for each in (*self.bill["packages"], *self.bill["files"], self.bill)}
        self.assertEqual(len(known), len(self.bill["packages"]) + len(self.bill["files"]) + 1)
        for name in known:
            self.assertRegex(name, r"^SPDXRef-[A-Za-z0-9.-]+$")
        for each in self.bill["relationships"]:
            self.assertLessEqual({each["spdxElementId"], each["relatedSpdxElement"]}, known)
        self.assertRegex(self.bill["creationInfo"]["created"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        programs = {f"./{path.relative_to(ROOT / 'dist')}" for path in (ROOT / "dist").rglob("*")
                    if path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == make_sbom.ELF
                    and not re.search(r"dist/(packages|tarball|release)/", str(path))}
        self.assertEqual({each["fileName"] for each in self.bill["files"]}, programs)

    def test_a_file_of_no_package_is_refused(self):
        with self.assertRaisesRegex(SystemExit, "no package owns"):
            make_sbom.Packages().owner("/usr/local/lib/libunknown.a")


if __name__ == "__main__":
    unittest.main(verbosity=2)
