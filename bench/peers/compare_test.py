#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goal: the comparison runs, shows failures as failures, and leaves nothing running. Method: compare_test.py DIST runs
it on the simulated GPU, short, with the plain driver and gpumux. No time is judged."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "experiment"))

from machine import Daemon, Machine  # noqa: E402

DIST = sys.argv.pop(1) if len(sys.argv) > 1 else "dist"


def run(*arguments, **variables):
    return subprocess.run([sys.executable, HERE / "compare.py", "--gpu", "simulated", "--dist", DIST, *arguments],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          env=dict(os.environ, **variables))


def processes_with(word):
    """Processes that have it in their environment."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            if word in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            pass
    return found


class Compare(unittest.TestCase):

    def test_two_ways_and_three_works(self):
        with tempfile.TemporaryDirectory(prefix="gpumux-peers-") as folder:
            out = pathlib.Path(folder)
            mark = f"peers-test-{os.getpid()}"
            works = ["small-2", "requests-graph", "memory"]
            done = run("--out", out, "--rounds", "1", "--scale", "0.02", "--only", *works, PEERS_TEST_MARK=mark)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            runs = json.loads((out / "runs.json").read_text())["runs"]
            found = {(one["work"], one["way"]): one for one in runs}
            self.assertEqual({way for _, way in found}, {"alone", "plain", "gpumux"})
            self.assertEqual({work for work, _ in found}, set(works))
            # The plain driver has no memory for the third program, and that is a result.
            self.assertIn("failed with CUDA error 2", found["memory", "plain"]["failed"])
            del found["memory", "plain"]
            self.assertEqual([one for one in found.values() if "failed" in one], [])
            self.assertEqual(len(found["memory", "gpumux"]["figures"]["steps_per_s"]), 3)
            self.assertIn("p99", found["requests-graph", "gpumux"]["figures"]["latency_ms"])
            table = (out / "table.md").read_text()
            self.assertIn("| failed 1 of 1:", table)
            self.assertIn("MPS: MPS needs a real GPU", table)
            ElementTree.parse(out / "comparison.svg")
            self.assertEqual(processes_with(mark.encode()), [])

    def test_rounds_are_added(self):
        with tempfile.TemporaryDirectory(prefix="gpumux-peers-") as folder:
            asked = ["--out", folder, "--rounds", "1", "--only", "small-2", "--ways", "gpumux"]
            nothing = run("--more", "--scale", "0.02", *asked)
            self.assertEqual(nothing.returncode, 1, nothing.stdout)
            self.assertIn("no rounds can be added", nothing.stderr)
            for more in ([], ["--more"]):
                done = run(*more, "--scale", "0.02", *asked)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            text = (pathlib.Path(folder) / "runs.json").read_text()
            self.assertEqual([one["round"] for one in json.loads(text)["runs"]], [1, 1, 2, 2])
            self.assertIn("rounds: 2", (pathlib.Path(folder) / "table.md").read_text())
            other = run("--more", "--scale", "0.03", *asked)
            self.assertEqual(other.returncode, 1, other.stdout)
            self.assertIn("has other times", other.stderr)
            self.assertEqual((pathlib.Path(folder) / "runs.json").read_text(), text)

    def test_a_part_of_the_memory_is_the_same_whatever_a_program_is_shown(self):
        # A program of 300 MiB sees a GPU of 300 MiB. Two fifths of them fit, and two fifths of a GiB do not.
        with tempfile.TemporaryDirectory(prefix="gpumux-peers-") as folder:
            machine = Machine(DIST, simulated=True)
            self.addCleanup(machine.remove)
            daemon = Daemon(machine, pathlib.Path(folder) / "log", {})
            self.addCleanup(daemon.end)
            for gpu_memory, ends_well in ((0, True), (1 << 30, False)):
                done = subprocess.run(
                    [machine.dist / "bin" / "gpumux", "run", "--quiet", "--mem", "300MiB", "--", sys.executable,
                     HERE.parent / "experiment" / "task.py", "batch", "--model", "spin", "--log",
                     pathlib.Path(folder) / "task", "--ballast", "0.4", "--gpu-memory", str(gpu_memory)],
                    env=dict(machine.environment, **daemon.environment()), input="warm\ngo 0 0\n", text=True,
                    capture_output=True, check=False)
                self.assertEqual("ready" in done.stdout, ends_well, done.stdout + done.stderr)
                self.assertEqual("CUDA error 2" in done.stderr, not ends_well, done.stderr)

    def test_a_peer_that_is_not_there_is_named(self):
        with tempfile.TemporaryDirectory(prefix="gpumux-peers-") as folder:
            done = run("--out", folder, "--rounds", "1", "--scale", "0.02", "--only", "small-2", "--ways", "hami",
                       "--peer", f"hami={folder}")
            self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
            self.assertIn("libvgpu.so is missing", done.stderr)

    def test_wrong_options(self):
        for options in (["--peer", "hami"], ["--peer", "nobody=/"], ["--rounds", "0"], ["--only", "nothing"],
                        ["--more"]):
            self.assertEqual(run(*options).returncode, 2, options)


if __name__ == "__main__":
    unittest.main()
