# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP API over its unix socket (docs/api.md)."""

import http.client
import json
import socket

from .waiting import HANG


class ApiError(Exception):

    def __init__(self, status, body):
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class _Connection(http.client.HTTPConnection):

    def __init__(self, path, timeout):
        super().__init__("gpumux", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Api:

    def __init__(self, path, timeout=HANG):
        self.path = str(path)
        self.timeout = timeout

    def connect(self):
        """A connection for several requests."""
        return _Connection(self.path, self.timeout)

    def is_served(self):
        """Whether a daemon listens on the socket. A daemon that starts makes the file before it listens."""
        connection = self.connect()
        try:
            connection.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        finally:
            connection.close()
        return True

    def ask(self, method, target, body=None):
        text = self._text(method, target, body)
        return json.loads(text) if text else None

    def lines(self, target):
        """The answer as text: one JSON object a line."""
        return self._text("GET", target)

    def _text(self, method, target, body=None):
        connection = self.connect()
        try:
            data = json.dumps(body).encode() if body is not None else None
            connection.request(method, target, body=data, headers={"Content-Type": "application/json"} if data else {})
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        if answer.status // 100 != 2:
            raise ApiError(answer.status, text)
        return text

    def daemon(self):
        return self.ask("GET", "/v1/daemon")

    def status(self):
        return self.ask("GET", "/v1/status")

    def gpu(self, index=0):
        return self.status()["gpus"][index]

    def seats(self, index=0):
        return self.gpu(index)["seats"]

    def set_tenant(self, pid, **standing):
        tenant = next(seat["tenant"] for gpu in self.status()["gpus"] for seat in gpu["seats"] if seat["pid"] == pid)
        return self.ask("PATCH", f"/v1/tenants/{tenant}", standing)

    def set(self, gpu="all", **settings):
        return self.ask("PATCH", f"/v1/gpus/{gpu}", settings)
