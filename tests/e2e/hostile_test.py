#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Peers that do not keep to the protocol hurt themselves and nobody else.

Method: a worker computes and a second one waits for its turns beside it, both ordinary; meanwhile hostile peers do
everything to the daemon's sockets that comes to mind. The workers must get on and compute the right thing, the
daemon must answer, keep its memory and its descriptors, and be the same process as before.

GPUMUX_TEST_HOSTILE: how many random messages (default 3000). GPUMUX_TEST_SEED repeats a run.
"""

import fcntl
import mmap
import os
import pathlib
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import wire  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.seeds import amount, seeded  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class HostilePeers(GpumuxTest):
    limits = {"silence_limit": "200ms"}

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon(quantum="5ms", **self.limits)
        self.good = [self.start("worker", name=f"good{i}", steps=1_000_000, step_us=400, sync_every=2, say_every=1)
                     for i in range(2)]
        for program in self.good:
            program.wait_for_line("step")
        self.uuid = self.gpu_uuid()
        self.descriptors = self.count_descriptors()
        self.peers = []
        self.addCleanup(lambda: [peer.close() for peer in self.peers])

    def tearDown(self):
        for peer in self.peers:
            peer.close()
        self.expect_undisturbed()
        self.assertEqual(self.daemon.api.daemon()["pid"], self.daemon.pid)
        # The daemon closes the descriptors that the peers opened, and only those.
        wait_until(lambda: self.count_descriptors() <= self.descriptors + 4, HANG,
                   lambda: f"the daemon closes descriptors: {self.descriptors} before, {self.count_descriptors()} now")
        self.assertEqual(self.daemon.terminate(), 0)

    def expect_undisturbed(self):
        before = [program.count("step") for program in self.good]
        wait_until(lambda: all(program.count("step") >= said + 4 for program, said in zip(self.good, before)), HANG,
                   lambda: f"the good programs go on: {[program.tail(2) for program in self.good]}")

    def gpu_uuid(self):
        text = self.daemon.api.gpu()["uuid"].removeprefix("GPU-").replace("-", "")
        return bytes.fromhex(text)

    def count_descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def memory_kib(self):
        with open(f"/proc/{self.daemon.pid}/status", encoding="utf-8") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def peer(self, hello=True):
        peer = wire.Peer(self.runtime_dir)
        self.peers.append(peer)
        if hello:
            self.assertEqual(peer.say_hello()[0], wire.WELCOME)
        return peer

    def expect_ended(self, peer):
        self.assertTrue(peer.is_closed_soon(), "the daemon keeps a peer that breaks the protocol")
        peer.close()
        self.peers.remove(peer)


class Hostile(HostilePeers):

    # ---- messages

    def test_garbage_instead_of_hello(self):
        random = seeded(self.id())
        for data in (b"\0", b"GET / HTTP/1.1\r\n\r\n", bytes(8), b"\xff" * 1024, random.randbytes(200),
                     wire.message(wire.HELLO, b""), wire.hello()[:50], wire.request(0)):
            with self.subTest(data=data[:20]):
                peer = self.peer(hello=False)
                peer.send(data)
                self.expect_ended(peer)

    def test_wrong_lengths(self):
        good = wire.hello()
        for length in (0, 7, len(good) - 1, len(good) + 1, 0x7FFFFFFF, 0xFFFFFFFF):
            with self.subTest(length=length):
                peer = self.peer(hello=False)
                page = wire.make_page()
                peer.send(good[:4] + struct.pack("<I", length) + good[8:], page)
                os.close(page)
                self.expect_ended(peer)

    def test_messages_longer_than_allowed(self):
        peer = self.peer()
        try:
            peer.send(wire.message(wire.NOTE, bytes(60_000)))
        except OSError:
            pass
        self.expect_ended(peer)

    def test_a_message_cut_off_by_death(self):
        # Messages are whole or not there; what can be half is the conversation.
        for stop_after in range(4):
            peer = self.peer(hello=False)
            page = wire.make_page()
            steps = [lambda: peer.send(wire.hello(), page), lambda: peer.send(wire.seat_open(0, self.uuid)),
                     lambda: peer.send(wire.request(0))]
            for step in steps[:stop_after]:
                step()
            os.close(page)
            peer.close()
        self.expect_undisturbed()

    def test_versions(self):
        for protocol, oldest in ((0, 0), (99, 98), (0xFFFFFFFF, 0xFFFFFFFF)):
            peer = self.peer(hello=False)
            answer = peer.say_hello(protocol=protocol, oldest=oldest)
            self.assertEqual(answer[0], wire.REFUSED)
            reason, text = wire.refusal(answer)
            self.assertEqual(reason, "version")
            self.assertNotEqual(text, "")
            self.expect_ended(peer)
        # A newer library that still speaks ours is welcome.
        peer = self.peer(hello=False)
        self.assertEqual(peer.say_hello(protocol=99, oldest=1)[0], wire.WELCOME)

    def test_random_messages(self):
        random = seeded(self.id())
        kinds = [wire.SEAT_OPEN, wire.SEAT_CLOSE, wire.REQUEST, wire.REVOKE_SEEN, wire.GATE_CLOSED, wire.DRAINED,
                 wire.STEPPED, wire.GANG_JOIN, wire.NOTE, wire.HELLO, 0, 99, wire.WELCOME]
        bodies = {wire.SEAT_OPEN: 40, wire.GANG_JOIN: 64, wire.NOTE: 520, wire.HELLO: wire.HELLO_BYTES}
        peer = self.peer()
        ended = 0
        for _ in range(amount("GPUMUX_TEST_HOSTILE", 3000)):
            kind = random.choice(kinds)
            size = bodies.get(kind, 16 if kind not in (wire.REQUEST, wire.SEAT_CLOSE) else 8)
            body = bytearray(size) if random.random() < 0.5 else bytearray(random.randbytes(size))
            if size >= 16 and random.random() < 0.7:
                struct.pack_into("<I", body, 0, random.choice([0, 0, 1, 63, 64, 0xFFFFFFFF]))
                struct.pack_into("<Q", body, 8, random.choice([0, 1, 2**63, 2**64 - 1, random.getrandbits(64)]))
            if kind == wire.SEAT_OPEN and random.random() < 0.7:
                body = wire.seat_open(random.randrange(3), self.uuid, random.randrange(5), random.getrandbits(60))[8:]
            try:
                peer.send(wire.message(kind, bytes(body)))
            except OSError:
                ended += 1
                peer.close()
                self.peers.remove(peer)
                peer = self.peer()
        self.assertGreater(ended, 0)
        self.expect_undisturbed()

    def test_a_flood_of_messages(self):
        peer = self.peer()
        peer.socket.settimeout(0.2)
        peer.send(wire.seat_open(0, self.uuid))
        end = time.monotonic() + 2
        sent = 0
        while time.monotonic() < end:
            try:
                peer.send(wire.request(0))
                sent += 1
            except (TimeoutError, OSError):
                break
        self.expect_undisturbed()

    def test_a_peer_that_never_reads(self):
        peer = self.peer()
        peer.socket.settimeout(1)
        try:
            for slot in range(20_000):
                peer.send(wire.seat_open(slot % 64, self.uuid))
                peer.send(wire.message(wire.SEAT_CLOSE, struct.pack("<II", slot % 64, 0)))
        except (TimeoutError, OSError):
            pass
        self.expect_undisturbed()
        self.assertLess(self.memory_kib(), 100 * 1024)

    # ---- lease pages

    def test_bad_pages(self):
        pages = {
            "too short": wire.make_page(4096),
            "too long": wire.make_page(1 << 20),
            "not sealed": wire.make_page(seals=0),
            "may shrink": wire.make_page(seals=fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL),
            "a file": os.open(os.path.join(self.directory, "file"), os.O_RDWR | os.O_CREAT),
            "a pipe": os.pipe()[0],
            "a device": os.open("/dev/zero", os.O_RDWR),
            "the directory": os.open(self.directory, os.O_RDONLY),
        }
        for name, fd in pages.items():
            with self.subTest(page=name):
                peer = self.peer(hello=False)
                answer = peer.say_hello(page=fd)
                self.assertEqual(answer[0], wire.REFUSED)
                self.assertEqual(wire.refusal(answer)[0], "bad page")
                self.expect_ended(peer)
            os.close(fd)
        with self.subTest(page="none"):
            peer = self.peer(hello=False)
            peer.send(wire.hello())
            self.assertEqual(wire.refusal(peer.receive())[0], "bad page")
            self.expect_ended(peer)

    def test_a_scribbled_page(self):
        random = seeded(self.id())
        peer = self.peer(hello=False)
        page = wire.make_page()
        self.assertEqual(peer.say_hello(page=page)[0], wire.WELCOME)
        peer.send(wire.seat_open(0, self.uuid))
        with mmap.mmap(page, wire.PAGE_BYTES) as memory:
            end = time.monotonic() + 1.5
            while time.monotonic() < end:
                at = random.randrange(0, wire.PAGE_BYTES - 64)
                memory[at:at + 64] = random.randbytes(64)
                memory[0:16] = random.randbytes(16)
                try:
                    peer.send(wire.request(0))
                except OSError:
                    break
                time.sleep(0.001)
        with self.assertRaises(OSError):
            os.ftruncate(page, 0)
        os.close(page)
        self.expect_undisturbed()

    def test_a_holder_that_never_answers(self):
        """Asks for the GPU and ignores the revocation: the others pass it over and go on."""
        peer = self.peer()
        peer.send(wire.seat_open(0, self.uuid))
        peer.send(wire.request(0))
        self.daemon.trace.wait_for(event="silent", pid=os.getpid())
        self.expect_undisturbed()

    def test_a_holder_that_says_it_holds_for_ever(self):
        """Claims leases that it never had."""
        for epoch in (1, 2**40, 2**63, 2**64 - 1):
            peer = self.peer()
            peer.send(wire.seat_open(0, self.uuid, state=2, epoch=epoch, exclusive=1))
            self.expect_undisturbed()

    # ---- connections and descriptors

    def test_thousands_of_connections(self):
        sockets = []
        try:
            for _ in range(3000):
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                connection.settimeout(1)
                try:
                    connection.connect(f"{self.runtime_dir}/tenants/tenants.sock")
                except (TimeoutError, OSError):
                    connection.close()
                    break
                sockets.append(connection)
            self.expect_undisturbed()
            self.assertLess(self.memory_kib(), 200 * 1024)
            late = self.start("worker", name="late", steps=10, step_us=200)
            late.expect_success()
        finally:
            for connection in sockets:
                connection.close()

    def test_tenants_that_come_and_go(self):
        for _ in range(300):
            peer = self.peer()
            peer.send(wire.seat_open(0, self.uuid))
            peer.send(wire.request(0))
            peer.close()
            self.peers.remove(peer)
        wait_until(lambda: len(self.daemon.api.seats()) == 2, HANG, "only the good programs have seats")

    def test_floods_of_descriptors(self):
        peer = self.peer()
        null = os.open("/dev/null", os.O_RDONLY)
        try:
            for _ in range(200):
                peer.send(wire.request(0), *([null] * 200))
        except OSError:
            pass
        os.close(null)
        self.expect_undisturbed()

    def lingering(self):
        """A TCP socket whose last close() sleeps for an hour."""
        listener = socket.create_server(("127.0.0.1", 0))
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        listener.close()
        self.addCleanup(far.close)  # which ends the sleep
        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
        near.setblocking(False)
        try:
            while True:
                near.send(bytes(65536))
        except BlockingIOError:
            return near

    def test_descriptors_that_take_an_hour_to_close(self):
        def to_tenants(near, data):
            peer = self.peer(hello=False)
            peer.send(data, near.fileno())

        def to_api(near, data):
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.connect(f"{self.runtime_dir}/api.sock")
            self.addCleanup(connection.close)
            try:
                socket.send_fds(connection, [data], [near.fileno()])
            except PermissionError:  # the kernel refuses it for the daemon
                near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))

        ways = {"instead of a page": (to_tenants, wire.hello()), "with garbage": (to_tenants, b"garbage"),
                "with half a request": (to_api, b"GET /v1/st"),
                "with a request": (to_api, b"GET /v1/status HTTP/1.1\r\n\r\n")}
        for name, (send, data) in ways.items():
            with self.subTest(way=name):
                near = self.lingering()
                send(near, data)
                # Sleeps itself if the daemon has closed its own one first.
                threading.Thread(target=near.close, daemon=True).start()
                self.expect_undisturbed()
                self.daemon.api.status()

    # ---- the API's socket

    def test_hostile_http(self):
        random = seeded(self.id())
        requests = [b"\0" * 100, b"GET /v1/status HTTP/1.1\r\nX: " + b"a" * 1_000_000,
                    b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
                    b"PATCH /v1/gpus/0 HTTP/1.1\r\nContent-Length: 999999999999\r\n\r\n{", b"POST / HTTP/1.1\r\n\r\n",
                    b"PATCH /v1/gpus/all HTTP/1.1\r\nContent-Length: 60000\r\n\r\n" + b"[" * 60_000,
                    b"GET /v1/trace?follow=1&since=-1 HTTP/1.1\r\n\r\n", b"GET /v1/gpus/99 HTTP/1.1\r\n\r\n",
                    random.randbytes(3000)]
        connections = []
        for data in requests * 3:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            connection.settimeout(1)
            connection.connect(f"{self.runtime_dir}/api.sock")
            connections.append(connection)
            try:
                connection.sendall(data)
            except (TimeoutError, OSError):
                pass
        self.expect_undisturbed()
        self.daemon.api.status()
        for connection in connections:
            connection.close()


class Undrained(HostilePeers):
    # It is never silent, however slow the machine is.
    limits = {"silence_limit": "1h", "stall_timeout": "100ms"}

    def test_a_holder_that_answers_and_never_drains(self):
        """It asks for every turn, says that it is alive, and does not give the GPU up. Its turns end all the same."""
        peer = self.peer()
        peer.send(wire.seat_open(0, self.uuid))
        peer.send(wire.request(0))
        done = threading.Event()

        def answer():
            while not done.is_set():
                try:
                    message = peer.receive()
                except TimeoutError:
                    continue
                if message is None:
                    return
                kind, body = message
                if kind == wire.REVOKE:
                    slot, _, epoch = struct.unpack_from("<IIQ", body)
                    peer.send(wire.about(wire.REVOKE_SEEN, slot, epoch))
                    peer.send(wire.request(slot))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            for turns in (1, 2):
                self.daemon.trace.wait_for(event="stall", pid=os.getpid(), count=turns)
                self.expect_undisturbed()
            self.assertEqual(self.daemon.trace.events(event="drained", pid=os.getpid()), [])
        finally:
            done.set()
            peer.socket.shutdown(socket.SHUT_RDWR)
            thread.join()


if __name__ == "__main__":
    main()
