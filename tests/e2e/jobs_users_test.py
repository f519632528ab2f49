#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon of root's that runs jobs of several users: each job is its user's, and no other user's.

Method: a job prints what it is (user, groups, limits, descriptors, directory, umask); the test tries what users must
not be able to do (framework/users.py).
"""

import grp
import json
import os
import pathlib
import pwd
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import types

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.users import ASK, PYTHON, UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

# Before ASK: puts its process under a filter that lets every call through.
FILTERED = """
import ctypes, struct
libc = ctypes.CDLL(None, use_errno=True)
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", 1, ctypes.addressof(allow)))
assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program) == 0
"""
# No new privileges, alone.
UNPRIVILEGED = "import ctypes; assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0"


class Users(UsersTest):
    def test_a_job_is_its_users(self):
        def limits():
            resource.setrlimit(resource.RLIMIT_NOFILE, (333, 444))
            os.umask(0o027)

        script = ('id -u; id -g; id -G; pwd; umask; ulimit -Sn; ulimit -Hn; ls /proc/self/fd | tr "\\n" " "; echo; '
                  'grep -E "^(CapEff|NoNewPrivs)" /proc/self/status; ls -l /proc/self/fd/0')
        own_groups = {self.games.pw_gid} | {group.gr_gid for group in grp.getgrall() if "games" in group.gr_mem}
        job = self.submit_as(self.games, "sh", "-c", script, umask=0o027,
                             popen={"preexec_fn": limits, "extra_groups": list(own_groups)})
        self.assertEqual(self.wait_done(job)["exit_status"], 0)
        lines = self.output(self.games, job).split("\n")
        self.assertEqual(lines[0], str(self.games.pw_uid))
        self.assertEqual(lines[1], str(self.games.pw_gid))
        self.assertEqual(set(map(int, lines[2].split())), own_groups)
        self.assertEqual(lines[3:7], [self.homes[self.games.pw_uid], "0027", "333", "444"])
        # The last one is the directory that `ls` itself reads.
        self.assertEqual(lines[7].split(), ["0", "1", "2", "3"])
        self.assertIn("CapEff:\t0000000000000000", lines)
        self.assertIn("NoNewPrivs:\t0", lines)
        self.assertEqual(os.stat(f"{self.homes[self.games.pw_uid]}/{job}.log").st_uid, self.games.pw_uid)

    def test_it_has_the_groups_of_the_process_that_submits(self):
        """A process with fewer groups than its user, or other ones, gets no more by a job."""
        for group, extra in ((self.news.pw_gid, []), (self.games.pw_gid, [self.news.pw_gid, 4711])):
            job = self.submit_as(self.games, "sh", "-c", "id -g; id -G", popen={"group": group, "extra_groups": extra})
            self.assertEqual(self.wait_done(job)["exit_status"], 0)
            primary, every = self.output(self.games, job).splitlines()
            self.assertEqual(int(primary), group)
            self.assertEqual(set(map(int, every.split())), {group, *extra})

    def test_it_keeps_no_new_privs(self):
        self.homes[0] = self.directory
        for user in (self.games, pwd.getpwnam("root")):
            job = self.submit_as(user, "grep", "NoNewPrivs", "/proc/self/status", popen={"before": UNPRIVILEGED})
            self.assertEqual(self.wait_done(job)["exit_status"], 0)
            self.assertEqual(self.output(user, job), "NoNewPrivs:\t1\n")

    def test_a_process_under_a_seccomp_filter_submits_nothing(self):
        body = {"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null"}
        status, answer = self.ask_as(self.games, "POST", "/v1/jobs", body, before=FILTERED)
        self.assertEqual(status, 403, answer)
        self.assertIn("seccomp filter", answer["error"]["message"])
        self.assertEqual(self.ask_as(self.games, "GET", "/v1/jobs", before=FILTERED)[1]["jobs"], [])

    def test_others_cannot_touch_it(self):
        job = self.submit_as(self.games, "sleep", "1000", name="secret")
        wait_until(lambda: self.job(job)["state"] == "running", HANG, "it runs")
        for change in ({"cancel": True}, {"held": True}, {"priority": 5}):
            self.assertEqual(self.ask_as(self.news, "PATCH", f"/v1/jobs/{job}", change)[0], 403)
        self.assertEqual(self.ask_as(self.news, "PATCH", "/v1/jobs/user:games", {"cancel": True})[0], 403)
        for user in (self.news, self.games):  # not even his own: that is not what he has asked for
            self.assertEqual(self.ask_as(user, "PATCH", "/v1/jobs/all", {"cancel": True})[0], 403)
        seen = self.ask_as(self.news, "GET", f"/v1/jobs/{job}?environment=1")[1]
        for private in ("arguments", "directory", "environment", "log", "pid"):
            self.assertNotIn(private, seen)
        for target, body in (("/v1/queue", {"paused": True}), ("/v1/queue/gpus/0", {"drained": True}),
                             ("/v1/queue/users/" + "2000", {"running": 1})):
            self.assertEqual(self.ask_as(self.news, "PATCH", target, body)[0], 403, target)
        # Nor signal its runner, nor the job.
        pid = self.job(job)["pid"]
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            runner = int(file.read().rsplit(")", 1)[1].split()[1])
        for target in (pid, runner):
            killed = subprocess.run(["kill", "-9", str(target)], user=self.news.pw_uid, group=self.news.pw_gid,
                                    extra_groups=[], capture_output=True, check=False)
            self.assertNotEqual(killed.returncode, 0)
        self.assertEqual(self.job(job)["state"], "running")
        # Its owner may, and root.
        self.assertTrue(self.ask_as(self.games, "PATCH", f"/v1/jobs/{job}", {"cancel": True})[1]["jobs"][0]["changed"])
        self.assertEqual(self.wait_done(job)["outcome"], "cancelled")

    def test_privacy(self):
        first = self.submit_as(self.games, "sleep", "1000", name="secret", gpu_ids=[0], memory_bytes=0)
        wait_until(lambda: self.job(first)["state"] == "running", HANG, "it runs")
        waiting = self.submit_as(self.news, "true", gpu_ids=[0], memory_bytes=0)

        def why():
            return self.ask_as(self.news, "GET", f"/v1/jobs/{waiting}")[1]["why"]

        listed = self.ask_as(self.news, "GET", "/v1/jobs")[1]["jobs"]
        self.assertEqual(listed[0]["name"], "secret")
        self.assertNotIn("command", listed[0], "as in one job in full")
        self.assertIn(f"job {first} (secret) has", why())
        for privacy in ("limited", "own"):
            self.write_config(f'[queue]\nprivacy = "{privacy}"\n')
            os.kill(self.daemon.pid, 1)
            wait_until(lambda: self.daemon.api.ask("GET", "/v1/queue")["settings"]["privacy"] == privacy, HANG,
                       "it is reloaded")
            listed = self.ask_as(self.news, "GET", "/v1/jobs")[1]["jobs"]
            self.assertIn("another user's job has" if privacy == "own" else f"job {first} has", why())
            if privacy == "own":
                self.assertEqual([job["id"] for job in listed], [waiting])
                self.assertEqual(self.ask_as(self.news, "GET", "/v1/jobs/1")[0], 404)
            else:
                self.assertNotIn("name", listed[0])
                self.assertEqual(listed[0]["user"], "games")
            self.assertEqual(self.ask_as(self.games, "GET", "/v1/jobs")[1]["jobs"][0]["name"], "secret")

    def test_a_log_cannot_be_made_where_its_user_cannot_write(self):
        precious = os.path.join(self.directory, "precious")
        with open(precious, "w", encoding="utf-8") as file:
            file.write("kept")
        os.chmod(precious, 0o644)
        link = os.path.join(self.homes[self.games.pw_uid], "link")
        os.symlink(precious, link)
        for output in (precious, link, "/etc/never.log", self.homes[self.news.pw_uid] + "/log"):
            job = self.submit_as(self.games, "echo", "overwritten", output=output)
            done = self.wait_done(job)
            self.assertEqual((done["outcome"], done["exit_status"]), ("failed", 125), done)
            self.assertIn("log", done["note"], done)
        with open(precious, encoding="utf-8") as file:
            self.assertEqual(file.read(), "kept")

    def test_a_directory_that_its_user_cannot_enter(self):
        job = self.submit_as(self.games, "pwd", directory="/root")
        done = self.wait_done(job)
        self.assertEqual((done["outcome"], done["exit_status"]), ("failed", 125), done)
        self.assertIn("/root", done["note"])

    def test_the_terminal_is_its_users(self):
        job = self.submit_as(self.games, "sleep", "1000", interactive=True)
        wait_until(lambda: self.job(job).get("pid"), HANG, "it runs")
        path = self.job(job)["attach"]
        connect = "import socket, sys; socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).connect(sys.argv[1])"
        for user, allowed in ((self.games, True), (self.news, False)):
            done = subprocess.run([PYTHON, "-c", connect, path], user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                                  cwd="/", capture_output=True, text=True, check=False, timeout=HANG)
            self.assertEqual(done.returncode == 0, allowed, done.stderr)
            listing = subprocess.run(["ls", os.path.dirname(path)], user=user.pw_uid, group=user.pw_gid,
                                     extra_groups=[], capture_output=True, check=False, timeout=HANG)
            self.assertNotEqual(listing.returncode, 0)
        self.daemon.api.ask("PATCH", "/v1/jobs/all", {"cancel": True})
        self.wait_done(job)

    def test_its_programs_have_its_priority_within_a_cap(self):
        self.daemon.terminate()
        self.write_config("[queue]\npriority_cap = 5\n")
        self.daemon.start()
        machine = pathlib.Path(self.machine.directory)
        for path in (machine, *machine.iterdir()):
            path.chmod(0o777)
        worker = [self.hand_out(paths.PROGRAMS / "worker", *paths.SIM_LIBRARIES.iterdir()), "--steps", "1000000"]
        environment = [f"PATH={os.environ['PATH']}", f"GPUMUX_SIM_DIR={machine}", f"LD_LIBRARY_PATH={self.directory}"]

        def priority_on_the_gpu(**fields):
            job = self.submit_as(self.games, *worker, environment=environment, **fields)
            seat = wait_until(lambda: next(iter(self.daemon.api.seats()), None), HANG,
                              lambda: f"its program has a seat: {self.output(self.games, job)}")
            self.assertEqual(seat["uid"], self.games.pw_uid)
            self.assertEqual(self.ask_as(self.games, "PATCH", f"/v1/jobs/{job}", {"cancel": True})[0], 200)
            self.wait_done(job)
            return seat["priority"]

        self.assertEqual([priority_on_the_gpu(priority=priority) for priority in (9, 3, -4)], [5, 3, -4])
        # Where nobody has said how high it may be, it goes before other jobs only.
        self.daemon.api.ask("PATCH", f"/v1/queue/users/{self.games.pw_uid}", {"priority_cap": None})
        self.assertEqual(priority_on_the_gpu(priority=9), 0)

    def test_a_user_is_told_what_is_capped(self):
        def notes(*arguments, user=self.games, **variables):
            ran = self.command_as(user, *arguments, **variables)
            self.assertEqual(ran.returncode, 0, ran)
            return [line for line in ran.stderr.replace("\n  ", " ").splitlines() if "note: " in line]

        def run(*options, **variables):
            return notes("run", *options, "--", "true", **variables)

        told = run("--priority", "5", "--share", "3")
        self.assertEqual([line.split(",")[0] for line in told],
                         ["gpumux run: note: priority 5 counts as 0", "gpumux run: note: share 3 counts as 1"])
        self.assertTrue(all("admin_group" in line for line in told), told)
        self.assertEqual(len(run(GPUMUX_PRIORITY="1", GPUMUX_SHARE="2")), 2, "said by variables, it is the same")
        self.assertEqual(run("--priority", "-1", "--share", "0.5", "--max-share", "30%"), [])
        self.assertEqual(notes("run", "--priority", "5", "--share", "3", "--", "true", user=pwd.getpwuid(0)), [])
        # Of a job: as its submitter is told.
        job = str(self.submit_as(self.games, "true", held=True))
        self.assertIn("counts as 0 (priority_cap)", notes("set", "--job", job, "--priority", "5")[0])
        self.assertEqual(notes("set", "--job", job, "--priority", "-5"), [])
        # In a job that has more than others, its programs may have as much.
        self.reconfigure("[queue]\npriority_cap = 5\n")
        command = self.hand_out(paths.COMMAND)
        inside = self.submit_as(self.games, "sh", "-c", f"for p in 3 6; do {command} run --priority $p -- true; done",
                                priority=4)
        self.assertEqual(self.wait_done(inside)["outcome"], "ok")
        said = self.output(self.games, inside).replace("\n  ", " ")
        self.assertEqual([line for line in said.splitlines() if "note: " in line],
                         ["gpumux run: note: priority 6 counts as 4, for the job that it is in has no more "
                          "(priority_cap)"])

    def test_a_user_whom_the_user_database_does_not_know_submits(self):
        user = types.SimpleNamespace(pw_uid=54321, pw_gid=54321, pw_name="54321")
        self.assertRaises(KeyError, pwd.getpwuid, user.pw_uid)
        home = self.homes[user.pw_uid] = os.path.join(self.directory, "unknown")
        os.mkdir(home, 0o700)
        os.chown(home, user.pw_uid, user.pw_gid)
        done = self.command_as(user, "submit", "--wait", "--", "echo", "here it is")
        self.assertEqual((done.returncode, done.stderr), (0, ""), done)
        log = self.job(1)["log"]
        self.assertEqual(os.path.commonpath([log, home]), home)
        self.assertEqual(pathlib.Path(log).read_text(encoding="utf-8"), "here it is\n")

    def test_a_private_daemon_gives_way_and_its_programs_go_on(self):
        want = self.native_digest(steps=600)
        self.daemon.terminate()
        machine = pathlib.Path(self.machine.directory)
        for path in (machine, *machine.iterdir()):
            path.chmod(0o777)
        worker = self.hand_out(paths.PROGRAMS / "worker", *paths.SIM_LIBRARIES.iterdir())
        place = f"{self.homes[self.games.pw_uid]}/run"
        environment = {"PATH": os.environ["PATH"], **self.machine.environment(), "LD_LIBRARY_PATH": self.directory,
                       "GPUMUX_RUNTIME_DIR": place, "GPUMUX_MODE": "serial"}
        games = {"user": self.games.pw_uid, "group": self.games.pw_gid, "extra_groups": [], "cwd": "/"}
        others = [paths.BUILD / "bin" / name for name in ("gpumux-runner", "gpumux-mover")]
        daemon = self.hand_out(paths.DAEMON, *others)
        private = self.start_process([daemon, "--private", "--runtime-dir", place, "--state-dir",
                                      f"{place}.state"], environment=environment, **games)
        wait_until(lambda: os.path.exists(f"{place}/api.sock"), HANG, lambda: f"it serves: {private.tail()}")
        environment["LD_PRELOAD"] = f"{self.directory}/{paths.LIBRARY.name}"
        workers = [self.start_process([worker, "--steps", "600", "--step-us", "2000", "--say-every", "1"],
                                      name=name, environment=environment, **games) for name in "AB"]
        for program in workers:
            program.wait_for_line("step")
        self.daemon.start()
        self.assertEqual(private.wait(), 5, private.tail())
        self.assertTrue(any("root's daemon takes over" in line for line in private.errors), private.tail())
        wait_until(lambda: {seat["pid"] for seat in self.daemon.api.seats()} == {program.pid for program in workers},
                   HANG, lambda: f"root's daemon has its programs: {self.daemon.api.status()}")
        for program in workers:
            program.expect_success()
            self.assertEqual(program.field("digest"), want)

    def test_a_client_that_is_gone_lends_nobody_his_limits(self):
        """A connection outlives the process that made it: whose limits would the job get?"""
        connect = ("import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); "
                   "os.set_inheritable(s.fileno(), True); me = os.getpid(); os.fork() == 0 or os._exit(0); "
                   "words = [sys.executable, '-c', sys.argv[2], str(s.fileno()), sys.argv[3], str(me)]; "
                   "os.execv(words[0], words)")
        speak = ("import os, socket, sys, time\n"
                 "while os.path.exists('/proc/%s' % sys.argv[3]): time.sleep(0.01)\n"
                 "s = socket.socket(fileno=int(sys.argv[1])); b = sys.argv[2].encode()\n"
                 "s.sendall(b'POST /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n' % len(b) + b)\n"
                 "print(s.recv(65536).decode(), flush=True)\n")
        body = json.dumps({"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null"})
        # The shell waits for the first process, so that nothing is left of it, and ends.
        command = [PYTHON, "-c", connect, f"{self.runtime_dir}/api.sock", speak, body]
        done = subprocess.run(["sh", "-c", '"$0" "$@"; true', *command], user=self.games.pw_uid,
                              group=self.games.pw_gid, extra_groups=[], cwd="/", capture_output=True, text=True,
                              timeout=HANG, check=False)
        self.assertIn("403", done.stdout.split("\r\n")[0], done.stdout + done.stderr)
        self.assertIn("has ended", done.stdout)

    def test_a_number_that_is_used_again_is_nobody(self):
        """A client has ended before the daemon looks, and its number is a process of the host's root."""
        last_pid = "/proc/sys/kernel/ns_last_pid"
        if not os.access(last_pid, os.W_OK):
            self.skipTest("needs the right to choose process ids")
        body = json.dumps({"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null"}).encode()
        request = b"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        os.kill(self.daemon.pid, signal.SIGSTOP)
        try:
            client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self.addCleanup(client.close)
            child = os.fork()
            if child == 0:
                client.connect(f"{self.runtime_dir}/api.sock")
                os._exit(0)
            os.waitpid(child, 0)
            client.sendall(request)

            def used_again():
                with open(last_pid, "w", encoding="utf-8") as file:
                    file.write(str(child - 1))
                other = subprocess.Popen(["sleep", "1000"])
                if other.pid == child:
                    return other
                other.kill()
                other.wait()
                return None

            other = wait_until(used_again, HANG, "the number is used again")
        finally:
            os.kill(self.daemon.pid, signal.SIGCONT)
        client.settimeout(30)
        answer = client.recv(65536).decode()
        other.kill()
        other.wait()
        self.assertIn(" 403 ", answer.split("\r\n", maxsplit=1)[0], answer)
        self.assertEqual(self.daemon.api.ask("GET", "/v1/jobs?state=all")["jobs"], [])

    def test_root_has_a_socket_that_nobody_else_reaches(self):
        path = os.path.join(self.runtime_dir, "root", "api.sock")
        reach = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        for user, allowed in ((self.games, False), (pwd.getpwuid(0), True)):
            done = subprocess.run([PYTHON, "-c", reach, path], user=user.pw_uid, group=user.pw_gid, extra_groups=[],
                                  cwd="/", capture_output=True, text=True, check=False, timeout=HANG)
            self.assertEqual(done.returncode == 0, allowed, done.stderr)
        self.assertEqual(os.listdir(f"{self.runtime_dir}/tenants"), ["tenants.sock"])

    def ask_within(self, command, method, target, body=None):
        """As root, by a process that `command` puts somewhere else."""
        done = subprocess.run([*command, PYTHON, "-c", ASK, f"{self.runtime_dir}/api.sock", method, target],
                              input=json.dumps(body) if body else "", cwd="/", capture_output=True, text=True,
                              timeout=HANG, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        status, _, text = done.stdout.partition("\n")
        return int(status), text

    def test_containers_have_no_part_in_jobs_and_settings(self):
        """The socket is passed into containers, whose root is root to the kernel: not the machine's."""
        new_root = os.path.join(self.directory, "root")
        os.mkdir(new_root)
        make_root = ('mount -t tmpfs none "$0" && for d in /*; do if [ -L "$d" ]; then cp -P "$d" "$0/"; '
                     'elif [ -d "$d" ]; then mkdir "$0$d" && mount --rbind "$d" "$0$d"; fi; done && '
                     'exec chroot "$0" "$@"')
        elsewhere = {"user": ["unshare", "--user", "--map-root-user"], "pid": ["unshare", "--pid", "--fork"],
                     "root": ["unshare", "--mount", "sh", "-c", make_root, new_root]}
        body = {"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null"}
        questions = [("GET", "/v1/jobs", None), ("GET", "/v1/queue", None), ("POST", "/v1/jobs", body),
                     ("PATCH", "/v1/jobs/all", {"cancel": True}), ("PATCH", "/v1/queue", {"paused": True}),
                     ("PATCH", "/v1/gpus/all", {"mode": "auto"})]
        # Services and sessions have mount namespaces of their own, and are no containers.
        near = ["unshare", "--mount"]
        tried = 0
        for command in (near, *elsewhere.values()):
            if subprocess.run([*command, "true"], capture_output=True, check=False, timeout=HANG).returncode:
                continue
            tried += command != near
            with self.subTest(command):
                self.assertEqual(self.ask_within(command, "GET", "/v1/status")[0], 200)
                for question in questions:
                    status, text = self.ask_within(command, *question)
                    if command == near:
                        self.assertEqual(status // 100, 2, (question, text))
                    else:
                        self.assertEqual(status, 403, (question, text))
                        if "/v1/gpus" not in question[1]:
                            self.assertIn("container", text)
                if command == near:
                    self.daemon.api.ask("PATCH", "/v1/queue", {"paused": False})
                    self.daemon.api.ask("PATCH", "/v1/gpus/all", {"mode": "serial"})
        self.assertFalse(self.daemon.api.ask("GET", "/v1/queue")["paused"])
        self.assertEqual(self.daemon.api.gpu()["mode"], "serial")
        if tried == 0:
            self.skipTest("no namespace can be made here")

    # ---- what others are told

    def test_nothing_of_its_environment_is_kept_when_a_job_is_done(self):
        job = self.submit_as(self.games, "true", environment=["SECRET=x"])
        self.wait_done(job)
        shown = self.ask_as(self.games, "GET", f"/v1/jobs/{job}?environment=1")[1]
        self.assertEqual(shown["log"], f"{self.homes[self.games.pw_uid]}/{job}.log")
        self.assertNotIn("environment", shown)
        with sqlite3.connect(f"{self.runtime_dir}.state/jobs.db") as store:
            self.assertEqual(store.execute("SELECT count(*) FROM documents").fetchone(), (0,))

    def test_after_tells_nothing_of_jobs_that_are_not_shown(self):
        job = self.submit_as(self.games, "true")
        self.wait_done(job)
        body = {"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null", "held": True}

        def after(need, which=job):
            wanted = {**body, "after": [{"job": which, "need": need}]}
            status, answer = self.ask_as(self.news, "POST", "/v1/jobs", wanted)
            return status, answer.get("error", {}).get("message", "").replace(str(which), "ID")

        self.assertEqual(after("ok")[0], 201)
        self.reconfigure('[queue]\nprivacy = "limited"\n')
        self.assertEqual((after("ok")[0], after("any")[0]), (403, 201))
        self.reconfigure('[queue]\nprivacy = "own"\n')
        missing = after("ok", 999)
        self.assertEqual(missing[0], 400)
        self.assertEqual([after("ok"), after("any")], [missing] * 2)
        own = self.submit_as(self.news, "true", after=[])
        self.assertEqual(after("ok", own)[0], 201)

    def test_no_answer_has_the_name_of_a_job_that_is_not_shown(self):
        machine = pathlib.Path(self.machine.directory)
        for path in (machine, *machine.iterdir()):
            path.chmod(0o777)
        worker = [self.hand_out(paths.PROGRAMS / "worker", *paths.SIM_LIBRARIES.iterdir()), "--steps", "1000000"]
        environment = [f"PATH={os.environ['PATH']}", f"GPUMUX_SIM_DIR={machine}", f"LD_LIBRARY_PATH={self.directory}"]
        self.submit_as(self.games, *worker, environment=environment, name="secret")
        wait_until(self.daemon.api.seats, HANG, "its program has a seat")
        alien = os.path.join(self.directory, "secretalien")
        shutil.copy(worker[0], alien)
        os.chmod(alien, 0o755)
        self.submit_as(self.games, alien, *worker[1:], environment=[*environment, "GPUMUX_DISABLE=1"], name="alien")
        wait_until(lambda: self.daemon.api.gpu()["foreign"], HANG, "a program is there without gpumux")
        for privacy in ("open", "limited", "own"):
            self.write_config(f'[queue]\nprivacy = "{privacy}"\n')
            os.kill(self.daemon.pid, 1)
            wait_until(lambda: self.daemon.api.ask("GET", "/v1/queue")["settings"]["privacy"] == privacy, HANG,
                       "it is reloaded")
            for user in (self.games, self.news):
                for target in ("/v1/status", "/v1/daemon", "/v1/trace", "/v1/jobs?state=all", "/v1/queue",
                               "/v1/jobs/1"):
                    answer = subprocess.run([PYTHON, "-c", ASK.replace("print(r.status); ", ""),
                                             f"{self.runtime_dir}/api.sock", "GET", target], input="", user=user.pw_uid,
                                            group=user.pw_gid, extra_groups=[], cwd="/", capture_output=True, text=True,
                                            timeout=HANG, check=True).stdout
                    if user == self.news and privacy != "open":
                        self.assertNotIn("secret", answer, target)
                    elif target in ("/v1/status", "/v1/trace"):
                        self.assertIn("secret", answer, target)

    def test_a_field_stands_once(self):
        job = self.submit_as(self.games, "true", held=True)
        for target, body in ((f"/v1/jobs/{job}", '{"held": true, "held": false}'),
                             (f"/v1/jobs/{job}", '{"cancel": false, "cancel": true}')):
            status, answer = self.ask_as(self.games, "PATCH", target, body)
            self.assertEqual(status, 400, answer)
            self.assertIn("twice", answer["error"]["message"])
        twice = '{"arguments": ["true"], "directory": "/", "directory": "/root", "environment": [], "held": true}'
        self.assertEqual(self.ask_as(self.games, "POST", "/v1/jobs", twice)[0], 400)
        for target, body in (("/v1/gpus/0", '{"mode": "auto", "mode": "serial"}'),
                             ("/v1/queue", '{"paused": true, "paused": false}'),
                             (f"/v1/queue/users/{self.games.pw_uid}", '{"running": 1, "running": 2}'),
                             ("/v1/tenants/1", '{"priority": 1, "priority": 2}')):
            self.assertIn(self.ask_as(pwd.getpwuid(0), "PATCH", target, body)[0], (400, 404), target)
        self.assertEqual(self.job(job)["state"], "held")


if __name__ == "__main__":
    main()
