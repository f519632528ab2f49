#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`make install` never shows anybody a part of a file. `make uninstall` takes no library from programs that load it.

Method: the script runs on a tree of its own, with small files for what a build makes, into a DESTDIR. The kernel
(inotify) tells of every change of a name in the installed folders. A process has the library mapped meanwhile.
"""

import ctypes
import mmap
import os
import pathlib
import re
import shutil
import struct
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
IN_MODIFY, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x2, 0x80, 0x100, 0x200


class Changes:
    """The changes of names in folders from now on."""

    def __init__(self, folders):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self.libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in folders:
            mask = IN_MODIFY | IN_MOVED_TO | IN_CREATE | IN_DELETE
            if self.libc.inotify_add_watch(self.fd, os.fsencode(folder), mask) < 0:
                raise OSError(ctypes.get_errno(), f"cannot watch {folder}")

    def take(self):
        """(kind of change, name) in order."""
        found = []
        while True:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                os.close(self.fd)
                return found
            while data:
                _, mask, _, length = struct.unpack_from("iIII", data)
                found.append((mask, os.fsdecode(data[16:16 + length].rstrip(b"\0"))))
                data = data[16 + length:]


class Install(unittest.TestCase):

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-install-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.tree, self.dest = self.folder / "tree", self.folder / "dest"
        (self.tree / "tools").mkdir(parents=True)
        for name in ("install.sh", "version.sh"):
            shutil.copy(ROOT / "tools" / name, self.tree / "tools")
        for name in ("packaging", "slurm", "web", "docs", "LICENSE"):
            (self.tree / name).symlink_to(ROOT / name)
        self.library = self.dest / "usr" / "lib" / "libgpumux.so"
        self.preload = self.dest / "etc" / "ld.so.preload"
        (self.tree / "dist").mkdir()
        (self.tree / "dist" / "version.txt").write_text("1.2.3\nabc\n0\n")
        # It names all that a build makes.
        message = self.run_script("install", code=1).stderr
        self.built = [self.tree / name for name in re.findall(r"dist/[^ ;]+", message)]
        self.assertTrue(any(path.name == "libgpumux.so" for path in self.built), message)
        # As many pages as there are commands.
        self.built += [self.tree / "dist/share/man/man1" / name for name in ("gpumux-run.1", "mgpu_srun.1")]
        # Built where Slurm's headers are, and not missed elsewhere.
        self.built.append(self.tree / "dist/lib/gpumux/spank_gpumux.so")
        self.build("first")

    def build(self, what):
        for path in self.built:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{what} {path.name}\n" * 1000)

    def run_script(self, action, code=0):
        done = subprocess.run([self.tree / "tools" / "install.sh", action], capture_output=True, text=True, check=False,
                              env={"PATH": os.environ["PATH"], "DESTDIR": str(self.dest)})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def installed(self):
        return sorted(path for path in self.dest.rglob("*") if not path.is_dir())

    def test_what_is_installed_comes_whole(self):
        listed = self.run_script("install").stdout.split()
        files = self.installed()
        self.assertEqual(sorted(listed), [str(path) for path in files])
        inodes = {path: path.lstat().st_ino for path in files}
        with open(self.library, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        self.build("second")
        changes = Changes({path.parent for path in files})
        self.run_script("install")
        names = {path.name for path in files}
        of_names = [(kind, name) for kind, name in changes.take() if name in names]
        self.assertEqual(sorted(of_names), sorted((IN_MOVED_TO, path.name) for path in files))
        self.assertEqual(self.installed(), files)
        for path, inode in inodes.items():
            self.assertNotEqual(path.lstat().st_ino, inode, path)
        # A process that has the old library goes on with it.
        self.assertTrue(mapped[:].startswith(b"first "))
        self.assertTrue(self.library.read_text().startswith("second "))
        self.assertEqual(self.library.stat().st_mode & 0o777, 0o644)
        unit = self.dest / "usr" / "lib" / "systemd" / "system" / "gpumuxd.service"
        self.assertEqual(unit.stat().st_mode & 0o777, 0o644)

    def test_nothing_stays_but_the_configuration_folder(self):
        listed = self.run_script("install").stdout
        for name in ("man1/gpumux-run.1", "man1/mgpu_srun.1", "completions/mgpu_srun", "_gpumuxd", "bin/mgpu_srun"):
            self.assertIn(f"/{name}\n", listed)
        self.assertEqual(os.readlink(self.dest / "usr/bin/mgpu_srun"), "gpumux")
        # An older version had links to gpumux(1) there.
        (self.dest / "usr/share/man/man1/mgpu_queue.1").symlink_to("gpumux.1")
        other = self.dest / "usr/share/man/man1/gpumuxer.1"
        other.write_text("another program's")
        self.run_script("uninstall")
        self.assertEqual(self.installed(), [other])

    def test_a_leaf_product_that_the_build_left_out(self):
        (self.tree / "dist" / "left_out.txt").write_text("slurm\n")
        for path in self.built:
            if path.name == "spank_gpumux.so":
                path.unlink()
        listed = self.run_script("install").stdout
        self.assertNotRegex(listed, "spank|slurm-prolog|job_submit")
        self.assertIn("/bin/gpumux\n", listed)
        # Of an earlier build.
        prolog = self.dest / "usr/libexec/gpumux/slurm-prolog"
        prolog.write_text("old")
        self.run_script("uninstall")
        self.assertFalse(prolog.exists())

    def test_other_versions_stay_for_containers_that_have_them(self):
        containers = self.dest / "usr" / "lib" / "gpumux" / "containers"
        old = containers / "0.0.1" / "libgpumux.so"
        old.parent.mkdir(parents=True)
        old.write_text("old")
        self.run_script("install")
        versions = [folder.name for folder in containers.iterdir() if folder.name != "0.0.1"]
        self.assertEqual(versions, ["1.2.3"])
        self.assertEqual((containers / versions[0] / "libgpumux.so").read_text(), self.library.read_text())
        self.assertIn(str(containers), self.run_script("uninstall").stdout)
        self.assertEqual(self.installed(), [old])

    def test_units_name_the_prefix(self):
        subprocess.run([self.tree / "tools" / "install.sh", "install"], capture_output=True, check=True,
                       env={"PATH": os.environ["PATH"], "DESTDIR": str(self.dest), "PREFIX": "/opt/g"})
        units = self.dest / "opt" / "g" / "lib" / "systemd" / "system"
        self.assertIn("ExecStart=/opt/g/bin/gpumuxd\n", (units / "gpumuxd.service").read_text())
        self.assertIn("ExecStart=/opt/g/libexec/", (units / "gpumux-runner@.service").read_text())

    def test_uninstall_refuses_while_every_program_loads_the_library(self):
        self.run_script("install")
        files = self.installed()
        self.preload.parent.mkdir(exist_ok=True)
        for entry in ("/usr/lib/libgpumux.so", "/lib/other.so:libgpumux.so # ours", "a.so\n/usr/$LIB/libgpumux.so"):
            with self.subTest(entry):
                self.preload.write_text(entry + "\n")
                message = self.run_script("uninstall", code=1).stderr
                self.assertIn(str(self.preload), message)
                self.assertEqual([path for path in self.installed() if path != self.preload], files)
        self.preload.write_text("# /usr/lib/libgpumux.so\n/usr/lib/libgpumux.so.old libgpumux.so.d/x.so")
        self.run_script("uninstall")
        self.assertEqual(self.installed(), [self.preload])


if __name__ == "__main__":
    unittest.main()
