# SPDX-License-Identifier: Apache-2.0
"""A node of one test's own: a real kubelet and a real containerd that run pods, without an API server.

Both run in namespaces of the test's own (framework/inside.py). The kubelet starts each pod whose manifest lies in a
folder: static pods. They use the node's network, for a network of their own needs plugins. Images are made here; no
registry is asked. The daemon and the plugin run there too, so all of them know processes by the node's numbers.
"""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import threading
import time

from framework import inside
from framework.waiting import HANG, wait_until
from . import oci_image

CLONE_NEWNET = 0x40000000
READ_ONLY_PORT = 10255
IMAGE = "gpumux.test/programs:1"
NODE_NAME = "node"

# Kubernetes 1.N
FIRST_WITH_ENDPOINT_SETTING = 27
FIRST_WITH_CDI = 28
FIRST_THAT_REFUSES_CGROUP_V1 = 31


def reason_to_skip():
    """Why no node can run here; empty if one can."""
    if shutil.which("runc") is None:
        return "needs runc (tools/setup.sh --list)"
    return inside.reason_to_skip("a kubelet")


class _Connection(http.client.HTTPConnection):

    def __init__(self, make_socket):
        super().__init__("127.0.0.1", READ_ONLY_PORT, timeout=10)
        self._make_socket = make_socket

    def connect(self):
        self.sock = self._make_socket()
        self.sock.settimeout(self.timeout)
        self.sock.connect((self.host, self.port))


