#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The whole experiment on the simulated GPU, short: run_test.py DIST. Goal: each kind of configuration runs, what it
writes belongs together, and what it says of itself is true. Method: one of each kind, a second each, and a budget that
lets nothing run; then the files are read. No figure is judged but those that hold on any machine.
"""

import base64
import csv
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import xml.etree.ElementTree as ElementTree

import configurations

HERE = pathlib.Path(__file__).resolve().parent
DIST = sys.argv.pop(1) if len(sys.argv) > 1 else "dist"


def run(out, *arguments, **variables):
    return subprocess.run([sys.executable, HERE / "run.py", "--gpu", "simulated", "--dist", DIST, "--out", out,
                           *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False, env=dict(os.environ, **variables))


class Whole(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="gpumux-experiment-")
        self.addCleanup(folder.cleanup)
        self.out = pathlib.Path(folder.name)

    def rows(self, name):
        with open(self.out / "raw" / name, encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def test_one_of_each_kind(self):
        done = run(self.out, "--seconds", "0.8", "--only", "native", "priority", "n-sync-10+keeps")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        summary = json.loads((self.out / "summary.json").read_text())
        figures = {entry["name"]: entry["summary"] for entry in summary["configurations"]}
        self.assertEqual(list(figures), ["alone-latency", "alone-batch", "native", "priority", "n-sync-10+keeps"])
        self.assertEqual(figures["alone-batch"]["kept"]["median"], 1)
        # The kernels of one request run for 3 ms, whoever has the GPU.
        for name in set(figures) - {"alone-batch"}:
            self.assertGreaterEqual(figures[name]["p50"]["median"], 3, name)
        # Natively there are no leases; a task that keeps the GPU leaves the other one nothing.
        self.assertNotIn("latency_held", figures["native"])
        self.assertGreater(figures["n-sync-10+keeps"]["latency_held"]["median"], 0.99)
        # (but for its part of the step that is under way when the other one has ended)
        self.assertLess(figures["n-sync-10+keeps"]["kept"]["median"], 0.05)
        # The same arrivals in each, also of those that were not answered.
        arrivals = {name: [row["arrival_ns"] for row in self.rows(f"{name}.1.requests.csv")]
                    for name in set(figures) - {"alone-batch"}}
        self.assertEqual(len({tuple(times) for times in arrivals.values()}), 1)
        self.assertGreater(len(arrivals["native"]), 3)
        self.assertGreater(len(self.rows("alone-batch.1.steps.csv")), 3)
        self.assertTrue({row["task"] for row in self.rows("priority.1.leases.csv")} >= {"latency", "batch"})
        requests = figures["native"]["requests"]
        page = (self.out / "report.html").read_text(encoding="utf-8")
        for name in ("latency.svg", "latency-wrapper.svg", "trade.svg", "timeline.svg"):
            picture = "".join(ElementTree.parse(self.out / name).getroot().itertext())
            for words in ("simulated", f"{os.cpu_count()} CPUs", summary["facts"]["date"], "latency: 10 kernels",
                          f"{requests} requests of each configuration"):
                self.assertIn(words, picture, name)
            self.assertIn(base64.b64encode((self.out / name).read_bytes()).decode(), page, name)
        self.assertIn("gpumux, priority 10", page)
        self.assertNotIn("http:", re.sub(r'base64,[^"]*', "", page))
        self.assertIn("gpumux, priority 10", (self.out / "table.txt").read_text())

    def test_without_matplotlib_there_are_figures_and_no_pictures(self):
        modules = self.out / "modules"
        modules.mkdir()
        (modules / "matplotlib.py").write_text('raise ModuleNotFoundError("not here", name="matplotlib")')
        done = run(self.out, "--seconds", "0.5", "--only", "native", PYTHONPATH=str(modules))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("no pictures: matplotlib is not installed for", done.stdout)
        self.assertIn("both, plain driver", (self.out / "table.txt").read_text())
        self.assertEqual(list(self.out.glob("*.svg")), [])
        self.assertIn("both, plain driver", (self.out / "report.html").read_text(encoding="utf-8"))

    def test_a_setting_that_there_is_not_is_no_measurement(self):
        done = run(self.out, "--seconds", "0.5", "--only", "default", "--daemon", "in_fligt=2ms")
        self.assertIn("default: FAILED: gpumuxd did not start", done.stdout)
        self.assertIn("in_fligt", done.stdout)

    def test_what_the_budget_has_no_time_for_is_said(self):
        done = run(self.out, "--budget", "1")
        self.assertEqual(done.returncode, 1)  # nothing was measured at all
        for configuration in configurations.every():
            self.assertIn(f"{configuration.name}: left out", done.stdout)
        self.assertIn("left out for lack of time (--budget 1): alone-latency, alone-batch, native",
                      (self.out / "table.txt").read_text())

    def test_interrupted(self):
        """The run writes what it has measured until then, and leaves no process."""
        temporary = self.out / "t"
        temporary.mkdir()
        process = subprocess.Popen([sys.executable, HERE / "run.py", "--gpu", "simulated", "--dist", DIST, "--out",
                                    self.out, "--seconds", "1", "--only", "default"], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, text=True, env=dict(os.environ, TMPDIR=str(temporary)))
        def running():
            """Processes that were told a path in the temporary folder, as daemons and tasks are."""
            words = [self.words(path) for path in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
            return [text for text in words if str(temporary) in text]

        deadline = time.monotonic() + 30
        while not any(log.stat().st_size for log in temporary.glob("*/default.1.batch")):
            self.assertLess(time.monotonic(), deadline, "the measurement with a daemon did not begin")
            time.sleep(0.01)
        # Two tasks, and the daemon with its doorkeepers.
        self.assertGreaterEqual(len(running()), 3)
        process.terminate()
        deadline = time.monotonic() + 30
        text = process.stdout.read()
        process.stdout.close()
        self.assertEqual(process.wait(60), 130)
        self.assertIn("interrupted", text)
        self.assertIn("interrupted", (self.out / "table.txt").read_text())
        # A doorkeeper ends when it reads the end of its daemon's socket.
        while running():
            self.assertLess(time.monotonic(), deadline, running())
            time.sleep(0.01)
        self.assertEqual(list(temporary.iterdir()), [])

    @staticmethod
    def words(path):
        try:
            return path.read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            return ""

    def test_wrong_usage(self):
        for arguments, words in ((["--only", "nativ"], "no configuration is called nativ"),
                                 (["--batch-model", "gpt"], "needs PyTorch"), (["--seconds", "0"], "--seconds must be"),
                                 (["--dist", str(self.out)], "run make build")):
            done = run(self.out, *arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)


if __name__ == "__main__":
    unittest.main()
