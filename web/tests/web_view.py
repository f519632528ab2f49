# SPDX-License-Identifier: Apache-2.0
"""`gpumux web` and its browsers' requests, by hand: sessions, requests with chosen headers, WebSockets."""

import base64
import http.client
import json
import os
import re
import socket
import struct

from framework.waiting import HANG, wait_until

LINK = re.compile(r"http://127\.0\.0\.1:(\d+)/#([0-9a-f]{64})")


def wait_for_link(process, after=0):
    """(port, token) of the link that a `gpumux web` prints, the one number `after` of all that it has printed."""
    def found():
        links = LINK.findall("\n".join(process.lines))
        return links[after] if len(links) > after else None

    port, token = wait_until(found, HANG, "gpumux web prints a link")
    return int(port), token


class Answer:

    def __init__(self, answer):
        self.status = answer.status
        self.headers = answer.headers
        self.text = answer.read().decode(errors="replace")

    @property
    def json(self):
        return json.loads(self.text)


class Browser:
    """One browser's session with one `gpumux web`."""

    def __init__(self, port):
        self.port = port
        self.host = f"127.0.0.1:{port}"
        self.cookie = self.key = None

    def headers(self, **changed):
        """Of a request of this page; a changed header that is None is left out."""
        headers = {"Host": self.host, "Origin": f"http://{self.host}", "Cookie": self.cookie, "X-Gpumux-Key": self.key}
        headers.update({name.replace("_", "-"): value for name, value in changed.items()})
        return {name: value for name, value in headers.items() if value is not None}

    def ask(self, method, target, body=None, **changed):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            data = body if isinstance(body, str) or body is None else json.dumps(body)
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers(**changed).items():
                connection.putheader(name, value)
            if data is not None:
                connection.putheader("Content-Length", str(len(data)))
            connection.endheaders(data.encode() if data is not None else None)
            return Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, target, **changed):
        return self.ask("GET", target, **changed)

    def log_in(self, token):
        answer = self.ask("POST", "/session", token)
        if answer.status == 200:
            self.cookie = answer.headers["Set-Cookie"].split(";")[0]
            self.key = answer.json["key"]
        return answer

    def view(self, **changed):
        return View(self, **changed)


class View:
    """An open page's WebSocket; `status` is 101 if it was opened."""

    def __init__(self, browser, **changed):
        headers = browser.headers(X_Gpumux_Key=None, Upgrade="websocket", Connection="Upgrade",
                                  Sec_WebSocket_Version="13",
                                  Sec_WebSocket_Key=base64.b64encode(os.urandom(16)).decode(),
                                  Sec_WebSocket_Protocol=f"gpumux, {browser.key}")
        headers.update({name.replace("_", "-"): value for name, value in changed.items()})
        self.socket = socket.create_connection(("127.0.0.1", browser.port), timeout=20)
        lines = [f"{name}: {value}" for name, value in headers.items() if value is not None]
        self.socket.sendall("\r\n".join(["GET /live HTTP/1.1", *lines, "", ""]).encode())
        self.file = self.socket.makefile("rb")
        self.status = int(self.file.readline().split()[1])
        while self.file.readline() not in (b"\r\n", b""):
            pass

    def frame(self):
        """(opcode, payload) of the next one; (8, b"") at the end."""
        head = self.file.read(2)
        if len(head) < 2:
            return 8, b""
        size = head[1] & 0x7f
        if size == 126:
            size, = struct.unpack("!H", self.file.read(2))
        elif size == 127:
            size, = struct.unpack("!Q", self.file.read(8))
        return head[0] & 0x0f, self.file.read(size)

    def text(self):
        """The next message as it came; None: the view was closed."""
        while True:
            opcode, payload = self.frame()
            if opcode == 8:
                return None
            if opcode == 9:    # a ping; the server waits for the answer
                self.socket.sendall(bytes([0x8a, 0x80 | len(payload)]) + bytes(4) + payload)
            elif opcode == 1:
                return payload

    def next(self, kind=None):
        """The next message, of a kind if one is named; None: the view was closed."""
        while (text := self.text()) is not None:
            message = json.loads(text)
            if kind in (None, message["kind"]):
                return message
        return None

    def wait_for_event(self, **fields):
        """The first event of the trace with these fields."""
        while True:
            for event in self.next("news")["events"]:
                if all(event.get(name) == value for name, value in fields.items()):
                    return event

    def close(self):
        self.file.close()
        self.socket.close()
