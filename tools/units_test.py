#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What systemd's units must not say. Goal: limits that look harmless and break what the daemon promises stay out."""

import configparser
import pathlib
import unittest

UNITS = pathlib.Path(__file__).resolve().parent.parent / "packaging" / "systemd"


def settings_of(name, section="Service"):
    # A key may stand there several times; of these none may.
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str
    parser.read(UNITS / name)
    return dict(parser[section])


class Units(unittest.TestCase):

    def test_host_memory_for_evicted_data_is_not_limited(self):
        # It is charged to the daemon's control group, and can be most of the machine's memory.
        limits = {"MemoryMax", "MemoryHigh", "MemoryLimit", "MemorySwapMax", "LimitAS", "LimitDATA", "LimitMEMLOCK"}
        self.assertEqual(limits & settings_of("gpumuxd.service").keys(), set())

    def test_stopping_the_daemon_stops_nobody_else(self):
        self.assertEqual(settings_of("gpumuxd.service")["KillMode"], "process")

    def test_containers_cannot_start_jobs(self):
        # Who reaches this socket as root is root, and /run/gpumux is passed into containers.
        socket = settings_of("gpumux-runner.socket", "Socket")
        path = pathlib.PurePath(socket["ListenSequentialPacket"])
        self.assertNotIn(pathlib.PurePath("/run/gpumux"), path.parents)
        self.assertEqual((socket["SocketMode"], socket["DirectoryMode"]), ("0600", "0700"))
        self.assertIn(f'"{path}"', (UNITS.parent.parent / "src/daemon/jobs/job_queue_open.cc").read_text())


if __name__ == "__main__":
    unittest.main()
