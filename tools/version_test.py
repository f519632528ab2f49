#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tools/version.sh tells of a commit what its tags say, in a checkout and in a source archive. Method: a small history
with the script in it.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TIME = 1_700_000_000
VERSION = (ROOT / "VERSION").read_text().strip()
NOBODY = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null", "GIT_AUTHOR_NAME": "a",
          "GIT_AUTHOR_EMAIL": "a@localhost", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@localhost",
          "GIT_AUTHOR_DATE": f"{TIME} +0000", "GIT_COMMITTER_DATE": f"{TIME} +0000"}


class VersionTest(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-version-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree = self.folder / "tree"
        for name in ("VERSION", "tools/version.sh", "packaging/source.txt", ".gitattributes"):
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, self.tree / name)
        if not (ROOT / "packaging/source.txt").read_text().startswith("$Format"):
            self.skipTest("a source archive says its version already")
        self.git("init", "--quiet")
        self.commit("first")

    def git(self, *arguments):
        return subprocess.run(["git", "-C", self.tree, *arguments], check=True, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **NOBODY}).stdout.strip()

    def commit(self, text):
        (self.tree / "text").write_text(text)
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", text)

    def tell(self, tree, *arguments):
        return subprocess.run([tree / "tools/version.sh", *arguments], check=True, stdout=subprocess.PIPE, text=True,
                              env={**os.environ, **NOBODY}).stdout.splitlines()

    def expect(self, version):
        """The checkout and an archive of it both tell this; COMMIT stands for the commit."""
        commit = self.git("rev-parse", "HEAD")
        wanted = [version.replace("COMMIT", commit[:12]), commit, str(TIME)]
        self.assertEqual(self.tell(self.tree), wanted)
        archive = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        self.git("archive", "--output", archive / "a.tar", "HEAD")
        subprocess.run(["tar", "-xf", archive / "a.tar", "-C", archive], check=True)
        self.assertEqual(self.tell(archive), wanted)

    def test_before_the_first_release(self):
        self.expect(f"{VERSION}+{TIME}.gCOMMIT")

    def test_a_release_and_what_comes_after(self):
        self.git("tag", "v1.2.3")
        self.expect("1.2.3")
        self.commit("second")
        self.expect("1.2.3+1.gCOMMIT")
        self.git("tag", "--annotate", "v1.10.0", "-m", "release")
        self.expect("1.10.0")

    def test_tags_of_other_things_do_not_count(self):
        for tag in ("first", "v2.0.0-rc1", "view"):
            self.git("tag", tag)
        self.expect(f"{VERSION}+{TIME}.gCOMMIT")

    def test_the_list_of_changes_begins_with_it(self):
        heading = next(line for line in (ROOT / "CHANGELOG.md").read_text().splitlines() if line.startswith("## "))
        self.assertEqual(heading, f"## {VERSION}")

    def test_the_newest_tag_is_that_of_these_sources(self):
        done = subprocess.run(["git", "-C", ROOT, "describe", "--tags", "--match", "v[0-9]*", "--exclude", "*-*",
                               "--abbrev=0"], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            self.skipTest("no tag is to be seen")
        self.assertLessEqual([int(part) for part in done.stdout.strip().removeprefix("v").split(".")],
                             [int(part) for part in VERSION.split(".")])

    def test_the_python_client_is_of_it(self):
        self.assertIn(f'VERSION = "{VERSION}+unknown"', (ROOT / "python/src/gpumux/version.py").read_text())

    def test_changed_files_are_told(self):
        self.git("tag", "v1.2.3")
        (self.tree / "text").write_text("changed")
        self.assertEqual(self.tell(self.tree)[0], "1.2.3.dirty")

    def test_without_history(self):
        shutil.rmtree(self.tree / ".git")
        self.assertEqual(self.tell(self.tree)[:2], [f"{VERSION}+unknown", "unknown"])

    def test_the_history_of_a_folder_around_it_is_another_ones(self):
        within = self.tree / "within"
        shutil.copytree(self.tree / "tools", within / "tools")
        shutil.copytree(self.tree / "packaging", within / "packaging")
        shutil.copy(self.tree / "VERSION", within / "VERSION")
        self.assertEqual(self.tell(within)[0], f"{VERSION}+unknown")

    def test_files_that_say_the_same_stay(self):
        """Or each build would compile and link them."""
        made = self.folder / "made"
        self.tell(self.tree, "--write", made)
        times = {path: path.stat().st_mtime_ns for path in made.iterdir()}
        self.assertEqual({path.name for path in times}, {"version.cc", "version.txt"})
        self.assertEqual((made / "version.txt").read_text().splitlines(), self.tell(self.tree))
        self.tell(self.tree, "--write", made)
        self.assertEqual({path: path.stat().st_mtime_ns for path in times}, times)
        self.commit("second")
        self.tell(self.tree, "--write", made)
        for path, time in times.items():
            self.assertNotEqual(path.stat().st_mtime_ns, time, path)
        self.assertIn(self.git("rev-parse", "HEAD"), (made / "version.cc").read_text())

    def test_dpkg_sorts_versions(self):
        for earlier, later in (("0.1.0+1700000000.gfff", "0.1.0+1700000001.gaaa"), ("0.1.0", "0.1.0+1.gabc"),
                               ("0.1.0+9.gfff", "0.1.0+10.gaaa"), ("0.1.0+1700000001.gaaa", "0.1.1")):
            done = subprocess.run(["dpkg", "--compare-versions", earlier, "lt", later], check=False)
            self.assertEqual(done.returncode, 0, (earlier, later))


if __name__ == "__main__":
    unittest.main()
