# SPDX-License-Identifier: Apache-2.0
"""The tenant's side of src/wire/messages.h, spoken by hand: for peers that do not keep to it."""

import fcntl
import os
import socket
import struct

HELLO, SEAT_OPEN, SEAT_CLOSE, REQUEST, REVOKE_SEEN, GATE_CLOSED, DRAINED, STEPPED, GANG_JOIN, NOTE = range(1, 11)
WELCOME, REFUSED, SEAT_OPENED, SEAT_REFUSED, REVOKE, REOPEN, STEP, CONTENTION = range(64, 72)

PAGE_BYTES = 8192
HELLO_BYTES = 248
PROTOCOL = 1
MAX_MESSAGE = 1024

REASONS = {1: "version", 2: "limit", 3: "denied", 4: "bad page", 5: "unknown GPU", 6: "slot in use",
           7: "owned elsewhere"}


def message(kind, body, length=None):
    """Header and body. `length`: what the header says, if not the truth."""
    return struct.pack("<II", kind, 8 + len(body) if length is None else length) + body


def hello(program=b"hostile", gang=b"", protocol=PROTOCOL, oldest=PROTOCOL, world=0):
    body = struct.pack("<IIII64s64s16s", protocol, oldest, world, os.getpid(), program, gang, b"0")
    return message(HELLO, body.ljust(HELLO_BYTES, b"\0"))


def seat_open(slot, uuid, state=0, epoch=0, exclusive=0):
    return message(SEAT_OPEN, struct.pack("<IIQII16s", slot, state, epoch, exclusive, 0, uuid))


def request(slot):
    return message(REQUEST, struct.pack("<II", slot, 0))


def about(kind, slot, epoch, value=0):
    """RevokeSeen, GateClosed, Drained, Stepped."""
    return message(kind, struct.pack("<IIQ", slot, value, epoch))


def make_page(size=PAGE_BYTES, seals=None):
    """A lease page's descriptor. Seals: all that are needed, unless others are named."""
    fd = os.memfd_create("page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals is None:
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


class Peer:
    """A connection to the daemon's tenant socket."""

    def __init__(self, runtime_dir, timeout=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(timeout)
        self.socket.connect(f"{runtime_dir}/tenants/tenants.sock")

    def send(self, data, *fds):
        if fds:
            return socket.send_fds(self.socket, [data], list(fds))
        return self.socket.send(data)

    def say_hello(self, page=None, **fields):
        """Hello with a good page; the daemon's answer."""
        own = make_page() if page is None else page
        try:
            self.send(hello(**fields), own)
        finally:
            if page is None:
                os.close(own)
        return self.receive()

    def receive(self):
        """(type, body); None: the daemon has closed the connection."""
        try:
            data = self.socket.recv(MAX_MESSAGE)
        except ConnectionResetError:
            return None
        if not data:
            return None
        return struct.unpack_from("<I", data)[0], data[8:]

    def is_closed_soon(self):
        """Reads until the daemon closes; False: it did not within the timeout."""
        try:
            while self.receive() is not None:
                pass
        except TimeoutError:
            return False
        return True

    def close(self):
        self.socket.close()


def refusal(answer):
    """(reason, text) of a Refused's or SeatRefused's body."""
    kind, body = answer
    offset = 0 if kind == REFUSED else 4
    reason = struct.unpack_from("<I", body, offset)[0]
    return REASONS.get(reason, reason), body[8:136].split(b"\0")[0].decode()
