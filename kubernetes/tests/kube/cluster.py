# SPDX-License-Identifier: Apache-2.0
"""A cluster of one test's own, of one node: also etcd, an API server, the controller manager and the scheduler.

All run in the node's namespaces (node.py) and end with it. They are those of a folder that the reader has built or
downloaded, of Kubernetes 1.34 or newer. The API server speaks TLS and knows its users by tokens. It allows what
Kubernetes' authorizers for nodes and roles allow, as on a real cluster.
"""

import http.client
import json
import os
import pathlib
import secrets
import shutil
import ssl
import subprocess
import urllib.parse

from framework.node_init import ADDRESSES
from framework.waiting import HANG, wait_until
from .node import NODE_NAME, Node, Pod

NODE_ADDRESS, SERVICE_ADDRESS = ADDRESSES
PORT = 443  # that of the service, too: no proxy for services runs here
SERVER = f"{NODE_ADDRESS}:{PORT}"
ETCD = "http://127.0.0.1:2379"
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd",
            "containerd-shim-runc-v2", "ctr")
DRIVER = "gpumux.io"
RESOURCES = "/apis/resource.k8s.io/v1"

# The users that the API server knows, and their groups.
USERS = {"admin": ("admin", "system:masters"), "kubelet": (f"system:node:{NODE_NAME}", "system:nodes"),
         "controllers": ("system:kube-controller-manager", ""), "scheduler": ("system:kube-scheduler", "")}

