#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Daemon and plugin serve a node from pods, as deploy/kubernetes describes them.

Method: buildah builds the image. A real kubelet runs the overlay's pod templates as static pods on a node of the test's
own (framework/node.py). Static pods have no other objects of Kubernetes, so what ConfigMaps hold is put in. This
kubelet has no CDI: pods get gpumux by mounts and variables. Needs root.
"""

import functools
import json
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]
import kubelet_test  # noqa: E402
import manifests_test  # noqa: E402
from framework import paths, pods  # noqa: E402
from framework.case import main  # noqa: E402
from framework.waiting import wait_until  # noqa: E402
from manifests_test import MANIFESTS, containers_of, find, pod_of, removal_job, render, settings_of  # noqa: E402

IMAGE = f"gpumux:{manifests_test.VERSION}"
SHARES = 20  # ten of each GPU
MOST_BYTES = 40 << 20
MISSING_TOOLS = [tool for tool in ("buildah", "mmdebstrap") if shutil.which(tool) is None]


def setUpModule():
    manifests_test.setUpModule()


@functools.lru_cache
def image_archive():
    if MISSING_TOOLS:
        raise unittest.SkipTest(f"needs {' and '.join(MISSING_TOOLS)} (tools/setup.sh --list)")
    folder = tempfile.mkdtemp(prefix="gpumux-image-")
    unittest.addModuleCleanup(shutil.rmtree, folder)
    archive = pathlib.Path(folder) / "image.tar"
    command = [HERE / "build_image.sh", paths.BUILD, f"docker.io/library/{IMAGE}", archive]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
    return archive


class Image(unittest.TestCase):

    def test_it_has_programs_and_little_else(self):
        files = {}
        with tarfile.open(image_archive()) as image:
            manifest = json.load(image.extractfile("manifest.json"))[0]
            for name in manifest["Layers"]:
                with tarfile.open(fileobj=image.extractfile(name)) as layer:
                    files |= {"/" + member.name.lstrip("./"): member for member in layer if member.isfile()}
        for expected in ("/usr/bin/gpumux", "/usr/bin/gpumuxd", "/usr/bin/gpumux-kubelet-plugin",
                         "/usr/libexec/gpumux/gpumux-cdi-hook", "/usr/lib/libgpumux.so"):
            self.assertEqual(files[expected].mode & 0o777, 0o755, expected)
        self.assertFalse([name for name in files if name.endswith(("/sh", "/bash", "/apt-get", "/dpkg"))])
        self.assertLess(len(files), 25, sorted(files))
        self.assertLess(sum(member.size for member in files.values()), MOST_BYTES)


class DeploymentTest(pods.PodsTest):
    """A node that has the image."""

    def setUp(self):
        archive = image_archive()
        super().setUp()
        self.kube.run("ctr", "-n", "k8s.io", "images", "import", archive)

    def gpumux(self, *arguments):
        """The command of a user on the host, who is root."""
        return self.kube.run(paths.COMMAND, *arguments)

    def seats(self):
        """By process."""
        gpus = json.loads(self.gpumux("status", "--json"))["gpus"]
        return {seat["pid"]: seat for gpu in gpus for seat in gpu["seats"]}

    def wait_seats(self, *pids):
        wait_until(lambda: sorted(self.seats()) == sorted(pids), 60,
                   lambda: f"the tenants are {pids}: {self.seats()}")

    def host_folders(self):
        """Those of gpumux's folders that the node has."""
        folders = ["/opt/gpumux", "/run/gpumux", "/run/gpumux-locks", "/var/lib/kubelet/plugins/gpumux.io"]
        return [folder for folder in folders if (self.kube.root / folder.lstrip("/")).exists()]


