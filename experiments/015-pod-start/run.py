#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long a pod with gpumux takes to start, and a cluster to be ready: experiments/015-pod-start/run.py

Prints a table. Needs GPUMUX_TEST_KUBE_BIN (kubernetes/tests/README.md), build/dev and root.
"""

import pathlib
import statistics
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "kubernetes/tests")]
from claims_test import CLASS, ClaimsTest  # noqa: E402
from framework.waiting import wait_until  # noqa: E402
from kube.pods import PodsTest  # noqa: E402
from kubelet_test import RESOURCE, SharesTest  # noqa: E402

PODS = 12  # of each kind


class PodStart(PodsTest):
    """Pods of both kinds in turn, one at a time. Each prints when its program has started."""

    def setUp(self):
        begun = time.monotonic()
        super().setUp()
        print(f"{self.id().split('.')[-1]}: nothing to Ready: {time.monotonic() - begun:.1f} s", flush=True)

    def programs_image(self, *more):
        image = super().programs_image(*more)
        image.add_machines("/bin/date")
        return image

    def start(self, name, **options):
        """Seconds from the request to the API server to the program's start."""
        begun = time.time()
        pod = self.run_pod(name, "/bin/date", "+%s.%N", **options)
        wait_until(lambda: pod.lines, 120, lambda: f"{name} has started: {pod.status}", poll=0.02)
        self.assertEqual(len(pod.lines), 1, pod.lines)
        taken = float(pod.lines[0]) - begun
        pod.expect_success()
        pod.remove()
        return taken

    def compare(self, **options):
        times = {"without": [], "with": []}
        for number in range(PODS):
            times["without"].append(self.start(f"without-{number}"))
            times["with"].append(self.start(f"with-{number}", **options))
        for kind, taken in times.items():
            print(f"{self.id().split('.')[-1]}: {kind} gpumux: median {statistics.median(taken):.2f} s, "
                  f"{min(taken):.2f} to {max(taken):.2f} s, {PODS} pods", flush=True)


class DevicePlugin(PodStart, SharesTest):

    def test_device_plugin(self):
        self.compare(resources={RESOURCE: 1})


class Claims(PodStart, ClaimsTest):

    def test_claims(self):
        self.kube.make_template("part", CLASS, memory="4Gi")
        self.compare(claim="part")


if __name__ == "__main__":
    loader = unittest.TestLoader()
    suite = unittest.TestSuite(loader.loadTestsFromTestCase(case) for case in (DevicePlugin, Claims))
    sys.exit(not unittest.TextTestRunner(verbosity=0).run(suite).wasSuccessful())
