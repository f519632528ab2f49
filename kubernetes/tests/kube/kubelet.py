# SPDX-License-Identifier: Apache-2.0
"""The plugin for a kubelet, with a kubelet of the tests' own (programs/kubelet.cc)."""

import json
import pathlib

from framework.waiting import HANG, wait_until
from .plugin import KubeletProgram, PluginProcess

SHARES = "gpumux.io/gpu"
WHOLE = "gpumux.io/whole"


class Kubelet(KubeletProgram):

    def __init__(self, case):
        folder = pathlib.Path(case.directory) / "device-plugins"
        folder.mkdir()
        super().__init__(case, "kubelet", folder)

    def restart(self):
        self.ask(do="restart")

    def prefer(self, available, size, must=(), resource=SHARES):
        return self.ask(do="prefer", resource=resource, available=list(available), must=list(must), size=size)

    def allocate(self, *containers, resource=SHARES):
        return self.ask(do="allocate", resource=resource, containers=[list(ids) for ids in containers])

    def registrations(self, resource=SHARES):
        return len(self.said(f"registered {resource}"))

    def wait_until_registered(self, times, resource=SHARES):
        wait_until(lambda: self.registrations(resource) >= times, HANG,
                   lambda: f"{resource} is registered {times} times: {self.process.tail()}")

    def devices(self, resource=SHARES):
        """{id: whether it is healthy} of the latest list, which is none before the first one since a restart."""
        for line in reversed(list(self.process.lines)):
            if line.startswith(f"list {resource} "):
                return json.loads(line.partition("{")[1] + line.partition("{")[2])
            if line == "serving":
                return {}
        return {}

    def wait_for_healthy(self, count, resource=SHARES):
        """Returns the latest list, once it has devices and so many of them are healthy."""
        def look():
            devices = self.devices(resource)
            return devices and sum(devices.values()) == count and devices

        return wait_until(look, HANG, lambda: f"{count} healthy devices of {resource}: {self.process.tail()}")


class Plugin(PluginProcess):

    def __init__(self, case, kubelet, variables=None, **settings):
        super().__init__(case, variables, device_plugins=kubelet.folder, **settings)
