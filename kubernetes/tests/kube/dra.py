# SPDX-License-Identifier: Apache-2.0
"""The plugin by dynamic resource allocation, with a kubelet of the tests' own (programs/dra_kubelet.cc)."""

import pathlib

from framework.waiting import HANG, wait_until
from .plugin import KubeletProgram, PluginProcess


class DraKubelet(KubeletProgram):

    def __init__(self, case):
        folder = pathlib.Path(case.directory) / "kubelet"
        (folder / "plugins_registry").mkdir(parents=True)
        super().__init__(case, "dra_kubelet", folder)

    def wait_until_registered(self):
        return wait_until(lambda: self.ask(do="register"), HANG, "the driver is found")

    def prepare(self, *uids):
        return self.ask(do="prepare", uids=uids)

    def unprepare(self, *uids):
        return self.ask(do="unprepare", uids=uids)

    def health(self):
        return self.ask(do="health")


class DraPlugin(PluginProcess):

    def __init__(self, case, kubelet, api_server, **settings):
        super().__init__(case, api="dra", node="node-1", kubelet=kubelet.folder, api_server=api_server.address,
                         service_account=api_server.account, **settings)
