#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each missing or wrong part is reported clearly, has its documented effect, and never ends the program.

Method: programs and daemons are started where something is missing (no daemon, no driver, no GPU, no permission) or
wrong (versions, variables), and what they say and do is compared with docs/environment.md and the daemon's and the
command's exit codes.
"""

import errno
import os
import pathlib
import pwd
import re
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths, wire  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.daemon import Daemon  # noqa: E402
from framework.process import Process  # noqa: E402
from framework.sandbox import sandbox  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

QUICK = {"GPUMUX_CONNECT_TIMEOUT": "0.2s"}


class WithoutADaemon(GpumuxTest):

    def expect_ungated(self, said, **variables):
        want = self.native_digest(steps=10)
        program = self.start("worker", variables={**QUICK, **variables}, steps=10).expect_success()
        self.assertEqual(program.field("digest"), want)
        messages = [line for line in program.errors if line.startswith("gpumux: running without gpumux")]
        self.assertEqual(len(messages), 1, program.errors)
        self.assertIn(said, messages[0])
        return program

    def test_no_daemon(self):
        program = self.expect_ungated("no daemon answers")
        self.assertIn("gpumux run", program.errors[0])

    def test_no_runtime_directory(self):
        self.expect_ungated("cannot see the folder", GPUMUX_RUNTIME_DIR=os.path.join(self.directory, "nowhere"),
                            GPUMUX_CONNECT_TIMEOUT="100000s")

    def test_a_quota_without_a_daemon_is_an_error(self):
        variables = {**QUICK, "GPUMUX_MEM_LIMIT": "60M"}
        for more in ({}, {"GPUMUX_PAGING": "off"}, {"GPUMUX_MEMORY": "managed"}):
            program = self.start("large", variables={**variables, **more}, blocks=1, block_kib=4096, rounds=1)
            self.assertEqual(program.wait(), 3, program.tail())
            self.assertEqual(program.field("code"), "2")  # CUDA_ERROR_OUT_OF_MEMORY
            self.assertIn("cannot be kept", "".join(program.errors))

    def test_a_runtime_directory_with_a_name_too_long(self):
        self.expect_ungated("107 bytes", GPUMUX_RUNTIME_DIR="/tmp/" + "x" * 200)

    def test_a_dead_socket(self):
        os.mkdir(f"{self.runtime_dir}/tenants")
        left = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        left.bind(f"{self.runtime_dir}/tenants/tenants.sock")
        left.close()
        self.expect_ungated("no daemon answers")

    def test_somebody_elses_directory(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to give a directory away")
        # The user's own place, /tmp/gpumux-UID, is taken by another user.
        place = os.path.join(self.directory, "xdg")
        os.makedirs(os.path.join(place, "gpumux"))
        os.chown(os.path.join(place, "gpumux"), 12345, 12345)
        self.expect_ungated("", GPUMUX_RUNTIME_DIR="", XDG_RUNTIME_DIR=place)

    def test_a_socket_that_may_not_be_used(self):
        if os.geteuid() != 0:
            self.skipTest("needs root, to become another user")
        self.start_daemon()
        os.chmod(self.directory, 0o755)
        os.chmod(self.runtime_dir, 0o755)
        os.chmod(f"{self.runtime_dir}/tenants/tenants.sock", 0o600)
        os.chmod(self.machine.directory, 0o777)
        for root, _, files in os.walk(self.machine.directory):
            for name in files:
                os.chmod(os.path.join(root, name), 0o666)
        # The other user may not be let into the folder of the build, such as one in root's home.
        own = pathlib.Path(self.directory, "copies")
        shutil.copytree(paths.SIM_LIBRARIES, own, symlinks=True)
        for file in (paths.PROGRAMS / "worker", paths.LIBRARY):
            shutil.copy2(file, own)
        environment = self.environment(**QUICK, LD_PRELOAD=own / paths.LIBRARY.name, LD_LIBRARY_PATH=own)
        program = self.start_process([own / "worker", "--steps", "10"], user=65534, group=65534, cwd="/",
                                     environment=environment).expect_success()
        self.assertTrue(any("Permission denied" in line for line in program.errors), program.errors)

    def scripted_daemon(self, answer):
        """A daemon that answers each Hello with these bytes, or closes."""
        os.mkdir(f"{self.runtime_dir}/tenants")
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listening.bind(f"{self.runtime_dir}/tenants/tenants.sock")
        listening.listen(8)

        def serve():
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1024)
                    if answer is not None:
                        connection.send(answer)
                        connection.recv(1024)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        self.addCleanup(listening.close)

    def test_another_version(self):
        text = b"this daemon speaks protocol 7 to 9, the library 1: install the same version of both"
        self.scripted_daemon(wire.message(wire.REFUSED, struct.pack("<II128s", 1, 0, text)))
        self.expect_ungated(text.decode(), GPUMUX_CONNECT_TIMEOUT="20s")

    def test_a_daemon_that_talks_nonsense(self):
        self.scripted_daemon(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        self.expect_ungated("")

    def test_a_daemon_that_hangs_up(self):
        self.scripted_daemon(None)
        self.expect_ungated("closed the connection")

    def test_disabled(self):
        daemon = self.start_daemon()
        program = self.start("worker", variables={"GPUMUX_DISABLE": "1"}, steps=10).expect_success()
        self.assertEqual(program.errors, [])
        self.assertEqual(daemon.trace.events(event="connect"), [])


class BadValues(GpumuxTest):

    def test_in_the_library_they_are_logged_and_ignored(self):
        self.start_daemon()
        bad = {"GPUMUX_CONNECT_TIMEOUT": "soon", "GPUMUX_ON_DAEMON_LOSS": "panic"}
        for name, value in bad.items():
            with self.subTest(variable=name):
                log = os.path.join(self.directory, f"{name}.log")
                program = self.start("worker", variables={name: value, "GPUMUX_LOG": log}, steps=10).expect_success()
                self.assertEqual(program.errors, [])
                with open(log, encoding="utf-8") as file:
                    said = file.read()
                self.assertIn(f"{name}={value} is ignored", said)

    def test_odd_values_harm_nothing(self):
        daemon = self.start_daemon()
        want = self.native_digest(steps=10)
        for variables in ({"WORLD_SIZE": "many"}, {"WORLD_SIZE": "-1"}, {"GPUMUX_GANG": "x" * 5000},
                          {"GPUMUX_NAME": "\x1b[2J" * 50}, {"GPUMUX_LOG": "/nowhere/at/all"},
                          {"MASTER_ADDR": "\xff", "MASTER_PORT": "", "WORLD_SIZE": "3"},
                          {"GPUMUX_RUN_ID": "y" * 300, "WORLD_SIZE": "1"}):
            with self.subTest(variables=variables):
                program = self.start("worker", variables=variables, steps=10).expect_success()
                self.assertEqual(program.field("digest"), want)
        self.assertTrue(all(event["event"] for event in daemon.trace.events()))

    def test_in_the_daemon_they_are_refused_by_name(self):
        for name, value in (("GPUMUX_MODE", "sideways"), ("GPUMUX_QUANTUM", "5 apples"), ("GPUMUX_POLICY", "mine"),
                            ("GPUMUX_MAX_RUNTIME", "-1s"), ("NVSHARE_MAX_RUNTIME_SEC", "3"),
                            ("GPUMUX_OVERLAP", "perhaps")):
            with self.subTest(variable=name):
                code, said = self.daemon_fails(**{name: value})
                self.assertEqual(code, 3, said)
                self.assertIn(name, said)

    def daemon_fails(self, arguments=(), **variables):
        """The exit code and the words of a daemon that does not start."""
        environment = {"PATH": os.environ["PATH"], **self.machine.environment(), **variables}
        process = Process([paths.DAEMON, "--private", "--runtime-dir", self.runtime_dir, *arguments], environment)
        self.programs.append(process)
        return process.wait(), "\n".join(process.errors + process.lines)

    def test_settings_of_gpus_that_are_not_there_are_warned_of(self):
        daemon = self.start_daemon()
        here = daemon.api.gpu()["uuid"]
        daemon.terminate()
        config = os.path.join(self.directory, "some.toml")
        with open(config, "w", encoding="utf-8") as file:
            for gpu in ("0", "9", f'"{here}"', '"GPU-00000000-0000-0000-0000-000000000009"'):
                file.write(f"[gpu.{gpu}]\nquantum = \"50ms\"\n")
        code, said = self.daemon_fails(["--check-config", "--config", config])
        self.assertEqual(code, 0, said)
        self.assertIn(f"{config}: right", said)
        warned = [line for line in said.splitlines() if "warning" in line]
        self.assertEqual(len(warned), 2, said)
        self.assertIn("[gpu.9]", warned[0])
        self.assertIn("[gpu.GPU-00000000-0000-0000-0000-000000000009]", warned[1])
        code, said = self.daemon_fails(["--check-config", "--config", config], LD_LIBRARY_PATH="/nowhere")
        self.assertEqual(code, 0, said)
        self.assertIn("could not be looked up", said)

    def test_wrong_options(self):
        code, said = self.daemon_fails(["--no-such-thing"])
        self.assertEqual(code, 2)
        self.assertIn("--no-such-thing", said)


class LogLevels(GpumuxTest):

    def lines_of_a_run(self, *arguments):
        daemon = self.start_daemon(name=f"gpumuxd {arguments}", arguments=arguments)
        self.start("worker", steps=10).expect_success()
        daemon.api.status()
        daemon.terminate()
        return daemon.process.errors

    def test_debug_logs_each_message_and_decision(self):
        quiet = self.lines_of_a_run()
        self.assertEqual([line for line in quiet if " debug " in line], [])
        lines = self.lines_of_a_run("--log-level", "debug")
        for said in ("message from a tenant .*message=Hello ", "message from a tenant .*message=Request slot=0",
                     "message to a tenant .*message=Welcome ", 'event of the leases what="request ',
                     'decision of the node what="grant ', "request method=GET target=/v1/status "):
            self.assertTrue(any(re.search(" debug " + said, line) for line in lines), (said, lines[:60]))


class Sandboxed(GpumuxTest):
    """The kernel, or a sandbox, refuses system calls."""
    REFUSED = (errno.EPERM, errno.ENOSYS)
    DISPENSABLE = ("close_range", "futex_waitv", "membarrier", "pidfd_getfd", "pidfd_open", "pidfd_send_signal",
                   "userfaultfd")

    def setUp(self):
        super().setUp()
        if subprocess.run([*sandbox(errno.EPERM, "membarrier"), "true"], capture_output=True, check=False).returncode:
            self.skipTest("no filters for system calls here")

    def start_sandboxed(self, number, *calls, **settings):
        daemon = Daemon(self.machine, self.runtime_dir, {**self.daemon_settings, **settings})
        daemon.make_process = lambda command, environment, **popen: Process(
            [*sandbox(number, *calls), *command], environment, **popen)
        self.daemons.append(daemon)
        return daemon.start()

    def test_a_program_and_a_daemon_get_along_with_less(self):
        want = self.native_digest(steps=20)
        for number in self.REFUSED:
            daemon = self.start_sandboxed(number, *self.DISPENSABLE)
            worker = [paths.PROGRAMS / "worker", "--steps", "20"]
            for command in (worker, [*sandbox(number, *self.DISPENSABLE), *worker]):
                program = self.start_process(command).expect_success()
                self.assertEqual(program.field("digest"), want)
                self.assertEqual(program.errors, [])
            self.assertEqual(daemon.terminate(), 0)

    def test_a_daemon_without_memory_files_does_not_start_and_says_why(self):
        self.expect_error("no program can be served")
        for number in self.REFUSED:
            with self.assertRaisesRegex(AssertionError, "exit code 1.*no program can be served: .*memory file"):
                self.start_sandboxed(number, "memfd_create")

    def test_a_doorkeeper_that_cannot_work_ends_the_start(self):
        self.expect_error("no program can be served")
        with self.assertRaisesRegex(AssertionError, "exit code .*statx|cannot look at"):
            self.start_sandboxed(errno.ENOSYS, "statx")

    def test_a_job_is_cancelled_without_pidfds(self):
        for number in self.REFUSED:
            daemon = self.start_sandboxed(number, "pidfd_open", "pidfd_send_signal", cancel_grace="1h")
            # It ends for TERM, and its supervisor sends nothing else for an hour.
            body = {"arguments": ["sleep", "3600"], "directory": "/", "environment": [f"PATH={os.environ['PATH']}"],
                    "output": "/dev/null", "memory_bytes": 50 << 20}
            job = daemon.api.ask("POST", "/v1/jobs", body)["id"]

            def state(wanted, daemon=daemon, job=job):
                return lambda: daemon.api.ask("GET", f"/v1/jobs/{job}")["state"] == wanted

            wait_until(state("running"), HANG, "the job runs")
            daemon.api.ask("PATCH", f"/v1/jobs/{job}", {"cancel": True})
            wait_until(state("done"), HANG, "the job is done")
            self.assertEqual(daemon.terminate(), 0)


class NoDescriptors(GpumuxTest):

    def test_a_daemon_without_descriptors_says_so_once_and_goes_on(self):
        self.expect_error("cannot accept connections")
        daemon = self.start_daemon()
        most = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
        used = {int(name) for name in os.listdir(f"/proc/{daemon.pid}/fd")}
        free = next(number for number in range(most[0]) if number not in used)
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (free, most[1]))
        answers = []
        client = threading.Thread(target=lambda: answers.append(daemon.api.daemon()["pid"]))
        client.start()

        def said():
            return [line for line in daemon.process.errors if "cannot accept" in line]

        wait_until(said, HANG, "the daemon says what it lacks")
        time.sleep(0.5)  # for some more tries
        # One of the two is accepted, and the other one is not.
        other = daemon.api.connect()
        other.connect()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (free + 1, most[1]))
        time.sleep(0.5)
        other.close()
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, most)
        client.join(HANG)
        self.assertEqual(answers, [daemon.pid])
        self.assertEqual([line.partition("why=")[2] for line in said()], ['"Too many open files"'])


class NoGpu(GpumuxTest):
    gpus = 0

    def test_a_daemon_says_so(self):
        self.expect_error("NVML")
        process = Process([paths.DAEMON, "--private", "--runtime-dir", self.runtime_dir],
                          {"PATH": os.environ["PATH"], **self.machine.environment()})
        self.programs.append(process)
        self.assertEqual(process.wait(), 4, process.tail())
        self.assertIn("GPU", process.tail())

    def test_a_program_gets_the_drivers_answer(self):
        native = self.start("worker", preload=False, steps=1)
        program = self.start("worker", variables=QUICK, steps=1)
        self.assertEqual(program.wait(), native.wait())
        self.assertEqual(program.lines, native.lines)
        self.assertEqual(program.errors, native.errors)


class NoDriver(GpumuxTest):

    def test_a_program_that_looks_for_one_finds_none(self):
        for preload in (False, True):
            with self.subTest(preload=preload):
                program = self.start_process([paths.PROGRAMS / "probe", "--door", "dlsym"],
                                             environment=self.environment(preload, LD_LIBRARY_PATH="/nowhere", **QUICK))
                program.expect_success()
                self.assertTrue(program.lines[0].startswith("no driver"), program.lines)
                if preload:
                    # The name is found in the library; called, it says that there is no driver.
                    self.assertIn("cuInit gives 100", program.lines)
                self.assertEqual(program.errors, [])

    def test_a_daemon_says_so(self):
        self.expect_error("NVML")
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": "/nowhere"}
        process = Process([paths.DAEMON, "--private", "--runtime-dir", self.runtime_dir], environment)
        self.programs.append(process)
        self.assertEqual(process.wait(), 4, process.tail())
        self.assertIn("libnvidia-ml.so.1", process.tail())


class SecondDaemon(GpumuxTest):
    gpus = 2

    def test_a_second_daemon_on_the_same_gpus_is_refused_and_told_the_owner(self):
        self.expect_error("no GPU is left to serve")
        first = self.start_daemon()
        other = os.path.join(self.directory, "other")
        os.mkdir(other, 0o700)
        process = Process([paths.DAEMON, "--private", "--runtime-dir", other],
                          {"PATH": os.environ["PATH"], **self.machine.environment()}, name="second daemon")
        self.programs.append(process)
        self.assertEqual(process.wait(), 5, process.tail())
        self.assertIn(f"pid {first.pid}", process.tail())
        self.assertIn(f"of user {pwd.getpwuid(os.geteuid()).pw_name} ", process.tail())
        self.start("worker", steps=10).expect_success()

    def test_a_second_daemon_in_the_same_directory_is_refused(self):
        self.expect_error("another gpumuxd already serves")
        first = self.start_daemon()
        process = Process([paths.DAEMON, "--private", "--runtime-dir", self.runtime_dir],
                          {"PATH": os.environ["PATH"], **self.machine.environment()}, name="second daemon")
        self.programs.append(process)
        self.assertEqual(process.wait(), 5, process.tail())
        self.assertEqual(first.api.daemon()["pid"], first.pid)

    def test_a_gpu_that_is_not_there_is_named(self):
        daemon = self.start_daemon(arguments=["--gpus", "1,5,01"])
        warned = [line.partition("warning: ")[2] for line in daemon.process.errors if "is not there" in line]
        self.assertEqual(warned, [f"--gpus names a GPU that is not there gpu={name}" for name in ("01", "5")])

    def test_each_may_have_a_gpu(self):
        self.start_daemon(arguments=["--gpus", "0"])
        other = os.path.join(self.directory, "other")
        os.mkdir(other, 0o700)
        second = self.start_daemon(name="second daemon", runtime_dir=other)
        gpus = second.api.status()["gpus"]
        self.assertIn(f"pid {self.daemons[0].pid}", next(gpu for gpu in gpus if gpu["index"] == 0)["refused"])
        self.assertEqual(next(gpu for gpu in gpus if gpu["index"] == 1).get("refused", ""), "")
        # A program under the second daemon runs gated on GPU 1, and is told about GPU 0.
        program = self.start("worker", variables={"GPUMUX_RUNTIME_DIR": other}, gpu="0,1", steps=10).expect_success()
        self.assertTrue(any("runs ungated" in line for line in program.errors), program.errors)
        self.assertEqual(second.trace.switches(1), [program.pid])

    def test_a_gpu_is_taken_over_when_its_owner_ends(self):
        first = self.start_daemon()
        first.terminate()
        other = os.path.join(self.directory, "other")
        os.mkdir(other, 0o700)
        self.start_daemon(name="second daemon", runtime_dir=other)


if __name__ == "__main__":
    main()
