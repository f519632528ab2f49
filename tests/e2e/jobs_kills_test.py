#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every job that was acknowledged ends exactly once, as it really did or as `lost`, whichever process dies and when.

Method: users hand in jobs, cancel and hold them, while daemon, runners and clients are killed with SIGKILL at random by
seed. Each job keeps a book of its own: a line when it begins, and one with its status before it ends. In the end the
books are compared with what the queue says: no job ran twice, none that was acknowledged is missing, each that ended by
itself has its status, nobody was lost whose runner lived, and who waited for the same GPU ran in the order of the ids.

GPUMUX_TEST_KILLS: how many kills (default 40). GPUMUX_TEST_SEED repeats a run, as far as processes allow.
"""

import os
import pathlib
import signal
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.api import ApiError  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.seeds import amount, seeded  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

# begin; work for a while; end as told. The book's lines are appended, each by one write.
JOB = 'echo "begin $GPUMUX_RUN_ID" >> "$0.$GPUMUX_JOB_ID"; sleep $1; echo "end $2" >> "$0.$GPUMUX_JOB_ID"; exit $2'

RUNNER_ENDED = 65  # src/wire/runner_messages.h


class JobsAndKills(GpumuxTest):
    gpus = 2

    def setUp(self):
        super().setUp()
        self.daemon = self.start_daemon(library=paths.LIBRARY, cancel_grace="1s", queue_cancel_grace="1s")
        self.book = os.path.join(self.directory, "book")
        self.acknowledged = {}  # id: what was asked for
        self.cancelled = set()
        self.runner_killed = set()

    def api(self, method, target, body=None):
        """None: there was no answer, and nobody knows what became of it."""
        try:
            return self.daemon.api.ask(method, target, body)
        except (OSError, ApiError, ValueError, EOFError):
            return None
        except Exception as error:  # http.client has a family of its own for connections that end
            if type(error).__module__ == "http.client":
                return None
            raise

    def body(self, random, number):
        status = random.choice([0, 0, 0, 1, 7])
        return {"arguments": ["sh", "-c", JOB, self.book, str(random.choice([0, 0.01, 0.05, 0.3])), str(status)],
                "directory": self.directory, "environment": [f"PATH={os.environ['PATH']}"], "output": os.devnull,
                "append": True, "token": f"token-{number}", "memory_bytes": random.choice([0, 0, 300 << 20]),
                "requeue": random.random() < 0.2, **random.choice([{}, {"gpu_ids": [0]}, {"gpus": 2}])}

    def submit(self, random, number):
        """As a client does: the same submission again until there is an answer."""
        body = self.body(random, number)
        answers = []

        def persist():
            while not answers:
                answer = self.api("POST", "/v1/jobs", body)
                if answer:
                    answers.append(answer["id"])

        thread = threading.Thread(target=persist, daemon=True)
        thread.start()
        return thread, body, answers

    def runners(self):
        """The runners of this test's daemon, by job."""
        found = {}
        for name in os.listdir("/proc"):
            if not name.isdigit():
                continue
            try:
                with open(f"/proc/{name}/comm", encoding="utf-8") as file:
                    if not file.read().startswith("gpumux-runner"):
                        continue
                for descriptor in os.listdir(f"/proc/{name}/fd"):
                    target = os.readlink(f"/proc/{name}/fd/{descriptor}")
                    if target.startswith(self.daemon.state_dir + "/jobs/"):
                        found[int(target.split("/")[-1].split(".")[0])] = int(name)
            except (OSError, ValueError):
                continue
        return found

    def kill_runner(self, random):
        runners = self.runners()
        if not runners:
            return False
        job = random.choice(sorted(runners))
        self.runner_killed.add(job)
        try:
            os.kill(runners[job], signal.SIGKILL)
        except ProcessLookupError:
            pass
        return True

    def kill_client(self, random, number):
        """A real client that dies at any moment: what it handed in may be there, or not."""
        client = self.gpumux("submit", "--output", os.devnull, "--name", f"orphan-{number}", "--", "true")
        time.sleep(random.random() * 0.05)
        client.send(signal.SIGKILL)
        client.wait()

    def test_kills_at_any_moment(self):
        random = seeded("jobs_kills")
        kills = amount("GPUMUX_TEST_KILLS", 40)
        pending, happened, number = [], {}, 0
        while sum(happened.values()) < kills:
            for _ in range(random.randrange(4)):
                number += 1
                pending.append(self.submit(random, number))
            if self.acknowledged and random.random() < 0.3:
                job = random.choice(sorted(self.acknowledged))
                self.cancelled.add(job)
                self.api("PATCH", f"/v1/jobs/{job}", {"cancel": True})
            time.sleep(random.random() * 0.1)
            action = random.choice(["daemon", "daemon", "runner", "client"])
            if action == "daemon":
                self.daemon.restart()
            elif action == "runner" and not self.kill_runner(random):
                continue
            elif action == "client":
                self.kill_client(random, number)
            happened[action] = happened.get(action, 0) + 1
            self.collect(pending)
        for thread, _, _ in pending:
            thread.join(60)
        self.collect(pending)
        self.assertEqual(pending, [], "every submission is answered in the end")
        wait_until(lambda: (found := self.api("GET", "/v1/jobs")) is not None and not found["jobs"], HANG,
                   lambda: f"all jobs are done; left: {self.api('GET', '/v1/jobs')}")
        self.check()
        print(f"{len(self.acknowledged)} jobs, kills: {happened}", file=sys.stderr)

    def test_an_end_that_no_disk_takes_is_told_until_it_is_stored(self):
        gate = os.path.join(self.directory, "gate")
        os.mkfifo(gate)
        job = self.api("POST", "/v1/jobs", {
            "arguments": ["sh", "-c", 'read -r line < "$0"; exit 7', gate], "directory": self.directory,
            "environment": [f"PATH={os.environ['PATH']}"], "output": os.devnull, "append": True, "token": "told"})["id"]
        writer = os.open(gate, os.O_WRONLY)  # once the job reads
        runner = self.runners()[job]
        directory = f"{self.daemon.state_dir}/jobs/{job}.1"
        os.chmod(directory, 0o500)  # as far as a runner's rights go, nothing is written there any more
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as witness:
            witness.settimeout(60)
            witness.connect(f"{directory}/control")
            witness.recv(1024)
            # The daemon is told, and dies before it has stored it.
            self.daemon.process.send(signal.SIGSTOP)
            os.close(writer)
            while struct.unpack("<I", witness.recv(1024)[:4])[0] != RUNNER_ENDED:
                pass
            self.daemon.kill()
        self.daemon.start()
        wait_until(lambda: self.api("GET", f"/v1/jobs/{job}")["state"] == "done", HANG,
                   lambda: f"it is done; {self.api('GET', f'/v1/jobs/{job}')}")
        end = self.api("GET", f"/v1/jobs/{job}")
        self.assertEqual((end["outcome"], end.get("exit_status")), ("failed", 7), end)
        wait_until(lambda: not os.path.exists(f"/proc/{runner}"), HANG, "its runner has ended")

    def collect(self, pending):
        for entry in list(pending):
            thread, body, answers = entry
            if not thread.is_alive():
                self.assertNotIn(answers[0], self.acknowledged, "two submissions have one job")
                self.acknowledged[answers[0]] = body
                pending.remove(entry)

    def lines(self, job):
        try:
            with open(f"{self.book}.{job}", encoding="utf-8") as file:
                return file.read().split("\n")[:-1]
        except FileNotFoundError:
            return []

    def all_jobs(self):
        jobs, page = {}, {"more": True}
        while page["more"]:
            page = self.api("GET", f"/v1/jobs?state=all&beyond={max(jobs, default=0)}")
            jobs.update((job["id"], job) for job in page["jobs"])
        return jobs

    def check(self):
        jobs = self.all_jobs()
        for job, body in self.acknowledged.items():
            with self.subTest(job=job):
                self.assertIn(job, jobs, "what was acknowledged is there")
                end = jobs[job]
                lines = self.lines(job)
                begun = [line for line in lines if line.startswith("begin")]
                ended = [line for line in lines if line.startswith("end")]
                self.assertEqual(end["state"], "done", end)
                self.assertEqual(len(begun), len(set(begun)), f"no attempt runs twice: {lines}")
                if not (body["requeue"] and job in self.runner_killed):
                    self.assertLessEqual(len(begun), 1, f"it ran once: {lines}; {end}")
                if end["outcome"] == "lost":
                    self.assertIn(job, self.runner_killed, end)
                elif end["outcome"] == "cancelled":
                    self.assertIn(job, self.cancelled, end)
                elif job in self.runner_killed and end.get("exit_status") == 137:
                    pass  # what looked like the runner was the job's own process, which has its name until it executes
                else:
                    self.assertEqual(ended[-1:], [f"end {end.get('exit_status')}"], end)
                    self.assertEqual(end["outcome"], "ok" if end["exit_status"] == 0 else "failed")
        alike = [jobs[job] for job, body in sorted(self.acknowledged.items())
                 if body.get("gpu_ids") == [0] and body["memory_bytes"] == 0 and jobs[job]["started_unix_ns"]
                 and job not in self.runner_killed and job not in self.cancelled]
        starts = [job["started_unix_ns"] for job in alike]
        self.assertEqual(starts, sorted(starts), "who waits for the same goes in order")
        wait_until(lambda: os.listdir(self.daemon.state_dir + "/jobs") == [], HANG, "no runner's directory is left")
        self.assertEqual(self.runners(), {})


if __name__ == "__main__":
    main()
