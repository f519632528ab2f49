#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Daemon and plugin serve a node from pods, as kubernetes/deploy describes them.

Method: buildah builds the image. A real kubelet runs the overlay's pod templates as static pods on a node of the test's
own (kube/node.py). Static pods have no other objects of Kubernetes, so what ConfigMaps hold is put in. This
kubelet has no CDI: pods get gpumux by mounts and variables.

If GPUMUX_TEST_KUBE_BIN names the programs of a cluster (kube/cluster.py), a real API server gets each overlay. Its
DaemonSets then serve a node, and remove.sh removes them. Needs root.
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

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "tests"), str(HERE)]
import kubelet_test  # noqa: E402
import manifests_test  # noqa: E402
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.memory import MemoryTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from kube import node, pods  # noqa: E402
from kube.cluster import DRIVER, NODE_NAME, RESOURCES, ApiError  # noqa: E402
from manifests_test import (  # noqa: E402
    MANIFESTS, OVERLAYS, containers_of, find, overlay_with, pod_of, removal_job, render, settings_of)

IMAGE = f"gpumux:{manifests_test.TAG}"
LARGE_IMAGE = "gpumux.test/large:1"
SHARES = 20  # ten of each GPU
MOST_BYTES = 42 << 20
NEEDS_CLUSTER = "needs the programs of a cluster: GPUMUX_TEST_KUBE_BIN=DIR (kubernetes/tests/README.md)"
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
                         "/usr/libexec/gpumux/gpumux-cdi-hook", "/usr/libexec/gpumux/gpumux-mover",
                         "/usr/lib/libgpumux.so"):
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
        wait_until(lambda: sorted(self.seats()) == sorted(pids), HANG,
                   lambda: f"the tenants are {pids}: {self.seats()}")

    def host_folders(self):
        """Those of gpumux's folders that the node has."""
        folders = ["/opt/gpumux", "/run/gpumux", "/run/gpumux-locks", "/var/lib/kubelet/plugins/gpumux.io"]
        return [folder for folder in folders if (self.kube.root / folder.lstrip("/")).exists()]


