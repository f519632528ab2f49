#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gpumux web` without a browser: what it tells its page, what it refuses, and that a daemon may go and come back.

Method: a daemon on simulated GPUs, `gpumux web`, and requests as browsers and attackers send them. Pages in a real
browser are page_test.py's.
"""

import json
import os
import pathlib
import signal
import socket
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.process import Process  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from web_view import LINK, Browser, wait_for_link  # noqa: E402


class WebTest(JobsTest):

    def start_web(self, *arguments, **variables):
        """A `gpumux web`, and a browser that has used its link."""
        process = self.gpumux("web", *arguments, **variables)
        port, token = wait_for_link(process)
        browser = Browser(port)
        self.assertEqual(browser.log_in(token).status, 200)
        return process, browser

    def test_a_view_shows_the_daemon_and_what_happens(self):
        _, browser = self.start_web()
        view = browser.view()
        self.assertEqual(view.status, 101)
        news = view.next("news")
        self.assertEqual(len(news["status"]["gpus"]), 2)
        self.assertTrue(news["daemon"]["driver"]["simulated"])
        self.assertFalse(news["queue"]["paused"])
        worker = self.start("worker", name="worker", gpu=0, steps=100, step_us=500, until=self.enough)
        view.wait_for_event(event="grant", pid=worker.pid)
        history = browser.get("/v1/trace?since=1&limit=100").text.splitlines()
        self.assertIn("grant", {json.loads(line)["event"] for line in history})
        while not any(seat["pid"] == worker.pid for gpu in view.next("news")["status"]["gpus"]
                      for seat in gpu["seats"]):
            pass
        pathlib.Path(self.enough).touch()
        worker.expect_success()

    def test_a_daemon_that_goes_and_comes_back(self):
        process, browser = self.start_web()
        view = browser.view()
        started = view.next("news")["daemon"]["started_unix_ns"]
        self.daemon.terminate()
        self.assertIn("it was stopped or restarted", view.next("gone")["why"])
        self.assertIn("no gpumux daemon is running", view.next("gone")["why"])
        self.assertEqual(browser.get("/v1/jobs").status, 503)
        self.daemon.start()
        again = view.next("news")
        self.assertNotEqual(again["daemon"]["started_unix_ns"], started)
        worker = self.start("worker", name="worker", gpu=0, steps=100, step_us=500, until=self.enough)
        view.wait_for_event(event="request", pid=worker.pid)
        pathlib.Path(self.enough).touch()
        worker.expect_success()
        process.send(signal.SIGTERM)
        self.assertEqual(process.wait(), 0)
        self.assertIsNone(view.next("never"))

    def test_it_begins_before_the_daemon(self):
        self.daemon.terminate()
        process, browser = self.start_web()
        wait_until(lambda: "The page goes on by itself when a daemon answers." in process.errors, HANG,
                   lambda: f"it says what the page does: {process.tail()}")
        self.assertIn("no gpumux daemon is running", "\n".join(process.errors))
        view = browser.view()
        self.assertIn("no gpumux daemon is running", view.next()["why"])
        self.daemon.start()
        self.assertEqual(len(view.next("news")["status"]["gpus"]), 2)

    def test_jobs_are_shown_and_changed(self):
        _, browser = self.start_web()
        job = self.hold_gpus(gpus=2)
        self.wait_state(job, "running")
        waiting = self.submit("true", gpus=2)
        shown = {one["id"]: one for one in browser.get("/v1/jobs").json["jobs"]}
        self.assertEqual((shown[job]["state"], shown[waiting]["state"]), ("running", "queued"))
        path = f"/v1/jobs/{waiting}"
        self.assertEqual(browser.ask("PATCH", path, {"held": True}).json["jobs"], [{"id": waiting, "changed": True}])
        # A change is seen at once, whatever was asked a moment before.
        self.assertEqual(browser.get(path).json["state"], "held")
        self.assertEqual(browser.ask("PATCH", path, {"priority": 5}).status, 200)
        self.assertEqual(browser.get(path).json["priority"], 5)
        self.assertEqual(browser.ask("PATCH", path, {"cancel": True}).status, 200)
        self.wait_done(waiting, "cancelled")
        self.assertEqual(browser.ask("PATCH", "/v1/jobs/999", {"cancel": True}).status, 404)
        self.release(job)

    def test_a_read_only_view_changes_nothing(self):
        _, browser = self.start_web("--read-only")
        self.assertTrue(browser.get("/session").json["read_only"])
        job = self.submit("true", hold=True)
        answer = browser.ask("PATCH", f"/v1/jobs/{job}", {"cancel": True})
        self.assertEqual(answer.status, 403)
        self.assertIn("read-only", answer.json["error"]["message"])
        self.assertEqual(self.job(job)["state"], "held")

    def test_a_page_for_readers(self):
        # As gpumux-web.service runs it. This user may cancel the job; the page refuses whatever its user may do.
        file = pathlib.Path(self.directory, "link")
        process = self.gpumux("web", "--read-only", "--link-file", file)
        wait_until(file.exists, HANG, "the link is there")
        link = file.read_text(encoding="ascii")
        self.assertEqual(file.stat().st_mode & 0o777, 0o640)
        port, token = LINK.search(link).groups()
        reader = Browser(int(port))
        self.assertEqual(reader.log_in(token).status, 200)
        wait_until(lambda: file.read_text(encoding="ascii") != link, HANG, "the next link is there")
        _, second = LINK.search(file.read_text(encoding="ascii")).groups()
        self.assertEqual(Browser(int(port)).log_in(token).status, 401)
        self.assertEqual(Browser(int(port)).log_in(second).status, 200)
        self.assertEqual(len(reader.view().next("news")["status"]["gpus"]), 2)
        job = self.submit("true", hold=True)
        path = f"/v1/jobs/{job}"
        for change in ({"cancel": True}, {"held": False}, {"suspended": True}, {"priority": 5}):
            self.assertEqual(reader.ask("PATCH", path, change).status, 403, change)
        for method in ("POST", "PUT", "DELETE"):
            for target in (path, "/v1/jobs", "/v1/gpus/0", "/v1/queue", "/v1/hold"):
                self.assertEqual(reader.ask(method, target, {}).status, 405, (method, target))
        self.assertEqual(self.job(job)["state"], "held")
        for secret in (token, second):
            self.assertNotIn(secret, "\n".join(process.lines + process.errors))
            for part in ("cmdline", "environ"):
                self.assertNotIn(secret, pathlib.Path(f"/proc/{process.pid}/{part}").read_text(encoding="utf-8"))
        process.send(signal.SIGTERM)
        self.assertEqual(process.wait(), 0)
        self.assertFalse(file.exists())

    def test_the_end_of_a_log(self):
        _, browser = self.start_web()
        said = "<script>alert(1)</script>\x1b[31mred\x1b[0m\x1b]0;title\x07"
        job = self.submit("sh", "-c", 'i=0; while [ $i -lt 3000 ]; do echo "line $i: what a job prints"; i=$((i+1)); '
                          'done; printf "%s" "$1"', "sh", said)
        self.wait_done(job, "ok")
        tail = browser.get(f"/log/{job}")
        self.assertEqual(tail.headers["Content-Type"], "text/plain; charset=utf-8")
        self.assertEqual(tail.headers["X-Content-Type-Options"], "nosniff")
        size = os.path.getsize(os.path.join(self.directory, f"{job}.log"))
        self.assertEqual(int(tail.headers["X-Gpumux-Log-Bytes"]), size)
        self.assertLessEqual(len(tail.text), 65536)
        self.assertTrue(tail.text.endswith(said), tail.text[-100:])
        self.assertTrue(tail.text.startswith("line "))
        held = self.submit("true", hold=True)
        self.assertEqual(browser.get(f"/log/{held}").status, 404)
        self.assertEqual(browser.get("/log/999").status, 404)
        for path in ("/log/../../etc/passwd", "/log/%2e%2e", "/log/"):
            self.assertEqual(browser.get(path).status, 404, path)

    def test_strangers_are_refused(self):
        process, browser = self.start_web()
        stranger = Browser(browser.port)
        for target in ("/session", "/v1/status", "/v1/jobs", "/log/1"):
            self.assertEqual(stranger.get(target).status, 401, target)
        self.assertEqual(stranger.view(Cookie=None, Sec_WebSocket_Protocol="gpumux, x").status, 401)
        # DNS rebinding: another name leads here.
        for target in ("/", "/session", "/v1/status"):
            self.assertEqual(browser.get(target, Host=f"evil.example:{browser.port}").status, 421, target)
        self.assertEqual(browser.view(Host=f"evil.example:{browser.port}").status, 421)
        # Another page, with the browser's own cookies.
        for origin in ("http://evil.example", "null", f"http://localhost:{browser.port}", "http://127.0.0.1:1"):
            self.assertEqual(browser.view(Origin=origin).status, 403, origin)
            self.assertEqual(browser.ask("PATCH", "/v1/jobs/1", {"cancel": True}, Origin=origin).status, 403, origin)
            self.assertEqual(browser.ask("POST", "/session", "x", Origin=origin).status, 403, origin)
        # A form of another page: no key, and a body that is a form's.
        self.assertEqual(browser.ask("POST", "/session", "token=1", Origin="http://evil.example", X_Gpumux_Key=None).status, 403)
        self.assertEqual(browser.get("/v1/status").status, 200)
        self.assertNotIn("evil", "\n".join(process.errors))

    def test_a_link_works_once_and_enter_prints_another(self):
        keyboard, writing = os.pipe()
        process = self.start_process([paths.COMMAND, "web"], self.environment(preload=False), stdin=keyboard)
        os.close(keyboard)
        self.addCleanup(os.close, writing)
        port, token = wait_for_link(process)
        first = Browser(port)
        self.assertEqual(first.log_in(token).status, 200)
        self.assertEqual(Browser(port).log_in(token).status, 401)
        os.write(writing, b"\n")
        _, second = wait_for_link(process, after=1)
        self.assertNotEqual(token, second)
        self.assertEqual(Browser(port).log_in(second).status, 200)
        self.assertEqual(first.get("/v1/status").status, 200)

    def test_no_secret_is_on_a_command_line_or_in_an_environment(self):
        with tempfile.TemporaryDirectory() as folder:
            seen = os.path.join(folder, "seen")
            opener = pathlib.Path(folder, "xdg-open")
            opener.write_text(f'#!/bin/sh\n{{ tr "\\0" " " </proc/$$/cmdline; env; }} >{seen}.part\n'
                              f'cp "$1" {folder}/page\nstat -c %a "$1" >{folder}/mode\nmv {seen}.part {seen}\n')
            opener.chmod(0o755)
            process = self.gpumux("web", "--open", PATH=f"{folder}:{os.environ['PATH']}", XDG_RUNTIME_DIR=folder)
            wait_until(lambda: os.path.exists(seen), HANG, "the browser is started")
            page = pathlib.Path(folder, "page").read_text(encoding="utf-8")
            port, token = page.split("http://127.0.0.1:")[1].split('"')[0].split("/#")
            self.assertEqual(pathlib.Path(folder, "mode").read_text(encoding="ascii").strip(), "600")
            self.assertNotIn(token, pathlib.Path(seen).read_text(encoding="utf-8"))
            self.assertNotIn(token, "\n".join(process.lines + process.errors))
            for part in ("cmdline", "environ"):
                self.assertNotIn(token, pathlib.Path(f"/proc/{process.pid}/{part}").read_text(encoding="utf-8"))
            self.assertEqual(Browser(int(port)).log_in(token).status, 200)
            process.send(signal.SIGTERM)
            self.assertEqual(process.wait(), 0)
            self.assertEqual(list(pathlib.Path(folder, "gpumux").glob("web-*")), [])

    def test_it_listens_on_the_loopback_alone(self):
        _, browser = self.start_web()
        port = f"{browser.port:04X}"
        listening = []
        for table in ("tcp", "tcp6"):
            for line in pathlib.Path("/proc/net", table).read_text(encoding="ascii").splitlines()[1:]:
                local, state = line.split()[1], line.split()[3]
                if state == "0A" and local.endswith(":" + port):
                    listening.append((table, local))
        # "localhost" may mean either, so both are ours.
        own = [("tcp", f"0100007F:{port}")]
        if os.path.exists("/proc/net/if_inet6"):
            own.append(("tcp6", "0" * 24 + f"01000000:{port}"))
        self.assertEqual(listening, own)
        again = self.gpumux("web", "--port", str(browser.port))
        self.assertEqual(again.wait(), 1)
        self.assertIn("cannot listen on port", "\n".join(again.errors))

    def test_half_a_request_ends_nothing(self):
        _, browser = self.start_web()
        halves = [socket.create_connection(("127.0.0.1", browser.port), timeout=20) for _ in range(100)]
        for half in halves:
            half.sendall(b"GET / HTTP/1.1\r\nHost: ")
        self.assertEqual(browser.get("/v1/status").status, 200)
        for half in halves:
            half.close()


class OthersJobs(UsersTest):

    def test_another_users_job_is_not_cancelled(self):
        command = self.hand_out(paths.COMMAND)
        job = self.submit_as(self.games, "sleep", "1000")
        environment = {**self.environment(preload=False), "HOME": self.homes[self.news.pw_uid]}
        process = Process([command, "web"], environment, name="gpumux web", user=self.news.pw_uid,
                          group=self.news.pw_gid, extra_groups=[])
        self.programs.append(process)
        port, token = wait_for_link(process)
        browser = Browser(port)
        self.assertEqual(browser.log_in(token).status, 200)
        self.assertEqual(browser.get("/session").json["user"], "news")
        shown = browser.get(f"/v1/jobs/{job}").json
        self.assertEqual(shown["user"], "games")
        self.assertNotIn("log", shown)
        self.assertEqual(browser.get(f"/log/{job}").status, 403)
        self.assertEqual(browser.ask("PATCH", f"/v1/jobs/{job}", {"cancel": True}).status, 403)
        self.assertNotEqual(self.job(job)["state"], "done")


if __name__ == "__main__":
    main()
