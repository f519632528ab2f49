# SPDX-License-Identifier: Apache-2.0
"""An API server for the plugin, with real TLS: slices, claims and a node by their paths."""

import http.server
import itertools
import json
import pathlib
import ssl
import subprocess
import threading

SLICES = "/apis/resource.k8s.io/v1/resourceslices"
NODE = "/api/v1/nodes/node-1"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"


class ApiServer:

    def __init__(self, case):
        self.account = pathlib.Path(case.directory) / "service-account"
        self.account.mkdir()
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout",
                        self.account / "key", "-out", self.account / "ca.crt"], check=True, capture_output=True)
        (self.account / "token").write_text("secret\n", encoding="ascii")
        self.objects = {}
        self.versions = itertools.count(1)
        self.store(NODE, {"metadata": {"name": "node-1", "uid": "uid-of-node-1"}})
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path = self.path.partition("?")[0]
                allowed = self.headers["Authorization"] == "Bearer secret"
                status, said = owner.answer(self.command, path, body) if allowed else (401, {"message": "who is it"})
                text = json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # pylint: disable=invalid-name

            def log_message(self, format, *args):  # pylint: disable=redefined-builtin
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request, client_address):
                pass  # a plugin that is killed

        self.server = Server(("127.0.0.1", 0), Handler)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(self.account / "ca.crt", self.account / "key")
        self.server.socket = tls.wrap_socket(self.server.socket, server_side=True)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        thread.start()
        case.addCleanup(self.server.server_close)
        case.addCleanup(self.server.shutdown)

    def store(self, path, item):
        item["metadata"]["resourceVersion"] = str(next(self.versions))
        self.objects[path] = item
        return item

    def answer(self, method, path, body):
        if path == "/apis/resource.k8s.io":
            return 200, {"versions": [{"version": "v1"}]}
        if method == "GET" and path == SLICES:
            return 200, {"items": [item for name, item in list(self.objects.items()) if name.startswith(SLICES)]}
        if method == "POST":
            item = json.loads(body)
            return 201, self.store(f"{path}/{item['metadata']['name']}", item)
        if path not in self.objects:
            return 404, {"message": f"{path} is not found"}
        if method == "GET":
            return 200, self.objects[path]
        if method == "DELETE":
            del self.objects[path]
            return 200, {}
        item = json.loads(body)
        if item["metadata"]["resourceVersion"] != self.objects[path]["metadata"]["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        return 200, self.store(path, item)

    def slice(self):
        slices = [item for name, item in list(self.objects.items()) if name.startswith(SLICES)]
        return slices[0] if slices else None

    def allocate(self, uid, *shares, config=()):
        """A claim whose shares are (device, memory, cores)."""
        results = [{"request": f"r{number}", "driver": "gpumux.io", "pool": "node-1", "device": device,
                    "consumedCapacity": {"memory": memory, "cores": cores}}
                   for number, (device, memory, cores) in enumerate(shares)]
        self.store(f"{CLAIMS}/claim-{uid}", {
            "metadata": {"namespace": "default", "name": f"claim-{uid}", "uid": uid},
            "status": {"allocation": {"devices": {"results": results, "config": list(config)}}}})

    def forget(self, uid):
        del self.objects[f"{CLAIMS}/claim-{uid}"]