class Node(inside.Inside):

    def __init__(self, case, binaries):
        """`binaries`: the folder with kubelet, containerd and ctr."""
        super().__init__(case)
        self.binaries = pathlib.Path(binaries)
        self.manifests = self.directory / "manifests"
        self.manifests.mkdir()
        self.minor = self._kubelet_minor()
        self.kubelet = None
        self.kubelet_started_at = None
        self.containerd = None

    @property
    def has_cdi(self):
        """The kubelet passes names of CDI devices on."""
        return self.minor >= FIRST_WITH_CDI

    def _kubelet_minor(self):
        said = subprocess.run([self.binaries / "kubelet", "--version"], capture_output=True, text=True, check=True)
        return int(re.search(r"v1\.(\d+)", said.stdout)[1])

    # ---- starting and ending

    def start(self, image):
        self._start_first()
        self._start_containerd()
        self.import_image(image)
        self.start_kubelet()
        return self

    def environment(self):
        # The runtime writes temporary files when it runs probes.
        inherited = super().environment()
        return {**inherited, "PATH": f"{self.binaries}:{inherited['PATH']}"}

    def _start_containerd(self):
        root = self.directory / "containerd"
        config = self.directory / "containerd.toml"
        # A process here may not lower its OOM score: CAP_SYS_RESOURCE is rare in containers.
        config.write_text(f"""version = 2
root = "{root}"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
{"  enable_cdi = true" if self.has_cdi else ""}
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{self.directory}/cni/bin"
  conf_dir = "{self.directory}/cni/net.d"
""", encoding="utf-8")
        self.containerd = self.start_process("containerd", "--config", config, name="containerd")
        wait_until(lambda: self._serves(self.containerd, "containerd successfully booted"), HANG,
                   lambda: f"containerd serves: {self.containerd.tail(20)}")

    @staticmethod
    def _serves(process, words):
        if process.code is not None:
            raise AssertionError(f"{process.name} ended with {process.code}: {process.tail(20)}")
        return any(words in line for line in list(process.errors))

    def kubelet_configuration(self):
        configuration = {
            "kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "staticPodPath": str(self.manifests),
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "volumePluginDir": str(self.directory / "volume-plugins"),
            "address": "127.0.0.1", "healthzPort": 0, "readOnlyPort": READ_ONLY_PORT,
            "cgroupDriver": "cgroupfs", "failSwapOn": False, "makeIPTablesUtilChains": False,
            # The disk is the machine's own: the kubelet removes nothing to make room on it.
            "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
            "imageGCHighThresholdPercent": 100, "imageGCLowThresholdPercent": 99,
            "oomScoreAdj": 0,
        }
        if self.minor >= FIRST_WITH_ENDPOINT_SETTING:
            configuration["containerRuntimeEndpoint"] = "unix:///run/containerd/containerd.sock"
        if self.minor >= FIRST_THAT_REFUSES_CGROUP_V1:
            configuration["failCgroupV1"] = False
        return configuration

    def kubelet_flags(self):
        return []

    def start_kubelet(self):
        config = self.directory / "kubelet.json"
        config.write_text(json.dumps(self.kubelet_configuration()), encoding="utf-8")
        flags = [f"--hostname-override={NODE_NAME}", "--v=2", *self.kubelet_flags()]
        if self.minor < FIRST_WITH_ENDPOINT_SETTING:
            flags += ["--container-runtime=remote",
                      "--container-runtime-endpoint=unix:///run/containerd/containerd.sock"]
        self.kubelet_started_at = time.time()
        self.kubelet = self.start_process("kubelet", f"--config={config}", *flags, name="kubelet")

    def restart_kubelet(self):
        self.kubelet.kill()
        self.start_kubelet()

    # ---- images and pods

    def import_image(self, image, name=IMAGE, env=()):
        """`env`: the image's own variables, NAME=VALUE."""
        archive = self.directory / "image.tar"
        oci_image.write_archive(image, name, ["/bin/sleep", "infinity"], archive, env)
        self.run("ctr", "-n", "k8s.io", "images", "import", archive)

    def _socket(self):
        """A socket in the node's network: a thread enters that, and the socket stays there."""
        made = []

        def make():
            with contextlib.suppress(OSError), open(f"/proc/{self.init_pid}/ns/net", encoding="ascii") as namespace:
                if ctypes.CDLL(None).setns(namespace.fileno(), CLONE_NEWNET) == 0:
                    made.append(socket.socket())

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not made:
            raise AssertionError(f"the node has ended: {self.first.tail()}")
        return made[0]

    def pods(self):
        """The kubelet's own account, by name; empty while it does not serve."""
        connection = _Connection(self._socket)
        try:
            connection.request("GET", "/pods")
            answer = connection.getresponse()
            pods = json.loads(answer.read())["items"] if answer.status == 200 else []
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()
        return {pod["metadata"]["name"].removesuffix(f"-{NODE_NAME}"): pod for pod in pods or []}

    @staticmethod
    def manifest(name, *arguments, image=IMAGE, resources=None, volumes=(), env=None):
        """Of a pod of one container, that is not started again when it ends. `volumes`: paths of the host and the
        container."""
        mounts = [{"name": f"volume-{i}", "mountPath": inside} for i, (_, inside) in enumerate(volumes)]
        container = {
            "name": "main", "image": image, "imagePullPolicy": "Never",
            "command": [str(argument) for argument in arguments],
            "env": [{"name": key, "value": str(value)} for key, value in (env or {}).items()],
            "resources": {"limits": {key: str(value) for key, value in (resources or {}).items()}},
            "volumeMounts": mounts,
        }
        return {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"hostNetwork": True, "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                     "containers": [container],
                     "volumes": [{"name": f"volume-{i}", "hostPath": {"path": str(outside)}}
                                 for i, (outside, _) in enumerate(volumes)]}}

    def add_manifest(self, manifest):
        """The kubelet reads the folder when a name changes there, so the file gets its name when it is whole."""
        name = manifest["metadata"]["name"]
        unnamed = self.directory / f"{name}.json"
        unnamed.write_text(json.dumps(manifest), encoding="utf-8")
        unnamed.rename(self.manifests / f"{name}.json")
        return Pod(self, name)

    def run_pod(self, name, *arguments, **options):
        """Options: of manifest()."""
        return self.add_manifest(self.manifest(name, *arguments, **options))

    def remove_pod(self, name):
        os.unlink(self.manifests / f"{name}.json")

    def explain(self, _name):
        """More about a pod, for the message of a test that fails."""
        return ""

    # ---- device plugins

    @property
    def plugin_folder(self):
        """The kubelet's folder of sockets, by its path outside of the node."""
        return self.directory / "kubelet/device-plugins"

    def registered(self, since):
        """Number of devices of each resource, by the kubelet's own checkpoint if it is not older than `since`."""
        file = self.plugin_folder / "kubelet_internal_checkpoint"
        try:
            if file.stat().st_mtime < since:
                return {}
            data = json.loads(file.read_text(encoding="utf-8"))["Data"]
        except (OSError, ValueError):
            return {}
        return {resource: len(ids or []) for resource, ids in (data["RegisteredDevices"] or {}).items()}


