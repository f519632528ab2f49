#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kubernetes/deploy gives pods what the programs need, and nothing more.

Method: kubectl renders each overlay, without a cluster. The settings in them go to the programs that read them. The
rights that documents name are compared with the rights. remove.sh runs with a kubectl that writes down what it is
asked.
"""

import contextlib
import functools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402

MANIFESTS = paths.ROOT / "kubernetes" / "deploy"
APIS = ("device-plugin", "dra")
OVERLAYS = (*APIS, "simulated/device-plugin", "simulated/dra")
TAG = yaml.safe_load((MANIFESTS / "image" / "kustomization.yaml").read_text(encoding="utf-8"))["images"][0]["newTag"]
# The host's folders that each workload may have. api.sock lies in /run/gpumux itself.
HOST_FOLDERS = {
    "gpumuxd": {"/run/gpumux", "/run/gpumux-locks"},
    "gpumux-device-plugin": {"/opt/gpumux", "/run/gpumux/root", "/var/lib/kubelet/device-plugins", "/var/run/cdi",
                             "/etc/cdi"},
    "gpumux-dra": {"/opt/gpumux", "/run/gpumux/root", "/var/lib/kubelet/plugins", "/var/lib/kubelet/plugins_registry",
                   "/var/run/cdi", "/etc/cdi"},
    "gpumux-remove": {"/opt", "/run", "/var/lib/kubelet/plugins", "/var/run/cdi"},
}
SIMULATED_MACHINE = "/dev/shm/gpumux-sim-0"

kubectl = None


def setUpModule():
    global kubectl
    done = subprocess.run([HERE / "get_kubectl.sh"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    kubectl = done.stdout.strip()


@functools.lru_cache
def rendered(folder):
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{folder}: {done.stderr}")
    return done.stdout


def render(folder):
    return list(yaml.safe_load_all(rendered(folder)))


def find(objects, kind, name=None):
    found = [it for it in objects if it["kind"] == kind and name in (None, it["metadata"]["name"])]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} objects of kind {kind} named {name}")
    return found[0]


def pod_of(workload):
    return workload["spec"]["template"]["spec"]


def containers_of(pod):
    return pod.get("initContainers", []) + pod["containers"]


def removal_job():
    return yaml.safe_load((MANIFESTS / "remove" / "job.yaml").read_text(encoding="utf-8"))


def settings_of(objects):
    found = [it["data"] for it in objects if it["kind"] == "ConfigMap" and
             it["metadata"]["name"].startswith("gpumux-kubelet-plugin-")]
    if len(found) != 1:
        raise AssertionError(found)
    return found[0]


class Overlays(unittest.TestCase):

    @staticmethod
    def each():
        return ((overlay, render(MANIFESTS / overlay)) for overlay in OVERLAYS)

    def test_commands_of_earlier_versions_find_them(self):
        for overlay, objects in self.each():
            self.assertEqual(render(paths.ROOT / "deploy" / "kubernetes" / overlay), objects)

    def test_all_is_in_the_namespace_and_of_one_image(self):
        named = [file for file in MANIFESTS.rglob("*.yaml") if "newTag:" in file.read_text(encoding="utf-8")]
        self.assertEqual([file.parent.name for file in named], ["image"])
        cluster_wide = {"Namespace", "DeviceClass", "ClusterRole", "ClusterRoleBinding", "ValidatingAdmissionPolicy",
                        "ValidatingAdmissionPolicyBinding"}
        for _, objects in self.each():
            for it in objects:
                self.assertEqual(it["metadata"].get("namespace"),
                                 None if it["kind"] in cluster_wide else "gpumux", it)
            images = {container["image"] for it in objects if it["kind"] == "DaemonSet"
                      for container in containers_of(pod_of(it))}
            self.assertEqual(images, {f"gpumux:{TAG}"})

    def test_pods_have_the_hosts_folders_that_they_need(self):
        for overlay, objects in self.each():
            workloads = [it for it in objects if it["kind"] == "DaemonSet"] + [removal_job()]
            for workload in workloads:
                name = workload["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/name"]
                expected = set(HOST_FOLDERS[name])
                if overlay.startswith("simulated") and name == "gpumuxd":
                    expected.add(SIMULATED_MACHINE)
                volumes = {it["name"]: it["hostPath"]["path"] for it in pod_of(workload)["volumes"] if "hostPath" in it}
                self.assertEqual(set(volumes.values()), expected, name)
                # The programs name the host's paths to the kubelet and to runtimes, so a folder has one name in both.
                mounts = [mount for container in containers_of(pod_of(workload)) for mount in container["volumeMounts"]
                          if mount["name"] in volumes]
                self.assertEqual({mount["name"] for mount in mounts}, set(volumes), name)
                for mount in mounts:
                    self.assertEqual(mount["mountPath"], volumes[mount["name"]], name)

    def test_a_node_is_served_by_one_api(self):
        for overlay, objects in self.each():
            api = overlay.rpartition("/")[2]
            self.assertEqual(pod_of(find(objects, "DaemonSet", f"gpumux-{api}"))["nodeSelector"],
                             {"gpumux.io/api": api})
            affinity = pod_of(find(objects, "DaemonSet", "gpumuxd"))["affinity"]["nodeAffinity"]
            terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
            self.assertEqual([term["matchExpressions"] for term in terms],
                             [[{"key": "gpumux.io/api", "operator": "In", "values": list(APIS)}]])
        # An object of both overlays is the same in both: a cluster may have both.
        both = [{(it["kind"], it["metadata"]["name"]): it for it in render(MANIFESTS / api)} for api in APIS]
        for key in both[0].keys() & both[1].keys():
            self.assertEqual(both[0][key], both[1][key])

    def test_examples_and_their_api(self):
        for file in (MANIFESTS / "examples").iterdir():
            text = file.read_text(encoding="utf-8")
            for it in yaml.safe_load_all(text):
                self.assertIn(it["kind"], ("Pod", "Namespace", "ResourceClaimTemplate"), file)
                self.assertNotIn("volumes", it.get("spec", {}), "a workload needs no folder of the host")
            self.assertEqual("overlay dra" in text, "ResourceClaimTemplate" in text, file)


class Daemon(unittest.TestCase):

    def setUp(self):
        self.objects = render(MANIFESTS / "dra")
        self.pod = pod_of(find(self.objects, "DaemonSet", "gpumuxd"))
        self.container, = self.pod["containers"]

    def test_it_sees_the_host(self):
        self.assertTrue(self.pod["hostPID"])
        self.assertTrue(self.pod["hostNetwork"])
        self.assertTrue(self.container["securityContext"]["privileged"])
        self.assertFalse(self.pod["automountServiceAccountToken"])

    def test_evicted_data_is_its_own(self):
        self.assertEqual(list(self.container["resources"]), ["requests"])
        self.assertEqual(self.pod["priorityClassName"], "system-node-critical")
        variables = {it["name"]: it for it in self.container["env"]}
        self.assertEqual(variables["REQUESTED_MIB"]["valueFrom"],
                         {"resourceFieldRef": {"resource": "requests.memory", "divisor": "1Mi"}})

    def check_configuration(self, text):
        """As the daemon of the pod does, with variables as the kubelet resolves them."""
        budget, = [it["value"] for it in self.container["env"] if it["name"] == "GPUMUX_HOST_MEMORY"]
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
            file.write(text)
            file.flush()
            command = [paths.DAEMON, *self.container["command"][1:], "--config", file.name, "--check-config"]
            environment = {"PATH": os.environ["PATH"],
                           "GPUMUX_HOST_MEMORY": budget.replace("$(REQUESTED_MIB)", "16384")}
            return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)

    def test_its_configuration_is_right(self):
        configuration, = [it["data"]["gpumux.toml"] for it in self.objects if it["kind"] == "ConfigMap" and
                          it["metadata"]["name"].startswith("gpumuxd-")]
        done = self.check_configuration(configuration)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.check_configuration(configuration + "\nno_such_key = 1\n").returncode, 3)

    def test_it_has_no_queue(self):
        self.assertEqual(self.container["command"], ["gpumuxd", "--state-dir", "none"])


class Plugin(unittest.TestCase):

    def test_it_has_few_rights(self):
        workloads = [find(render(MANIFESTS / api), "DaemonSet", f"gpumux-{api}") for api in APIS] + [removal_job()]
        for workload in workloads:
            self.assertNotIn("hostPID", pod_of(workload))
            for container in containers_of(pod_of(workload)):
                self.assertEqual(container["securityContext"],
                                 {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]},
                                  "readOnlyRootFilesystem": True, "runAsUser": 0})
        self.assertFalse(pod_of(workloads[0])["automountServiceAccountToken"])

    def test_its_settings_are_known_and_right(self):
        said = subprocess.run([paths.KUBELET_PLUGIN, "--help"], capture_output=True, text=True, check=True).stdout
        for overlay in OVERLAYS:
            variables = settings_of(render(MANIFESTS / overlay))
            for name in variables:
                self.assertRegex(name, "^GPUMUX_KUBELET_")
                self.assertIn("--" + name.removeprefix("GPUMUX_KUBELET_").lower().replace("_", "-") + " ", said)
            # 2: a value is refused. 1: no plugin answers.
            done = subprocess.run([paths.KUBELET_PLUGIN, "--check"], capture_output=True, text=True, check=False,
                                  env={**variables, "GPUMUX_KUBELET_DEVICE_PLUGINS": "/nonexistent"})
            self.assertEqual(done.returncode, 1, done.stderr)

    def test_what_it_installs_is_in_the_hosts_folder(self):
        for api in APIS:
            objects = render(MANIFESTS / api)
            install, = pod_of(find(objects, "DaemonSet", f"gpumux-{api}"))["initContainers"]
            self.assertEqual(install["command"], ["gpumux-kubelet-plugin", "--install"])
            folder, = [mount["mountPath"] for mount in install["volumeMounts"]]
            variables = settings_of(objects)
            for name in ("LIBRARIES", "HOOK", "SIM_LIBRARIES"):
                self.assertTrue(variables["GPUMUX_KUBELET_" + name].startswith(folder + "/"), name)

    def test_its_rights_at_the_api_server_are_those_of_the_document(self):
        document = (paths.ROOT / "docs" / "dra.md").read_text(encoding="utf-8")
        said = {row[0]: set(re.findall(r"`(\w+)`", row[1])) for row in
                re.findall(r"^\| `(resourceslices|resourceclaims|nodes)` \| ([^|]*) \|", document, re.MULTILINE)}
        self.assertEqual(set(said), {"resourceslices", "resourceclaims", "nodes"})
        objects = render(MANIFESTS / "dra")
        role = find(objects, "ClusterRole")
        self.assertEqual({rule["resources"][0]: set(rule["verbs"]) for rule in role["rules"]}, said)
        for rule in role["rules"]:
            group = "" if rule["resources"] == ["nodes"] else "resource.k8s.io"
            self.assertEqual((rule["apiGroups"], len(rule["resources"])), ([group], 1))
        account = find(objects, "ServiceAccount")["metadata"]
        binding = find(objects, "ClusterRoleBinding")
        self.assertEqual(binding["roleRef"]["name"], role["metadata"]["name"])
        self.assertEqual(binding["subjects"], [{"kind": "ServiceAccount", "name": account["name"],
                                                "namespace": account["namespace"]}])
        self.assertEqual(pod_of(find(objects, "DaemonSet", "gpumux-dra"))["serviceAccountName"], account["name"])
        policy = find(objects, "ValidatingAdmissionPolicy")
        self.assertIn(f'system:serviceaccount:{account["namespace"]}:{account["name"]}"',
                      policy["spec"]["matchConditions"][0]["expression"])
        self.assertEqual(find(objects, "ValidatingAdmissionPolicyBinding")["spec"]["policyName"],
                         policy["metadata"]["name"])
        self.assertFalse([it for it in render(MANIFESTS / "device-plugin") if "Role" in it["kind"]])


@contextlib.contextmanager
def overlay_with(**fields):
    """The folder of an overlay of a reader's own, which lies beside the others. `fields`: what it says."""
    with tempfile.TemporaryDirectory() as folder:
        tree = pathlib.Path(folder) / "kubernetes"
        shutil.copytree(MANIFESTS, tree)
        own = tree / "own"
        own.mkdir()
        (own / "kustomization.yaml").write_text(yaml.safe_dump({
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization", **fields}), encoding="utf-8")
        yield own


class Components(unittest.TestCase):

    def render_with(self, component):
        with overlay_with(resources=["../device-plugin"], components=[f"../{component}"],
                          images=[{"name": "gpumux", "newName": "registry.example/gpumux"}]) as folder:
            return render(folder)

    def test_a_runtime_class(self):
        objects = self.render_with("nvidia-runtime")
        pod = pod_of(find(objects, "DaemonSet", "gpumuxd"))
        self.assertEqual(pod["runtimeClassName"], "nvidia")
        self.assertEqual(pod["containers"][0]["image"], f"registry.example/gpumux:{TAG}")
        self.assertNotIn("runtimeClassName", pod_of(find(objects, "DaemonSet", "gpumux-device-plugin")))

    def test_metrics(self):
        objects = self.render_with("metrics")
        monitor = yaml.safe_load((MANIFESTS / "metrics" / "pod-monitor.yaml").read_text(encoding="utf-8"))
        endpoint, = monitor["spec"]["podMetricsEndpoints"]
        workload = find(objects, "DaemonSet", "gpumux-device-plugin")
        labels, = monitor["spec"]["selector"]["matchExpressions"]
        self.assertIn(workload["spec"]["template"]["metadata"]["labels"][labels["key"]], labels["values"])
        container, = pod_of(workload)["containers"]
        port, = container["ports"]
        self.assertEqual(port["name"], endpoint["port"])
        # Only the token lets names out, and root alone reads it.
        settings = settings_of(objects)
        self.assertEqual(settings["GPUMUX_KUBELET_METRICS_ADDRESS"], f"0.0.0.0:{port['containerPort']}")
        folder, key = os.path.split(settings["GPUMUX_KUBELET_METRICS_TOKEN_FILE"])
        mount, = [it for it in container["volumeMounts"] if it["mountPath"] == folder]
        secret, = [it["secret"] for it in pod_of(workload)["volumes"] if it["name"] == mount["name"]]
        self.assertEqual(secret["defaultMode"], 0o400)
        self.assertEqual(endpoint["authorization"]["credentials"], {"name": secret["secretName"], "key": key})
        self.assertNotIn("ports", pod_of(find(render(MANIFESTS / "dra"), "DaemonSet", "gpumux-dra"))["containers"][0])

    def test_a_daemon_of_the_host(self):
        self.assertEqual([it["metadata"]["name"] for it in self.render_with("host-daemon")
                          if it["kind"] == "DaemonSet"], ["gpumux-device-plugin"])


FAKE_KUBECTL = """#!/bin/bash
echo "$*" >>"$SAID"
case "$*" in
  kustomize*) exec "$REAL" "$@" ;;
  "get nodes -l gpumux.io/api -o name") echo node/one; echo node/two ;;
  "create -f - -o name") cat >>"$SAID.jobs"; echo ---  >>"$SAID.jobs"; echo job.batch/gpumux-remove-x ;;
  *"get job.batch"*) echo -n "$ENDED" ;;
esac
"""


class Removal(unittest.TestCase):

    def run_removal(self, ended, *nodes, code=0):
        with tempfile.TemporaryDirectory() as folder:
            fake = pathlib.Path(folder) / "kubectl"
            fake.write_text(FAKE_KUBECTL, encoding="utf-8")
            fake.chmod(0o755)
            environment = {"PATH": f"{folder}:{os.environ['PATH']}", "SAID": f"{folder}/said", "REAL": kubectl,
                           "ENDED": ended}
            done = subprocess.run([MANIFESTS / "remove" / "remove.sh", MANIFESTS / "dra", *nodes], env=environment,
                                  capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, code, done.stderr)
            said = pathlib.Path(folder, "said").read_text(encoding="utf-8").splitlines()
            jobs = pathlib.Path(folder, "said.jobs").read_text(encoding="utf-8")
            self.jobs = [job for job in yaml.safe_load_all(jobs) if job]
        return said

    def test_the_order(self):
        said = self.run_removal("1/")
        steps = [("drain one", "drain two"), ("delete daemonset gpumux-d", ), ("create -f -", ),
                 ("delete daemonset gpumuxd", ), ("create -f -", ), ("delete resourceslices", ), ("delete -k", ),
                 ("label node one gpumux.io/api-", "uncordon one", "uncordon two")]
        at = -1
        for step in steps:
            places = [next((i for i, line in enumerate(said) if i > at and words in line), None) for words in step]
            self.assertNotIn(None, places, (step, said))
            at = max(places)
        # Hook and library of both nodes go before the daemon, its folders after it.
        self.assertEqual([pod_of(job)["nodeName"] for job in self.jobs], ["one", "two"] * 2)
        deleted = next(i for i, line in enumerate(said) if "delete daemonset gpumuxd" in line)
        self.assertEqual(sum(line.startswith("create -f -") for line in said[:deleted]), 2, said)
        objects = render(MANIFESTS / "dra")
        for job in self.jobs:
            container, = pod_of(job)["containers"]
            self.assertEqual(container["image"], f"gpumux:{TAG}")
            named = container["envFrom"][0]["configMapRef"]["name"]
            self.assertTrue(find(objects, "ConfigMap", named))

    def test_a_node_in_use_stays(self):
        said = self.run_removal("/1", "one", code=1)
        self.assertFalse([line for line in said if "delete -k" in line or "uncordon" in line or "two" in line or
                          "gpumuxd" in line], said)


if __name__ == "__main__":
    main()