# The plugin's rights (docs/dra.md).
ROLE = [{"apiGroups": ["resource.k8s.io"], "resources": ["resourceslices"],
         "verbs": ["list", "create", "update", "delete"]},
        {"apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]


def missing_programs(folder):
    return [name for name in PROGRAMS if not os.access(pathlib.Path(folder, name), os.X_OK)]


class ApiError(Exception):

    def __init__(self, status, said):
        super().__init__(f"{status}: {said}")
        self.status = status


class _Connection(http.client.HTTPSConnection):
    """From outside of the node's network."""

    def __init__(self, make_socket, context):
        super().__init__(NODE_ADDRESS, PORT, timeout=30, context=context)
        self._make_socket = make_socket
        self._tls = context

    def connect(self):
        self.sock = self._make_socket()  # close() finds it there
        self.sock.settimeout(self.timeout)
        self.sock.connect((self.host, self.port))
        self.sock = self._tls.wrap_socket(self.sock, server_hostname=self.host)


class ApiClient:
    """As the user of a token."""

    def __init__(self, make_socket, authority, token):
        self.connection = _Connection(make_socket, ssl.create_default_context(cafile=authority))
        self.token = token

    def ask(self, method, path, body=None):
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            self.connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            answer = self.connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException):
            self.connection.close()  # the next request connects again
            raise
        if answer.status // 100 != 2:
            raise ApiError(answer.status, text)
        return json.loads(text) if text.startswith("{") else text

    def get(self, path):
        return self.ask("GET", path)

    def create(self, path, item):
        return self.ask("POST", path, item)

    def delete(self, path):
        return self.ask("DELETE", path)

    def items(self, path):
        return self.get(path)["items"]

    def serves(self, path):
        """Whether there is an answer now, and it is no error."""
        try:
            self.get(path)
        except (OSError, http.client.HTTPException, ApiError):
            return False
        return True


class Cluster(Node):

    def __init__(self, case, binaries):
        super().__init__(case, binaries)
        self.credentials = self.directory / "credentials"
        self.authority = self.credentials / "ca.crt"
        self.tokens = {name: secrets.token_hex(16) for name in USERS}
        self.api = None

    # ---- starting

    def start(self, image):
        super().start(image)
        self.wait_ready()
        return self

    def start_servers(self):
        """Instead of start(): no node, so objects are kept and no pod runs."""
        self._start_first()
        return self

    def _start_first(self):
        super()._start_first()
        self._make_credentials()
        self._start_control_plane()

    def _make_credentials(self):
        self.credentials.mkdir()
        self.key = self.credentials / "key"
        names = ",".join(f"IP:{address}" for address in ("127.0.0.1", *ADDRESSES))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-subj", "/CN=cluster", "-addext", f"subjectAltName={names}", "-keyout", self.key, "-out",
                        self.authority], check=True, capture_output=True)
        with open(self.credentials / "tokens.csv", "w", encoding="ascii") as file:
            for name, (user, group) in USERS.items():
                file.write(f"{self.tokens[name]},{user},{name},{group}\n")
        for name, token in self.tokens.items():
            # JSON is YAML.
            (self.credentials / name).write_text(json.dumps({
                "apiVersion": "v1", "kind": "Config", "current-context": "it",
                "clusters": [{"name": "it", "cluster": {"server": f"https://{SERVER}",
                                                        "certificate-authority": str(self.authority)}}],
                "users": [{"name": "it", "user": {"token": token}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}]}), encoding="ascii")

    def _start_control_plane(self):
        self.start_process("etcd", "--data-dir", self.directory / "etcd", "--listen-client-urls", ETCD,
                           "--advertise-client-urls", ETCD, "--unsafe-no-fsync", "--log-level=warn")
        server = self.start_process(
            "kube-apiserver", f"--etcd-servers={ETCD}", f"--secure-port={PORT}", "--bind-address=0.0.0.0",
            f"--advertise-address={NODE_ADDRESS}", f"--service-cluster-ip-range={SERVICE_ADDRESS}/24",
            f"--tls-cert-file={self.authority}", f"--tls-private-key-file={self.key}",
            f"--token-auth-file={self.credentials / 'tokens.csv'}", "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction", "--allow-privileged",
            "--service-account-issuer=https://cluster", f"--service-account-key-file={self.authority}",
            f"--service-account-signing-key-file={self.key}")
        self.api = self.client(self.tokens["admin"])
        self._wait_for(server, "/readyz")
        self.start_process("kube-controller-manager", f"--kubeconfig={self.credentials / 'controllers'}",
                           f"--service-account-private-key-file={self.key}", f"--root-ca-file={self.authority}",
                           "--use-service-account-credentials", "--leader-elect=false")
        self.start_process("kube-scheduler", f"--kubeconfig={self.credentials / 'scheduler'}", "--leader-elect=false")
        self.wait_namespace("default")

    def client(self, token):
        """A connection to the API server. The caller closes it; that of `api` ends with the cluster."""
        return ApiClient(self._socket, self.authority, token)

    def kubectl(self, program, *arguments):
        """Runs in the node as the cluster's administrator; its output. Warnings of the API server are errors."""
        return self.run(program, f"--kubeconfig={self.credentials / 'admin'}", "--warnings-as-errors",
                        f"--cache-dir={self.directory / 'kubectl'}", *arguments)

    def _wait_for(self, process, path):
        def served():
            if process.code is not None:
                raise AssertionError(f"{process.name} ended with {process.code}: {process.tail(20)}")
            return self.api.serves(path)

        wait_until(served, HANG, lambda: f"{process.name} serves {path}: {process.tail(20)}", poll=0.1)

    def wait_namespace(self, name):
        """Pods can be made there: the controller manager has made its service account."""
        wait_until(lambda: self.api.serves(f"/api/v1/namespaces/{name}/serviceaccounts/default"), HANG,
                   f"namespace {name} has a service account", poll=0.1)

    def make_namespace(self, name):
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name}})
        self.wait_namespace(name)

    def _start_containerd(self):
        # The kubelet calls a node ready whose runtime has a network. No pod here uses it.
        network = self.directory / "cni/net.d"
        network.mkdir(parents=True)
        (network / "none.conflist").write_text(json.dumps(
            {"cniVersion": "1.0.0", "name": "none", "plugins": [{"type": "loopback"}]}), encoding="ascii")
        super()._start_containerd()

    def kubelet_configuration(self):
        # The scheduler learns of devices by the node's status.
        return {**super().kubelet_configuration(), "nodeStatusUpdateFrequency": "1s"}

    def kubelet_flags(self):
        return [f"--kubeconfig={self.credentials / 'kubelet'}", f"--node-ip={NODE_ADDRESS}"]

    def end(self):
        if self.api is not None:
            self.api.connection.close()
        super().end()

    # ---- the node

    @property
    def status(self):
        """The API server's account of the node; empty before there is one."""
        try:
            return self.api.get(f"/api/v1/nodes/{NODE_NAME}")["status"]
        except ApiError:
            return {}

    def wait_ready(self):
        def ready():
            if self.kubelet.code is not None:
                raise AssertionError(f"the kubelet ended with {self.kubelet.code}: {self.kubelet.tail(20)}")
            return any(each["type"] == "Ready" and each["status"] == "True"
                       for each in self.status.get("conditions", []))

        wait_until(ready, HANG, lambda: f"the node is ready; it is {self.status.get('conditions')}", poll=0.1)

    def registered(self, since):
        """Also the scheduler knows them."""
        counts = super().registered(since)
        allocatable = self.status.get("allocatable", {})
        return {name: count for name, count in counts.items() if allocatable.get(name) == str(count)}

    # ---- pods

    def pods(self):
        """The API server's account, of all namespaces."""
        return {pod["metadata"]["name"]: pod for pod in self.api.items("/api/v1/pods")}

    def run_pod(self, name, *arguments, namespace="default", claim=None, **options):
        """`claim`: the name of a template of the namespace."""
        manifest = self.manifest(name, *arguments, **options)
        if claim is not None:
            manifest["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": claim}]
            manifest["spec"]["containers"][0]["resources"]["claims"] = [{"name": "gpu", "request": "gpu"}]
        self.api.create(f"/api/v1/namespaces/{namespace}/pods", manifest)
        return Pod(self, name)

    def remove_pod(self, name, **options):
        """`options`: DeleteOptions of Kubernetes."""
        self.api.ask("DELETE", self._path(self.pods()[name]), options)

    @staticmethod
    def _path(pod):
        return f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"

    def explain(self, name):
        events = self.api.items("/api/v1/events?" + urllib.parse.urlencode(
            {"fieldSelector": f"involvedObject.name={name}"}))
        return "its events: " + "; ".join(event["message"] for event in events)

    # ---- claims

    def slices(self):
        query = urllib.parse.urlencode({"fieldSelector": f"spec.driver={DRIVER}"})
        return self.api.items(f"{RESOURCES}/resourceslices?{query}")

    def remove_slices(self):
        for each in self.slices():
            self.api.delete(f"{RESOURCES}/resourceslices/{each['metadata']['name']}")

    def claims(self):
        return self.api.items(f"{RESOURCES}/resourceclaims")

    def make_device_class(self, name, **spec):
        self.api.create(f"{RESOURCES}/deviceclasses", {"metadata": {"name": name}, "spec": {
            "selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}], **spec}})

    @staticmethod
    def priority(value):
        """A configuration of a device class or a claim."""
        parameters = {"apiVersion": "gpumux.io/v1alpha1", "kind": "Sharing", "priority": value}
        return {"opaque": {"driver": DRIVER, "parameters": parameters}}

    def make_template(self, name, device_class, namespace="default", count=1, alternatives=(), config=(), **capacity):
        """`alternatives`: capacities of which the scheduler takes the first that there is, instead of `capacity`."""
        def devices(requests):
            return {"deviceClassName": device_class, "count": count, "capacity": {"requests": requests}}

        if alternatives:
            wanted = {"firstAvailable": [{"name": f"alternative-{i}", **devices(one)}
                                         for i, one in enumerate(alternatives)]}
        else:
            wanted = {"exactly": devices(capacity)}
        self.api.create(f"{RESOURCES}/namespaces/{namespace}/resourceclaimtemplates", {
            "metadata": {"name": name},
            "spec": {"spec": {"devices": {"requests": [{"name": "gpu", **wanted}], "config": list(config)}}}})

    # ---- the plugin

    def make_service_account(self, name):
        """A folder with what a pod of this account has, and the account may do what the plugin does."""
        self.api.create("/api/v1/namespaces/kube-system/serviceaccounts", {"metadata": {"name": name}})
        roles = "/apis/rbac.authorization.k8s.io/v1/"
        self.api.create(roles + "clusterroles", {"metadata": {"name": name}, "rules": ROLE})
        self.api.create(roles + "clusterrolebindings", {
            "metadata": {"name": name}, "roleRef": {"kind": "ClusterRole", "name": name, "apiGroup":
                                                    "rbac.authorization.k8s.io"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}]})
        made = self.api.create(f"/api/v1/namespaces/kube-system/serviceaccounts/{name}/token", {"spec": {}})
        folder = self.directory / name
        folder.mkdir()
        (folder / "token").write_text(made["status"]["token"], encoding="ascii")
        shutil.copy(self.authority, folder / "ca.crt")
        return folder