class Pod:

    def __init__(self, node, name):
        self.node = node
        self.name = name

    @property
    def status(self):
        return self.node.pods().get(self.name, {}).get("status", {})

    @property
    def container(self):
        return (self.status.get("containerStatuses") or [{}])[0]

    @property
    def container_id(self):
        return self.container.get("containerID", "").rpartition("/")[2]

    @property
    def refusal(self):
        """Why it does not run: in the scheduler's words, or the kubelet's; empty if neither refuses it."""
        status = self.status
        if status.get("phase") == "Failed":
            return status.get("message", "")
        scheduled = [each for each in status.get("conditions", []) if each["type"] == "PodScheduled"]
        return scheduled[0].get("message", "") if scheduled and scheduled[0]["status"] == "False" else ""

    def _wait(self, condition, timeout, what):
        def holds():
            if self.node.kubelet.code is not None:
                raise AssertionError(f"the kubelet ended with {self.node.kubelet.code}: {self.node.kubelet.tail()}")
            return condition()

        return wait_until(holds, timeout, lambda: f"pod {self.name} {what}; it is {self.status}; it said "
                                                   f"{self.lines} {self.node.explain(self.name)}", poll=0.02)

    def wait_phase(self, *phases, timeout=60):
        return self._wait(lambda: (status := self.status).get("phase") in phases and status, timeout,
                          f"is {' or '.join(phases)}")

    def wait_refused(self):
        return self._wait(lambda: self.refusal, 60, "is refused")

    def wait_running(self):
        """Returns its first process's number in the node."""
        def running():
            pids = "running" in self.container.get("state", {}) and self.node.cgroup.pids(self.container_id)
            return pids and self._number_in_the_node(pids[0])
        return self._wait(running, 60, "runs")

    @staticmethod
    def _number_in_the_node(pid):
        with contextlib.suppress(OSError):
            status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
            # Of the machine, the node, and the pod if it has namespaces of its own.
            return int(re.search(r"^NSpid:\t\d+\t(\d+)", status, re.MULTILINE)[1])
        return None

    @property
    def lines(self):
        """The lines that the pod has printed."""
        folder = self.node.directory / "var/log/pods"
        files = [*folder.glob(f"*_{self.name}_*/main/*.log"), *folder.glob(f"*_{self.name}-{NODE_NAME}_*/main/*.log")]
        text = sorted(files)[-1].read_text(encoding="utf-8") if files else ""
        return [line.split(" ", 3)[3] for line in text.splitlines()]

    def said(self):
        """The last lines of each of its containers, for people."""
        folder = self.node.directory / "var/log/pods"
        files = sorted(folder.glob(f"default_{self.name}-{NODE_NAME}_*/*/*.log"))
        return [line for file in files for line in file.read_text(encoding="utf-8").splitlines()[-10:]]

    def expect_success(self):
        """Returns what it has printed."""
        status = self.wait_phase("Succeeded", "Failed", timeout=120)
        if status["phase"] != "Succeeded":
            raise AssertionError(f"pod {self.name} failed: {status}; it said {self.lines}")
        return self.lines

    def remove(self):
        """Returns when the kubelet does not know it any more and its containers are gone."""
        found = self.container_id
        self.node.remove_pod(self.name)
        self._wait(lambda: self.name not in self.node.pods() and
                   (not found or found not in self.node.run("ctr", "-n", "k8s.io", "tasks", "ls")), 60, "is removed")
