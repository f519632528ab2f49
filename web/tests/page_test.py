#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `gpumux web` in Debian's chromium: what it shows, what a person can do with it, and hostile texts.

Method: a daemon on simulated GPUs and `gpumux web` here; a browser in a process of an ordinary user's, with chromium's
own sandbox, does what a person does (cases.mjs). `make test-web` runs it.
"""

import http.server
import json
import os
import pathlib
import pwd
import shutil
import sys
import tempfile
import threading
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests"))
from framework import paths  # noqa: E402
from framework.case import main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.process import Process  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402
from web_view import wait_for_link  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
CHROMIUM = "/usr/bin/chromium"


class Browsing:
    """Runs cases.mjs. Root's browser runs as the user games: no browser is to be root's."""

    def browse(self, case, link, *more, answers=None):
        folder = tempfile.mkdtemp(prefix="gpumux-web-")
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        # The user may not be able to go where this file is.
        shutil.copytree(HERE / "node_modules", f"{folder}/node_modules")
        shutil.copy(HERE / "cases.mjs", folder)
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "GPUMUX_CHROMIUM": CHROMIUM}
        user = {}
        if os.geteuid() == 0:
            games = pwd.getpwnam("games")
            user = {"user": games.pw_uid, "group": games.pw_gid, "extra_groups": []}
            os.chown(folder, games.pw_uid, games.pw_gid)
        reading, writing = os.pipe()
        process = Process(["node", "cases.mjs", case, link, *map(str, more)], environment, name=f"case {case}",
                          cwd=folder, stdin=reading, **user)
        self.programs.append(process)
        os.close(reading)
        with open(writing, "w", encoding="utf-8") as answering:
            answered = 0
            while process.code is None:
                wait_until(lambda: process.code is not None or len(process.lines) > answered, 180, f"case {case} ends")
                for word in process.lines[answered:]:
                    answered += 1
                    if word != "good":
                        print((answers or {})[word]() or "", file=answering, flush=True)
        process.expect_success()

    def link(self, process, after=0):
        port, token = wait_for_link(process, after)
        return f"http://127.0.0.1:{port}/#{token}"


@unittest.skipUnless(os.path.exists(CHROMIUM), "Debian's chromium is not installed")
class PageTest(Browsing, JobsTest):

    def work(self, *names, gpu=0):
        """Programs that take turns until self.enough is there."""
        return [self.start("worker", name=name, gpu=gpu, steps=100, step_us=500, until=self.enough, preload=True,
                           variables={"GPUMUX_NAME": name}) for name in names]

    def finish(self, programs):
        pathlib.Path(self.enough).touch()
        for program in programs:
            program.expect_success()
        os.unlink(self.enough)

    def test_shows(self):
        programs = self.work("one", "two")
        job = self.hold_gpus(gpu_ids="1")
        self.wait_state(job, "running")
        web = self.gpumux("web")
        self.browse("shows", self.link(web))
        self.release(job)
        self.finish(programs)

    def test_history(self):
        self.daemon.api.set("0", quantum="5s", idle_hold="1s")
        programs = {name: self.start("worker", name=name, steps=1_000_000, step_us=3000,
                                     variables={"GPUMUX_NAME": name}) for name in ("one", "two")}

        def turns():
            return {name: len(self.daemon.trace.events(event="grant", pid=programs[name].pid)) for name in programs}

        wait_until(lambda: min(turns().values()) >= 2 and any(
            seat["phase"] == "holding" and seat["since_ns"] > 2.2e9 for seat in self.daemon.api.seats()), HANG,
            "both have had turns, and one holds the GPU for long")
        web = self.gpumux("web")
        self.browse("history", self.link(web), answers={"turns": lambda: json.dumps(turns())})

    def test_colors(self):
        names = [f"program {number}" for number in range(9)]
        programs = self.work(*names)

        def end():
            programs.pop(0).end()
            return ",".join(names[1:])

        web = self.gpumux("web")
        self.browse("colors", self.link(web), answers={
            "names": lambda: ",".join(names), "end": end, "stop": lambda: self.daemon.terminate() and "",
            "start": lambda: self.daemon.start() and ""})
        self.finish(programs)

    def test_phone(self):
        programs = self.work("one", "two")
        job = self.hold_gpus(gpu_ids="1")
        self.wait_state(job, "running")
        web = self.gpumux("web")
        self.browse("phone", self.link(web))
        self.release(job)
        self.finish(programs)

    def test_a_daemon_goes_and_comes_back(self):
        web = self.gpumux("web")
        programs = []
        self.browse("restart", self.link(web), answers={
            "stop": lambda: self.daemon.terminate() and "", "start": lambda: self.daemon.start() and "",
            "work": lambda: programs.extend(self.work("after"))})
        self.finish(programs)

    def test_a_job_is_cancelled(self):
        jobs = []

        def submit():
            jobs.append(self.submit("sh", "-c", "echo line 1 of the log; echo line 2 of the log; sleep 1000"))
            self.wait_state(jobs[0], "running")
            return jobs[0]

        web = self.gpumux("web")
        self.browse("cancel", self.link(web),
                    answers={"submit": submit, "state": lambda: self.job(jobs[0])["state"]})

    def test_keyboard(self):
        jobs = []

        def submit():
            jobs.append(self.submit("sleep", "1000"))
            self.wait_state(jobs[0], "running")
            return jobs[0]

        web = self.gpumux("web")
        self.browse("keyboard", self.link(web),
                    answers={"submit": submit, "state": lambda: self.job(jobs[0])["state"]})

    def test_screen_reader(self):
        programs = self.work("one")
        job = self.hold_gpus(gpu_ids="1")
        self.wait_state(job, "running")
        web = self.gpumux("web")
        self.browse("reader", self.link(web), answers={"stop": lambda: self.daemon.terminate() and ""})
        self.daemon.start()
        self.release(job)
        self.finish(programs)

    def test_hostile_texts(self):
        marked = "<img src=x onerror=alert(1)>"
        programs = self.work(marked)
        self.daemon.trace.wait_for(event="grant", pid=programs[0].pid)
        said = ("<script>alert(3)</script>\n\x1b[31mred\x1b[0m and bell \x07 and \u202eturned\n"
                " 10 %\r 50 %\r100 %\nthe end of the log\n")
        job = self.submit("sh", "-c", 'printf "%s" "$1"; sleep 1000', "sh", said,
                          name="<script>alert(2)</script>\x1b]0;title\x07\u202egpj", gpu_ids="1")
        self.wait_state(job, "running")
        waiting = self.submit("true", gpu_ids="1", exclusive=True)
        web = self.gpumux("web")
        self.browse("hostile", self.link(web), answers={"job": lambda: job, "waiting": lambda: waiting})
        self.finish(programs)

    def test_a_read_only_view(self):
        job = self.submit("true", hold=True)
        web = self.gpumux("web", "--read-only")
        self.browse("readonly", self.link(web), job)
        self.assertEqual(self.job(job)["state"], "held")

    def test_links(self):
        web = self.gpumux("web")
        self.browse("links", self.link(web))

    def test_a_page_of_another_site(self):
        class Quiet(http.server.BaseHTTPRequestHandler):
            def do_GET(self):    # noqa: N802 (the library's name)
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.end_headers()
                self.wfile.write(b"<!doctype html><title>another site</title>")

            def log_message(self, *_):
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            # By this name it is another site than 127.0.0.1, by that another port of the same one.
            for host in ("localhost", "127.0.0.1"):
                self.browse("crosssite", self.link(self.gpumux("web")), f"http://{host}:{server.server_port}/")
            server.shutdown()


@unittest.skipUnless(os.path.exists(CHROMIUM), "Debian's chromium is not installed")
class OthersJobs(Browsing, UsersTest):

    def web_of_news(self):
        environment = {**self.environment(preload=False), "HOME": self.homes[self.news.pw_uid]}
        web = Process([self.hand_out(paths.COMMAND), "web"], environment, name="gpumux web", user=self.news.pw_uid,
                      group=self.news.pw_gid, extra_groups=[])
        self.programs.append(web)
        return self.link(web)

    def test_another_users_job_is_not_cancelled(self):
        job = self.submit_as(self.games, "sleep", "1000")
        self.browse("denied", self.web_of_news(), job, answers={"state": lambda: self.job(job)["state"]})

    def test_another_users_job_whose_outcome_is_hidden(self):
        job = self.submit_as(self.games, "true")
        self.wait_done(job)
        self.reconfigure('[queue]\nprivacy = "limited"\n')
        self.browse("hidden", self.web_of_news(), job)


if __name__ == "__main__":
    main()
