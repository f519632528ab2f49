# SPDX-License-Identifier: Apache-2.0
"""A simulated machine of one test's own: GPUs, their memory and their clocks live in a directory that goes with it."""

import shutil
import tempfile

from . import paths


class Machine:

    def __init__(self, gpus=1, **settings):
        self.directory = tempfile.mkdtemp(prefix="gpumux-test-", dir="/dev/shm")
        self.gpus = gpus
        self.settings = {"gpus": gpus, "context_memory": "16MiB", "memory": "1GiB"}
        self.settings.update(settings)
        with open(f"{self.directory}/machine.conf", "w", encoding="utf-8") as conf:
            for key, value in self.settings.items():
                conf.write(f"{key} = {value}\n")

    def environment(self):
        return {"GPUMUX_SIM_DIR": self.directory, "LD_LIBRARY_PATH": paths.SIM_LIBRARY_PATH}

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