@unittest.skipIf(pods.KUBE_BIN, "this test runs static pods, under the kubelet that build_kubelet.sh builds")
class Deployment(DeploymentTest):
    machine_settings = MemoryTest.machine_settings

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
        wait_until(lambda: self.kube.registered(0).get(kubelet_test.RESOURCE) == SHARES, HANG,
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
        wait_until(lambda: self.daemon.container.get("restartCount") == 1, HANG, lambda: self.daemon.status)
        self.wait_for_shares()
        self.wait_seats(*pids)
        pathlib.Path(self.enough).touch()
        for pod in workers:
            pod.expect_success()
        # Nothing is left on the host: pods, plugin, hook and library.
        version, *_ = (paths.BUILD / "version" / "version.txt").read_text(encoding="utf-8").split()
        host_files = ["find", "/opt/gpumux", "-type", "f"]
        self.assertEqual(sorted(self.kube.run(*host_files).split()), [
            f"/opt/gpumux/containers/{version}/libgpumux.so", "/opt/gpumux/gpumux-cdi-hook",
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


    def test_evicted_data_outlives_the_daemons_pod(self):
        """`large` checks each word that it has."""
        self.kube.import_image(self.programs_image("large"), LARGE_IMAGE)
        # Three on two GPUs: two of them have one that both do not fit on.
        larges = [self.kube.run_pod(f"large{i}", "/bin/large", "--blocks", 6, "--block-kib", 8192, "--rounds", 12,
                                    "--until", "/shared/enough", image=LARGE_IMAGE,
                                    resources={kubelet_test.RESOURCE: 1}, volumes=[(self.shared, "/shared")])
                  for i in range(3)]
        pids = [pod.wait_running() for pod in larges]

        def moved_in():
            return sum(seat["memory"]["moved_in_bytes"] for seat in self.seats().values())

        for restarts in range(3):
            self.wait_seats(*pids)
            before = moved_in()
            # After a restart memory moves only when the mover has started, too.
            wait_until(lambda: moved_in() > before, HANG, "memory that was evicted comes back")  # noqa: B023
            if restarts == 2:
                break
            self.kube.run("kill", "-KILL", str(self.daemon.wait_running()))
            wait_until(lambda: self.daemon.container.get("restartCount") == restarts + 1, HANG,  # noqa: B023
                       lambda: self.daemon.status)
            self.wait_for_shares()
        pathlib.Path(self.enough).touch()
        for pod in larges:
            pod.expect_success()
        self.assertIn("/run/gpumux/memory", self.kube.run("cat", "/proc/mounts"))
        wait_until(lambda: self.seats() == {}, HANG, "no program is left")
        self.daemon.remove()
        self.assertNotIn("/run/gpumux/memory", self.kube.run("cat", "/proc/mounts"), "there is no data")


@unittest.skipUnless(pods.KUBE_BIN, NEEDS_CLUSTER)
class Installed(DeploymentTest):
    """In a whole cluster: an overlay is applied, and removed by remove.sh."""

    def setUp(self):
        super().setUp()
        self.programs_on_path = pathlib.Path(self.directory) / "path"
        self.programs_on_path.mkdir()
        (self.programs_on_path / "kubectl").symlink_to(manifests_test.kubectl)

    def kubectl(self, *arguments):
        return self.kube.kubectl(manifests_test.kubectl, *arguments)

    def apply_overlay(self, api):
        """The overlay's folder. It differs from simulated/ by the machine, and by a network that pods can have here."""
        network = json.dumps([{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": True}])
        settings = {"name": "gpumux-kubelet-plugin", "namespace": "gpumux", "behavior": "merge",
                    "literals": [f"GPUMUX_KUBELET_SIM_DIR={self.machine.directory}"]}
        overlay = self.enterContext(overlay_with(resources=[f"../simulated/{api}"], configMapGenerator=[settings],
                                                 patches=[{"target": {"kind": "DaemonSet"}, "patch": network}]))
        simulated = overlay.parent / "simulated" / "gpus" / "kustomization.yaml"
        simulated.write_text(simulated.read_text(encoding="utf-8").replace(manifests_test.SIMULATED_MACHINE,
                                                                           self.machine.directory), encoding="utf-8")
        self.kubectl("label", "node", NODE_NAME, f"gpumux.io/api={api}")
        self.kubectl("apply", "-k", overlay)
        for workload in ("gpumuxd", f"gpumux-{api}"):
            self.wait_rolled_out(workload)
        return overlay

    def wait_rolled_out(self, name):
        path = f"/apis/apps/v1/namespaces/gpumux/daemonsets/{name}"
        wait_until(lambda: self.kube.api.get(path)["status"].get("numberReady") == 1, HANG,
                   lambda: f"DaemonSet {name} has a pod that is ready: {self.kube.pods()}", poll=0.1)

    def remove_overlay(self, overlay):
        environment = self.kube.environment()
        return self.kube.run(
            "env", f"KUBECONFIG={self.kube.credentials / 'admin'}", f"HOME={environment['TMPDIR']}",
            f"PATH={self.programs_on_path}:{environment['PATH']}", MANIFESTS / "remove" / "remove.sh", overlay)

    def check_nothing_left(self):
        self.assertEqual(self.host_folders(), [])
        self.assertEqual(self.kube.run("find", "/run/cdi", "-name", "gpumux*"), "")
        self.assertEqual(self.kube.slices(), [])
        self.assertFalse(self.kube.api.serves("/api/v1/namespaces/gpumux"))
        found = self.kube.api.get(f"/api/v1/nodes/{NODE_NAME}")
        self.assertNotIn("gpumux.io/api", found["metadata"]["labels"])
        self.assertFalse(found["spec"].get("unschedulable", False))

    def check_an_overlay(self, api, run_second):
        overlay = self.apply_overlay(api)
        workers = [self.run_worker("first", resources={kubelet_test.RESOURCE: 1}), run_second()]
        pids = [pod.wait_running() for pod in workers]
        self.wait_seats(*pids)
        second = self.seats()[pids[1]]
        self.assertEqual(second["container"]["pod"], "second")
        # A node with pods in use stays as it is.
        with self.assertRaisesRegex(AssertionError, "cannot delete"):
            self.remove_overlay(overlay)
        self.wait_seats(*pids)
        self.finish(*workers)
        for pod in workers:
            pod.remove()
        self.remove_overlay(overlay)
        self.check_nothing_left()
        return second

    def test_the_device_plugin(self):
        self.check_an_overlay("device-plugin", lambda: self.run_worker("second", resources={kubelet_test.RESOURCE: 1}))

    def test_dynamic_resource_allocation(self):
        def run_second():
            self.kube.make_template("part", "gpumux", memory="256Mi", cores="30")
            return self.run_worker("second", claim="part")

        second = self.check_an_overlay("dra", run_second)
        self.assertEqual(second["memory"]["quota_bytes"], 256 << 20)
        self.assertEqual(second["share"], "0.3")


@unittest.skipUnless(pods.KUBE_BIN, NEEDS_CLUSTER)
@unittest.skipIf(node.reason_to_skip(), node.reason_to_skip())
class Objects(GpumuxTest):
    """A real API server's answers to the manifests. No kubelet: pods are objects here."""

    def setUp(self):
        super().setUp()
        self.kube = pods.make_node(self).start_servers()

    def apply(self, *arguments):
        """Fails if the API server refuses or warns; the lines that kubectl says."""
        return self.kube.kubectl(manifests_test.kubectl, "apply", "--server-side", *arguments).splitlines()

    def try_out(self, *arguments):
        return self.apply("--dry-run=server", *arguments)

    def test_each_overlay_is_taken(self):
        # A trial keeps no namespace, and its objects need one.
        self.kube.make_namespace("gpumux")
        for overlay in OVERLAYS:
            said = self.try_out("-k", MANIFESTS / overlay)
            self.assertEqual(len(said), len(render(MANIFESTS / overlay)), said)
            self.assertEqual({line.partition(" serverside-applied ")[2] for line in said}, {"(server dry run)"}, said)
        self.assertEqual(self.kube.api.items("/apis/apps/v1/daemonsets"), [])
        wrong = find(render(MANIFESTS / "dra"), "DaemonSet", "gpumuxd")
        pod_of(wrong)["hostPid"] = True  # hostPID
        file = pathlib.Path(self.directory) / "wrong.json"
        file.write_text(json.dumps(wrong), encoding="utf-8")
        with self.assertRaisesRegex(AssertionError, "hostPid"):
            self.try_out("-f", file)

    def test_components_and_examples_are_taken(self):
        self.kube.make_namespace("gpumux")
        for component in ("nvidia-runtime", "host-daemon", "metrics"):
            for api in manifests_test.APIS:
                with overlay_with(resources=[f"../{api}"], components=[f"../{component}"]) as folder:
                    self.try_out("-k", folder)
        for example in (MANIFESTS / "examples").iterdir():
            for it in yaml.safe_load_all(example.read_text(encoding="utf-8")):
                if it["kind"] == "Namespace":
                    self.kube.make_namespace(it["metadata"]["name"])
            self.try_out("-f", example)

    # ---- slices of other nodes

    def make_node(self, name):
        """An object, with room for the plugin. Returns the user whom the API server takes a pod of the plugin there
        for."""
        self.kube.api.create("/api/v1/nodes", {
            "metadata": {"name": name, "labels": {"gpumux.io/api": "dra"}},
            "status": {"allocatable": {"cpu": "1", "memory": "1Gi", "pods": "10"}}})

        def plugin_pod():
            return next((pod for pod in self.kube.api.items("/api/v1/namespaces/gpumux/pods")
                         if pod["metadata"]["labels"]["app.kubernetes.io/name"] == "gpumux-dra" and
                         pod["spec"].get("nodeName") == name), None)

        pod = wait_until(plugin_pod, HANG, f"node {name} has a pod of the plugin", poll=0.1)
        return self.user({"boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"],
                                             "uid": pod["metadata"]["uid"]}})

    def user(self, spec):
        """The plugin's account, by a token of this kind."""
        made = self.kube.api.create("/api/v1/namespaces/gpumux/serviceaccounts/gpumux-dra/token", {"spec": spec})
        client = self.kube.client(made["status"]["token"])
        self.addCleanup(client.connection.close)
        return client

    @staticmethod
    def slice_of(node_name, driver=DRIVER):
        return {"metadata": {"name": f"{node_name}-{driver}"}, "spec": {
            "driver": driver, "nodeName": node_name, "devices": [],
            "pool": {"name": node_name, "generation": 1, "resourceSliceCount": 1}}}

    @staticmethod
    def refusal(ask, *arguments):
        """Why the API server does not do that, in its words; empty if it does."""
        try:
            ask(*arguments)
        except ApiError as error:
            return str(error)
        return ""

    def test_the_plugin_changes_slices_of_its_node_alone(self):
        self.apply("-k", MANIFESTS / "dra")
        users = {name: self.make_node(name) for name in ("one", "two")}
        slices, trial = f"{RESOURCES}/resourceslices", f"{RESOURCES}/resourceslices?dryRun=All"
        other = "on node 'one' may not change the slices of node 'two'"
        # The API server learns of the policy some time after it has taken it.
        wait_until(lambda: other in self.refusal(users["one"].create, trial, self.slice_of("two")), HANG,
                   "the policy holds", poll=0.1)
        for name, user in users.items():
            user.create(slices, self.slice_of(name))
        own, others = (f"{slices}/{self.slice_of(name)['metadata']['name']}" for name in users)
        self.assertIn(other, self.refusal(users["one"].delete, others))
        self.assertIn(other, self.refusal(users["one"].ask, "PUT", others, users["one"].get(slices)["items"][1]))
        self.assertIn("slices of another driver",
                      self.refusal(users["one"].create, slices, self.slice_of("one", "gpu.example")))
        # A token that no pod has names no node.
        self.assertIn("on node '' may not", self.refusal(self.user({}).create, slices, self.slice_of("one")))
        users["one"].delete(own)
        # Others are not concerned.
        self.kube.api.create(slices, self.slice_of("one", "gpu.example"))


if __name__ == "__main__":
    main()
