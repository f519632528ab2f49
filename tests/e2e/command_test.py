#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The command from end to end: run, status, set, trace, doctor; a private daemon that begins and ends by itself.

Method: the built command, daemon and library, as a user has them side by side; what is shown is compared with what
the daemon's trace and the programs say.
"""

import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.api import Api  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.daemon import Daemon  # noqa: E402
from framework.process import Process  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402


class Command(GpumuxTest):
    gpus = 2

    def test_run_makes_tenants(self):
        daemon = self.start_daemon(quantum="5ms")
        want = self.native_digest(steps=40, step_us=500)
        programs = [self.gpumux("run", "--", str(paths.PROGRAMS / "worker"), "--steps", "40", "--step-us", "500")
                    for _ in range(2)]
        for program in programs:
            program.expect_success()
            self.assertEqual(program.field("digest"), want)
        self.assertEqual(set(daemon.trace.switches(0)), {program.pid for program in programs})

    def test_run_says_on_a_terminal_who_has_the_gpu(self):
        self.start_daemon(quantum="1h", mode="serial")
        holder = self.start("worker", steps=100000, step_us=1000, say_every=1)
        holder.wait_for_line("step")
        at_a_terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
        environment = self.environment(preload=False, GPUMUX_LIBRARY=paths.LIBRARY, GPUMUX_DAEMON=paths.DAEMON)

        def run(*options):
            process = self.start_process([sys.executable, "-c", at_a_terminal, paths.COMMAND, "run", *options, "--",
                                          "/bin/echo", "it runs"], environment=environment)
            self.assertEqual(process.wait(), 0, process.tail())
            return [line.strip() for line in process.lines]

        said = f"gpumux run: GPU 0: worker ({holder.pid}) has its turn. `gpumux status` says why a program waits"
        self.assertEqual(run(), [said, "it runs"])
        self.assertEqual(run("--quiet"), ["it runs"])
        self.assertEqual(self.ask("run", "--", "/bin/echo", "it runs")[1], "", "no terminal: nothing is said")
        holder.end()

    def test_run_gives_the_programs_exit_code(self):
        self.start_daemon()
        self.ask("run", "--", "/bin/sh", "-c", "exit 42", code=42)
        self.ask("run", "--", "no-such-program-anywhere", code=127)
        self.ask("run", "--", "/etc/passwd", code=126)

    def test_run_starts_a_private_daemon_that_ends_by_itself(self):
        place = os.path.join(self.directory, "xdg")
        os.mkdir(place, 0o700)
        variables = {"GPUMUX_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": place}
        # Two at once start one daemon.
        programs = [self.gpumux("run", "--", str(paths.PROGRAMS / "worker"), "--steps", "2000", "--step-us", "1000",
                                "--say-every", "1", **variables) for _ in range(2)]
        for program in programs:
            program.wait_for_line("step")
        api = Api(os.path.join(place, "gpumux", "api.sock"))
        daemon = api.daemon()
        self.assertTrue(daemon["private"])
        pids = {seat["pid"] for seat in api.seats(0)}
        self.assertEqual(pids, {program.pid for program in programs})
        for program in programs:
            program.end()
        # --exit-when-unused 10s, and a generous margin.
        wait_until(lambda: not os.path.exists(f"/proc/{daemon['pid']}"), HANG, "the private daemon ends", poll=0.2)
        self.assertFalse(os.path.exists(api.path))

    def test_jobs_are_found_after_their_private_daemon_has_ended(self):
        if os.path.exists("/run/gpumux/tenants/tenants.sock"):
            self.skipTest("this machine has a daemon for all, which would be asked")
        place = os.path.join(self.directory, "xdg")
        os.mkdir(place, 0o700)
        variables = {"GPUMUX_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": place}
        _, errors = self.ask("queue", code=3, **variables)
        self.assertIn("no gpumux daemon is running", errors)
        self.assertFalse(os.path.exists(f"{place}/gpumux"), "asking has started nothing")
        self.ask("submit", "--wait", "--", "echo", "here it is", **variables)
        api = Api(os.path.join(place, "gpumux", "api.sock"))
        for command in (("logs", "1"), ("show", "1"), ("history",), ("queue",), ("wait", "1")):
            pid = api.daemon()["pid"]
            os.kill(pid, signal.SIGTERM)
            wait_until(lambda gone=pid: not os.path.exists(f"/proc/{gone}"), HANG, "the private daemon ends")
            text, errors = self.ask(*command, **variables)
            self.assertEqual(errors, "")
            self.assertIn({"logs": "here it is", "show": "ok, exit status 0", "history": "echo", "queue": "No jobs.",
                           "wait": ""}[command[0]], text)
        os.kill(api.daemon()["pid"], signal.SIGTERM)

    def test_run_without_a_library_or_daemon_starts_nothing(self):
        _, errors = self.ask("run", "--", "/bin/echo", "hello", code=1, GPUMUX_LIBRARY="/nowhere/libgpumux.so")
        self.assertIn("/nowhere/libgpumux.so", errors)

    def test_status(self):
        self.start_daemon(quantum="unlimited", idle_hold="10s")
        holder = self.start("worker", name="holder", steps=100_000, step_us=500, say_every=1)
        holder.wait_for_line("step")
        waiter = self.start("worker", name="waiter", steps=100_000, step_us=500)
        wait_until(lambda: any(seat["phase"] == "waiting" for seat in self.daemons[0].api.seats()), HANG, "a waiter")
        text, _ = self.ask("status")
        for needle in (str(holder.pid), str(waiter.pid), "worker", "waiting", "holding"):
            self.assertIn(needle, text)
        report = json.loads(self.ask("status", "--json")[0])
        phases = {seat["pid"]: seat["phase"] for seat in report["gpus"][0]["seats"]}
        self.assertEqual(phases, {holder.pid: "holding", waiter.pid: "waiting"})
        self.assertTrue(next(seat for seat in report["gpus"][0]["seats"] if seat["pid"] == waiter.pid)["waits_for"])

    def test_set_changes_a_running_daemon(self):
        daemon = self.start_daemon(quantum="unlimited", idle_hold="10s")
        programs = [self.start("worker", steps=100_000, step_us=500, say_every=1) for _ in range(2)]
        daemon.trace.wait_for(event="request")
        self.assertEqual(daemon.trace.revocations(), [])
        self.ask("set", "0", "--quantum", "5ms")
        for program in programs:
            program.wait_for_line("step")
        daemon.trace.wait_for(event="revoke", count=4)
        self.assertEqual(daemon.api.gpu(0)["quantum"], "5ms")
        self.assertEqual(daemon.api.gpu(1)["quantum"], "unlimited")
        self.ask("set", "--mode", "concurrent")
        daemon.trace.wait_for(event="grant", lease="shared", count=2)
        _, errors = self.ask("set", "0", "--quantum", "purple", code=2)
        self.assertIn("purple", errors)
        self.ask("set", "7", "--quantum", "5ms", code=1)
        text, _ = self.ask("set", "0", "--overlap", "false")
        self.assertEqual(text, "GPU 0: overlap true -> false")
        text, _ = self.ask("set", "--overlap", "false", "--policy", "fifo")
        self.assertEqual(text.splitlines(), ["GPU 0: policy fair -> fifo, overlap false (as before)",
                                             "GPU 1: policy fair -> fifo, overlap true -> false"])
        self.assertIs(daemon.api.gpu(0)["settings"]["overlap"], False)

    def test_a_simulated_machine_of_the_users_own(self):
        # Nothing in the environment tells of the tests' simulated driver, as on a machine that has no GPU.
        place = os.path.join(self.directory, "xdg")
        os.mkdir(place, 0o700)
        variables = {"GPUMUX_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": place, "LD_LIBRARY_PATH": "",
                     "XDG_STATE_HOME": os.path.join(self.directory, "state")}
        runtime_dir = os.path.join(place, "gpumux", "simulated")
        demo = self.gpumux("run", "--simulated", **variables)
        api = Api(os.path.join(runtime_dir, "api.sock"))
        wait_until(lambda: api.is_served() and api.seats(0), HANG, "the demo program is a tenant")
        self.assertTrue(api.daemon()["driver"]["simulated"])
        text, _ = self.ask("--simulated", "status", **variables)
        self.assertIn("gpumux_demo", text)
        # A command in a program on the machine stays on it.
        text, _ = self.ask("run", "--simulated", "--", paths.COMMAND, "--simulated", "version", **variables)
        self.assertIn(runtime_dir, text)
        self.assertFalse(os.path.exists(os.path.join(runtime_dir, "simulated")))
        job, _ = self.ask("--simulated", "submit", "--wait", "--quiet", "--", "sh", "-c", "exit 3", code=3, **variables)
        self.assertEqual(job.splitlines()[0], "1")
        self.assertTrue(os.path.isdir(os.path.join(self.directory, "state", "gpumux", "queue-simulated")))
        # The user's own daemon is another one, and has no jobs.
        self.assertFalse(os.path.exists(os.path.join(place, "gpumux", "api.sock")))
        demo.expect_success(timeout=HANG)
        self.assertRegex("\n".join(demo.lines), r"\d+ steps.* right")
        os.kill(api.daemon()["pid"], signal.SIGTERM)
        wait_until(lambda: not os.path.exists(api.path), HANG, "the daemon ends")
        self.ask("--simulated", code=2, **variables)
        _, errors = self.ask("--simulated", "statsu", code=2, **variables)
        self.assertIn("gpumux status", errors)

    def test_set_changes_how_a_running_program_stands(self):
        daemon = self.start_daemon()
        worker = self.start("worker", steps=100_000, step_us=500)
        worker.wait_for_line("ready")
        text, _ = self.ask("set", "--tenant", str(worker.pid), "--priority", "5", "--max-share", "30%")
        self.assertIn(f"({worker.pid}): priority 5, share 1, at most 30% of the time", text)
        self.assertEqual((daemon.api.seats()[0]["priority"], daemon.api.seats()[0]["max_share"]), (5, "30%"))
        named = daemon.api.seats()[0]["program"]
        self.ask("set", "--tenant", named, "--priority", "default", "--max-share", "default")
        self.assertEqual((daemon.api.seats()[0]["priority"], daemon.api.seats()[0]["max_share"]), (0, "100%"))
        for wrong in (["--priority", "5"], ["--tenant", str(worker.pid)],
                      ["--tenant", str(worker.pid), "--share", "0"], ["--tenant", "", "--share", "2"],
                      ["--tenant", str(worker.pid), "--share", "2", "--quantum", "5ms"],
                      ["0", "--tenant", str(worker.pid), "--share", "2"]):
            self.ask("set", *wrong, code=2)
        for unknown in ("1234567", "train.py"):
            _, errors = self.ask("set", "--tenant", unknown, "--share", "2", code=1)
            self.assertIn("gpumux status", errors)

    def test_help(self):
        commands = ("run", "status", "set", "trace", "doctor", "version")
        overview, errors = self.ask("help")
        self.assertEqual(errors, "")
        for same in (["--help"], ["-h"], ["help", "--help"]):
            self.assertEqual(self.ask(*same)[0], overview)
        for command in commands:
            self.assertRegex(overview, rf"(?m)^  {command} +[A-Z]")
            text, errors = self.ask(command, "--help")
            self.assertEqual(errors, "")
            self.assertEqual(self.ask("help", command)[0], text)
            for part in (f"Usage: gpumux {command} ", "\nExample", "\nExit status: "):
                self.assertIn(part, text)
            text, errors = self.ask(command, "--no-such-option", code=2)
            self.assertEqual(text, "")
            self.assertIn(f"gpumux {command} --help", errors)
        _, errors = self.ask("statsu", code=2)
        self.assertIn("gpumux status", errors)
        _, errors = self.ask("status", "--watch", "0", code=2)
        self.assertIn("0.1", errors)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make another user's link")
    def test_trace_writes_through_no_link_of_another_user(self):
        self.start_daemon()
        folder = os.path.join(self.directory, "sticky")
        os.mkdir(folder)
        os.chmod(folder, 0o1777)
        secret = os.path.join(self.directory, "secret")
        with open(secret, "w", encoding="utf-8") as file:
            file.write("as it was")
        link = os.path.join(folder, "trace.pftrace")
        os.symlink(secret, link)
        os.lchown(link, 65534, 65534)
        _, said = self.ask("trace", "--perfetto", link, code=4)
        self.assertIn("'trace.pftrace' is a link of user 65534", said)
        with open(secret, encoding="utf-8") as file:
            self.assertEqual(file.read(), "as it was")

    def test_trace(self):
        daemon = self.start_daemon()
        program = self.start("worker", steps=20, step_us=500).expect_success()
        daemon.trace.wait_for(event="gone", pid=program.pid)
        text, _ = self.ask("trace")
        self.assertIn(str(program.pid), text)
        lines = text.splitlines()

        def events(*options):
            """The lines of `gpumux trace` without their times: each call relates the clocks anew, to about 1 us."""
            return [line.split(maxsplit=1)[1] for line in self.ask("trace", *options)[0].splitlines()]

        everything = events()
        self.assertEqual([line.split(maxsplit=1)[1] for line in lines], everything)
        self.assertEqual(events("-n", "3"), everything[-3:])
        grants = [line for line in lines if " grant " in line]
        self.assertEqual(events("-n", "1", "--name", str(program.pid)), everything[-1:])
        none = "gpumux trace: the daemon keeps no event of "
        timeline = os.path.join(self.directory, "timeline")
        for options, said in ((("--name", "nobody"), none + "a program or job 'nobody'"),
                              (("--gpu", "0", "--name", "nobody"), none + "GPU 0 of a program or job 'nobody'"),
                              (("--picture", "--name", "nobody"), none + "a program or job 'nobody'"),
                              (("--summary", "--name", "nobody"), none + "a program or job 'nobody'"),
                              (("--perfetto", timeline, "--name", "nobody"), none + "a program or job 'nobody'"),
                              (("--since", "999999"), "gpumux trace: the daemon keeps no event from number 999999 on")):
            self.assertEqual(self.ask("trace", *options), ("", said))
        self.assertNotRegex(text, "epoch")
        self.assertRegex(self.ask("trace", "--epochs")[0], r"epoch \d{10,}")
        # It ended, and did not only disconnect.
        self.assertRegex(lines[-1], rf"gone +worker \({program.pid}\) +ended")
        for option in ("--picture", "--summary"):
            shown, _ = self.ask("trace", option, "--gpu", "0")
            self.assertRegex(shown, rf"worker.*{program.pid}")
            self.assertRegex(shown, rf"\b{len(grants)}\b")
        for command in (("trace", "--gpu", "9"), ("status", "9"), ("set", "9", "--quantum", "1ms")):
            _, errors = self.ask(*command, code=1)
            self.assertIn("there is no GPU '9'; the daemon serves: 0", errors)
        self.ask("set", "0", "--quantum", "123ms")
        self.assertRegex(self.ask("trace", "-n", "1")[0], r"GPU 0  settings .*quantum auto -> 123ms")

    def test_following_a_trace_begins_now(self):
        daemon = self.start_daemon()
        before = self.start("worker", steps=5, step_us=500).expect_success()
        daemon.trace.wait_for(event="gone", pid=before.pid)
        followers = [self.gpumux("trace", "--follow"), self.gpumux("trace", "--follow", "-n", "2", "--name", "worker")]
        quanta = iter(range(10, 1000))

        def all_follow():
            self.ask("set", "0", "--quantum", f"{next(quanta)}ms")
            return any("settings" in line for line in followers[0].lines) and len(followers[1].lines) >= 2

        wait_until(all_follow, HANG, "both follow", poll=0.1)
        program = self.start("worker", steps=5, step_us=500).expect_success()
        for follower in followers:
            wait_until(lambda: any(f"({program.pid})" in line and "gone" in line for line in follower.lines), HANG,
                       lambda: f"the end of the program; it said {follower.lines}")
            follower.end()
        self.assertFalse([line for line in followers[0].lines if f"({before.pid})" in line])
        self.assertEqual(len([line for line in followers[1].lines if f"({before.pid})" in line]), 2)
        self.assertFalse([line for line in followers[1].lines if "settings" in line], "it is no program")

    def test_without_a_daemon(self):
        for command in ("status", "trace"):
            _, errors = self.ask(command, code=3)
            self.assertIn("daemon", errors)
        self.ask("set", "--quantum", "5ms", code=3)

    def test_output_that_cannot_be_written(self):
        self.start_daemon()
        environment = self.environment(preload=False)
        for arguments in (["--help"], ["status"], ["status", "--json"], ["queue"], ["report", "--csv"], ["version"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([paths.COMMAND, *arguments], env=environment, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=HANG, check=False)
            self.assertEqual(done.returncode, 1, arguments)
            # Without the reason if the write that failed was an earlier one.
            self.assertRegex(done.stderr, r"^gpumux: cannot write to the standard output(: No space .*)?\n$")

    def test_a_daemon_without_standard_descriptors(self):
        """No file of the daemon's takes their place: its log would be written into that file."""
        daemon = Daemon(self.machine, self.runtime_dir)
        daemon.make_process = lambda command, *rest, **options: Process(
            ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], *rest, **options)
        self.daemons.append(daemon)
        daemon.start()
        self.assertEqual([os.readlink(f"/proc/{daemon.pid}/fd/{fd}") for fd in range(3)], ["/dev/null"] * 3)

    def test_doctor(self):
        daemon = self.start_daemon()
        self.assertIs(daemon.api.daemon()["driver"]["simulated"], True)
        text, _ = self.ask("doctor")
        self.assertRegex(text, r"(?m)^ok +daemon")
        self.assertRegex(text, r"(?m)^ok +driver: simulated")
        # Without one a user can still run programs: a warning, and what to do about it.
        self.daemons[0].terminate()
        text, _ = self.ask("doctor")
        self.assertRegex(text, r"(?m)^warning +daemon")
        self.assertIn("gpumux run", text)
        self.ask("doctor", "--strict", code=1)

    def test_doctor_finds_what_is_missing(self):
        self.start_daemon()
        text, errors = self.ask("doctor", code=1, LD_LIBRARY_PATH="/nowhere")
        self.assertIn("libcuda.so.1", text + errors)

    def test_usage(self):
        self.ask("frobnicate", code=2)
        self.ask("run", code=2)
        text, _ = self.ask("--help")
        for command in ("run", "status", "set", "trace", "doctor"):
            self.assertIn(command, text)
            self.assertIn("xample", self.ask(command, "--help")[0])


if __name__ == "__main__":
    main()
