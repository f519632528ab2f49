# SPDX-License-Identifier: Apache-2.0
"""gpumux-kubelet-plugin and the kubelets of the tests' own, as processes: what both of the kubelet's APIs need."""

import json
import os
import signal

from framework import paths
from framework.waiting import HANG, wait_until


class KubeletProgram:
    """A program of tests/programs that answers each line of a FIFO."""

    def __init__(self, case, program, folder):
        self.folder = folder
        self.commands = folder.with_name(program + "-commands")
        os.mkfifo(self.commands)
        self.answers = 0
        self.process = case.start_process([paths.PROGRAMS / program, self.folder, self.commands],
                                          environment={"PATH": os.environ["PATH"]}, name="kubelet")
        self.process.wait_for_line("serving")

    def said(self, start):
        return [line[len(start):] for line in list(self.process.lines) if line.startswith(start)]

    def ask(self, **command):
        with open(self.commands, "w", encoding="utf-8") as fifo:
            fifo.write(json.dumps(command) + "\n")
        self.answers += 1
        wait_until(lambda: len(self.said("answer ")) >= self.answers, HANG,
                   lambda: f"an answer to {command}: {self.process.tail()}")
        return json.loads(self.said("answer ")[self.answers - 1])


class PluginProcess:

    def __init__(self, case, variables=None, **settings):
        self.case = case
        self.environment = {"PATH": os.environ["PATH"], **(variables or {})}
        self.settings = {"runtime_dir": case.runtime_dir, "hook": paths.HOOK,
                         "libraries": case.directory + "/node/libraries", "cdi_folder": case.directory + "/cdi",
                         "sim_libraries": paths.SIM_LIBRARIES, "sim_dir": case.machine.directory, **settings}
        self.start()

    def start(self):
        options = [part for name, value in self.settings.items() for part in ("--" + name.replace("_", "-"), value)]
        self.process = self.case.start_process([paths.KUBELET_PLUGIN, *options], environment=self.environment,
                                               name="plugin")

    def kill(self):
        self.process.send(signal.SIGKILL)
        self.process.wait()

    def terminate(self):
        self.process.send(signal.SIGTERM)
        return self.process.wait()

    def wait_to_log(self, words):
        wait_until(lambda: any(words in line for line in list(self.process.errors)), HANG,
                   lambda: f"the plugin says '{words}': {self.process.tail()}")
