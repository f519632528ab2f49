#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One user cannot take the job queue from the others: its places, its bytes, the disk, the daemon's time.

Method: one user takes all that it may; then others hand in jobs and see them end (framework/users.py).
"""

import contextlib
import os
import pathlib
import pwd
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework.case import main  # noqa: E402
from framework.users import PYTHON, UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

# Connects, and begins large submissions when it is told so. It says no more of them: it prints a line for each that is
# answered or ended, when it is.
UPLOAD = """
import select, socket, sys
head = b"POST /v1/jobs HTTP/1.1\\r\\nHost: x\\r\\nContent-Length: %d\\r\\n\\r\\n{" % int(sys.argv[3])
waiting = []
for _ in range(int(sys.argv[2])):
  s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); waiting.append(s)
print("connected", flush=True)
sys.stdin.readline()
for s in waiting: s.sendall(head)
while waiting:
  for s in select.select(waiting, [], [])[0]:
    waiting.remove(s)
    try: answer = s.recv(4096)
    except OSError: answer = b""
    print(answer.split()[1].decode() if answer else "ended", flush=True)
"""
# The daemon ends such a submission two seconds after its head, and one later for each MiB of its length.
MIB = 1 << 20


class Shares(UsersTest):
    def block_the_gpu(self):
        """A job of root's that has the GPU until it is cancelled."""
        job = self.daemon.api.ask("POST", "/v1/jobs", {"arguments": ["sleep", "1000"], "directory": "/",
                                                       "environment": [f"PATH={os.environ['PATH']}"],
                                                       "output": "/dev/null", "exclusive": True})["id"]
        wait_until(lambda: self.job(job)["state"] == "running", HANG, "it runs")
        return job

    def test_a_priority_above_the_cap_passes_own_jobs_only(self):
        blocker = self.block_the_gpu()
        first = self.submit_as(self.games, "true", exclusive=True)
        others = self.submit_as(self.news, "true", exclusive=True)
        urgent = self.submit_as(self.games, "true", exclusive=True, priority=1000)
        self.assertEqual(self.job(urgent)["priority_capped"], 0)
        self.daemon.api.ask("PATCH", f"/v1/jobs/{blocker}", {"cancel": True})
        started = [self.wait_done(job)["started_unix_ns"] for job in (others, urgent, first)]
        self.assertEqual(started, sorted(started), "another user's job, the urgent one, the one that it passes")
        # The answer tells the submitting user of the cap; root has no cap.
        body = {"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null", "priority": 7}
        self.assertEqual(self.ask_as(self.games, "POST", "/v1/jobs", body)[1]["priority_capped"], 0)
        self.assertNotIn("priority_capped", self.daemon.api.ask("POST", "/v1/jobs", body))

    def test_jobs_and_bytes_of_a_user_have_quotas(self):
        self.reconfigure('[queue]\nmax_queued = 3\nmax_bytes = "64K"\n')
        held = [self.submit_as(self.games, "true", held=True) for _ in range(3)]
        body = {"arguments": ["true"], "directory": "/", "environment": [], "output": "/dev/null", "held": True}
        status, refused = self.ask_as(self.games, "POST", "/v1/jobs", body)
        self.assertEqual(status, 403, refused)
        self.assertIn("max_queued: 3", refused["error"]["message"])
        large = {**body, "environment": ["X=" + "x" * 70_000]}
        status, refused = self.ask_as(self.news, "POST", "/v1/jobs", large)
        self.assertEqual(status, 403, refused)
        self.assertIn("max_bytes", refused["error"]["message"])
        # It counts what is there, after a restart too, and one user's is not the others'.
        half = {**body, "environment": ["X=" + "x" * 40_000]}
        self.assertEqual(self.ask_as(self.news, "POST", "/v1/jobs", half)[0], 201)
        self.daemon.restart()
        self.assertEqual(self.ask_as(self.news, "POST", "/v1/jobs", half)[0], 403)
        self.daemon.api.ask("PATCH", f"/v1/jobs/{','.join(map(str, held))}", {"cancel": True})
        self.assertEqual(self.ask_as(self.games, "POST", "/v1/jobs", half)[0], 201)

    def test_a_full_disk_keeps_no_job_from_its_end(self):
        disk = os.path.join(self.directory, "disk")
        os.mkdir(disk)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "none", disk], check=False,
                          capture_output=True).returncode:
            self.skipTest("a disk of its own cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk], check=True)
        self.daemon.terminate()
        self.daemon.state_dir = os.path.join(disk, "state")
        self.daemon.start()
        home = self.homes[self.games.pw_uid]
        running = self.submit_as(self.games, "sh", "-c", f"until [ -e {home}/go ]; do sleep 0.01; done")
        wait_until(lambda: self.job(running)["state"] == "running", HANG, "it runs")
        body = {"arguments": ["true"], "directory": "/", "environment": ["X=" + "x" * 3_000], "output": "/dev/null",
                "held": True, "array": "1-500"}
        array = self.ask_as(self.games, "POST", "/v1/jobs", body)[1]["id"]
        filling = os.path.join(disk, "filling")
        with open(filling, "wb", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while True:
                        file.write(bytes(size))
        self.assertEqual(os.statvfs(disk).f_bavail, 0)
        changed = self.ask_as(self.games, "PATCH", f"/v1/jobs/{array}", {"cancel": True})
        self.assertEqual((changed[0], len(changed[1]["jobs"])), (200, 500), changed)
        with open(f"{home}/go", "w", encoding="utf-8"):
            pass
        self.assertEqual(self.wait_done(running)["outcome"], "ok")
        status, refused = self.ask_as(self.games, "POST", "/v1/jobs", body)
        self.assertEqual(status, 503, refused)
        self.assertIn("nearly full", refused["error"]["message"])
        self.assertEqual(self.ask_as(self.games, "GET", "/v1/queue")[1]["state"], "no_room")
        self.assertIn("queue: the job queue refuses new jobs: the disk is nearly full", self.doctor())
        os.unlink(filling)
        self.assertIn("queue: the job queue takes jobs", self.doctor())
        self.assertEqual(self.ask_as(self.games, "POST", "/v1/jobs", body)[0], 201)

    def doctor(self):
        return self.command_as(self.games, "doctor").stdout

    def connect(self, name, uploads, size):
        user = pwd.getpwnam(name)
        slow = subprocess.Popen([PYTHON, "-c", UPLOAD, f"{self.runtime_dir}/api.sock", str(uploads), str(size)],
                                user=user.pw_uid, group=user.pw_gid, extra_groups=[], cwd="/",
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(slow.wait, HANG)
        self.addCleanup(slow.kill)
        self.assertEqual(slow.stdout.readline(), "connected\n")
        return slow

    def begin(self, slow):
        """Its first answer."""
        slow.stdin.write("\n")
        slow.stdin.flush()
        return slow.stdout.readline()

    def test_slow_uploads_of_many_users_leave_room_for_administrators(self):
        users = [self.connect(name, uploads, 15 * MIB)
                 for name, uploads in (("bin", 3), ("sys", 3), ("mail", 3), ("games", 1))]
        self.assertEqual([self.begin(slow) for slow in users], ["429\n"] * 3 + ["503\n"])
        large = {"arguments": ["true"], "directory": "/", "environment": ["X=" + "x" * 100_000] * 8,
                 "output": "/dev/null", "held": True}
        self.assertEqual(self.ask_as(pwd.getpwuid(0), "POST", "/v1/jobs", large)[0], 201)

    def test_slow_uploads_of_one_user_block_nobody(self):
        slow = self.connect("news", 10, 4 * MIB)
        self.assertEqual([self.begin(slow), *[slow.stdout.readline() for _ in range(7)]], ["429\n"] * 8)
        large = {"arguments": ["true"], "directory": "/", "environment": ["X=" + "x" * 100_000] * 8,
                 "output": "/dev/null"}
        self.assertEqual(self.ask_as(self.games, "POST", "/v1/jobs", large)[0], 201)
        # And they come to an end.
        self.assertEqual([slow.stdout.readline() for _ in range(2)], ["ended\n"] * 2)


if __name__ == "__main__":
    main()