@unittest.skipIf(pods.KUBE_BIN, "this test runs static pods, under the kubelet that build_kubelet.sh builds")
class Deployment(DeploymentTest):

    def setUp(self):
        super().setUp()
        self.objects = render(MANIFESTS / "simulated" / "device-plugin")
        self.settings = settings_of(self.objects) | {
            "GPUMUX_KUBELET_INJECT": "env", "GPUMUX_KUBELET_SIM_DIR": self.machine.directory}
        self.daemon = self.run_template(find(self.objects, "DaemonSet", "gpumuxd"))
        self.plugin = self.run_template(find(self.objects, "DaemonSet", "gpumux-device-plugin"))
        self.wait_for_shares()

    def run_template(self, workload):
        """A static pod of the template."""
        name = workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
        spec = json.loads(json.dumps(pod_of(workload)).replace(manifests_test.SIMULATED_MACHINE,
                                                               self.machine.directory))
        for scheduling in ("affinity", "nodeSelector", "nodeName"):
            spec.pop(scheduling, None)
        spec["hostNetwork"] = True  # this node has no network for pods
        for container in containers_of(spec):
            container["image"] = IMAGE
            if container.pop("envFrom", None):
                container["env"] = [{"name": key, "value": value} for key, value in self.settings.items()]
        for volume in spec["volumes"]:
            configuration = volume.pop("configMap", None)
            if configuration:
                folder = pathlib.Path(self.directory) / configuration["name"]
                folder.mkdir(exist_ok=True)
                data = next(it["data"] for it in self.objects if it["metadata"]["name"] == configuration["name"])
                for file, text in data.items():
                    (folder / file).write_text(text, encoding="utf-8")
                volume["hostPath"] = {"path": str(folder)}
        return self.kube.add_manifest({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def wait_for_shares(self):
        wait_until(lambda: self.kube.registered(0).get(kubelet_test.RESOURCE) == SHARES, 90,
                   lambda: f"the kubelet has {SHARES} shares; daemon: {self.daemon.status} {self.daemon.said()}; "
                           f"plugin: {self.plugin.status} {self.plugin.said()}")

    def worker(self, name):
        return self.kube.run_pod(name, "/bin/worker", "--until", "/shared/enough", "--steps", 20, "--step-us", 500,
                                 resources={kubelet_test.RESOURCE: 1}, volumes=[(self.shared, "/shared")])

    def test_pods_of_all_kinds(self):
        workers = [self.worker("first"), self.worker("second")]
        pids = [pod.wait_running() for pod in workers]
        self.wait_seats(*pids)
        # The daemon takes the host's processes for what they are, though its root folder is another one.
        self.assertIn("100ms", self.gpumux("set", "--quantum", "100ms", "0"))
        with self.assertRaisesRegex(AssertionError, "--state-dir none"):
            self.gpumux("queue")
        # A daemon that is killed is started again, and the tenants are its again.
        self.kube.run("kill", "-KILL", str(self.daemon.wait_running()))
        wait_until(lambda: self.daemon.container.get("restartCount") == 1, 60, lambda: self.daemon.status)
        self.wait_for_shares()
        self.wait_seats(*pids)
        pathlib.Path(self.enough).touch()
        for pod in workers:
            pod.expect_success()
        # Nothing is left on the host: pods, plugin, hook and library.
        host_files = ["find", "/opt/gpumux", "-type", "f"]
        self.assertEqual(sorted(self.kube.run(*host_files).split()), [
            f"/opt/gpumux/containers/{manifests_test.VERSION}/libgpumux.so", "/opt/gpumux/gpumux-cdi-hook",
            "/opt/gpumux/sim/libcuda.so.1", "/opt/gpumux/sim/libnvidia-ml.so.1"])
        self.plugin.remove()
        self.kube.run("mkdir", "-p", "/var/lib/kubelet/plugins/gpumux.io/claims")  # of a plugin with --api dra
        job = removal_job()
        self.run_template(job).wait_phase("Succeeded")
        self.assertEqual(self.host_folders(), ["/run/gpumux", "/run/gpumux-locks"], "the daemon has its folders")
        self.gpumux("status")
        self.daemon.remove()
        # A kubelet knows a static pod by its manifest, and runs none again that has ended.
        job["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"] = "gpumux-remove-again"
        self.run_template(job).wait_phase("Succeeded")
        self.assertEqual(self.host_folders(), [], self.kube.run("find", "/run", "-path", "/run/gpumux*"))


if __name__ == "__main__":
    main()
