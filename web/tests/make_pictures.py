#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the documents' pictures of the web view, docs/pictures/web-*.png, from a scenario on simulated GPUs.

    web/tests/make_pictures.py [--all DIR]

DIR gets every screen in three sizes, light and dark, to look at. Needs a build, Debian's chromium, and the packages of
`tools/web.sh test`.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from page_test import Browsing, JobsTest, paths, wait_until  # noqa: E402

PICTURES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "pictures"
KEPT = {"web-gpus.png": "gpus-laptop-light.png", "web-timeline.png": "timeline-laptop-dark.png"}


class Pictures(Browsing, JobsTest):
    gpus = 3
    folder = None

    def test(self):
        self.daemon.api.set("0", quantum="400ms")
        self.daemon.api.set("1", mode="concurrent")
        for name, size in (("train.py", 400), ("finetune.py", 300), ("serve.py", 100)):
            self.start("worker", gpu=0, steps=10_000_000, step_us=3000, alloc=size << 20,
                       variables={"GPUMUX_NAME": name})
        for name in ("notebook", "evaluate.py"):
            self.start("worker", gpu=1, steps=10_000_000, step_us=3000, pause_us=2000, alloc=200 << 20,
                       variables={"GPUMUX_NAME": name})
        log = 'i=0; while :; do echo "epoch $i: loss 0.$((900 - i % 800))"; i=$((i+1)); sleep 0.2; done'
        running = self.submit("sh", "-c", log, gpu_ids="2", name="train-large", mem="1M", time_limit="2:00:00")
        self.wait_state(running, "running")
        self.wait_done(self.submit("true", gpu_ids="2", name="prepare", mem="1M"))
        self.wait_done(self.submit("false", gpu_ids="2", name="convert", mem="1M"))
        self.submit("true", name="evaluate", after=running)
        self.submit("true", name="sweep", exclusive=True, gpus=3)
        self.submit("true", name="later", hold=True)
        wait_until(lambda: len(self.daemon.trace.events(event="grant", gpu=0)) > 40, 120, "programs have taken turns")
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            self.browse("pictures", self.link(self.gpumux("web")), folder)
            for kept, made in KEPT.items():
                shutil.copy(f"{folder}/{made}", PICTURES / kept)
            if self.folder:
                shutil.copytree(folder, self.folder, dirs_exist_ok=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--all"]:
        Pictures.folder = sys.argv[2]
    result = unittest.TextTestRunner(verbosity=0).run(Pictures("test"))
    sys.exit(0 if result.wasSuccessful() else 1)
