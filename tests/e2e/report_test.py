#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`gpumux report`: what programs have had of GPUs is what the trace has, in every form, after kills, for who may see
it.

Method: programs and jobs on simulated GPUs; sums over the trace, which is the daemon's other account of the same
leases.
"""

import csv
import io
import json
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.api import Api, ApiError  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.spans import spans  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.users import UsersTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

SUMS = ("held_seconds", "gpu_seconds", "waited_seconds", "resident_byte_seconds", "evicted_byte_seconds", "switches")
STEPS = {"steps": 200, "step_us": 500, "sync_every": 4}


class Traced:
    """The seconds that each process held and waited for all GPUs, and its switches, as the trace says."""

    def __init__(self, trace):
        self.held, self.waited, self.switches = {}, {}, {}
        for lease in trace.leases():
            self.held[lease.pid] = self.held.get(lease.pid, 0) + lease.held() / 1e9
        for span in spans(trace.events()):
            if span.kind == "waits" and span.end is not None:
                self.waited[span.pid] = self.waited.get(span.pid, 0) + (span.end - span.begin) / 1e9
        last = {}
        for event in trace.events(event="grant"):
            pid, gpu = event["pid"], event["gpu"]
            if last.get(gpu) != pid:
                self.switches[pid] = self.switches.get(pid, 0) + 1
            last[gpu] = pid


class Report(JobsTest):

    def rows(self, by, *arguments, since="1h", until=None):
        """The rows of `--json`; with `until` as soon as it holds: a report may be a second old."""
        ask = lambda: json.loads(self.ask("report", "--by", by, "--since", since, "--json", *arguments)[0])["rows"]
        return ask() if until is None else wait_until(lambda: until(rows := ask()) and rows, HANG, lambda: f"{ask()}")

    def run_named(self, name, **options):
        """As a user runs it: `gpumux run`, which becomes the program."""
        command = [paths.PROGRAMS / "worker"]
        for key, value in {**STEPS, **options}.items():
            command += ["--" + key.replace("_", "-"), str(value)]
        return self.gpumux("run", "--name", name, "--", *map(str, command), name=name)

    def start_some(self):
        """Two programs that alternate on GPU 0, one and a job on GPU 1; all are gone."""
        self.daemon.api.set(quantum="5ms", overlap=False)
        programs = {name: self.run_named(name, gpu=0, until=self.enough) for name in ("one", "two")}
        programs["three"] = self.run_named("three", gpu=1)
        job = self.submit(*self.worker(gpu=0, **STEPS), gpu_ids=1, name="nightly")
        wait_until(lambda: len(self.daemon.trace.switches(0)) >= 8, HANG, "they take turns")
        pathlib.Path(self.enough).touch()
        for program in programs.values():
            program.expect_success(timeout=HANG)
        self.wait_done(job, "ok")
        gone = lambda: {event["pid"] for event in self.daemon.trace.events(event="gone")}
        connected = lambda: {event["pid"] for event in self.daemon.trace.events(event="connect")}
        wait_until(lambda: len(connected()) == 4 and gone() == connected(), HANG, "all of them are gone")
        pids = {name: program.pid for name, program in programs.items()}
        (pids["nightly"],) = connected() - set(pids.values())
        return pids, job

    def compare(self, row, traced, *pids):
        """To 0.1 %."""
        for name, of_trace in (("held_seconds", traced.held), ("waited_seconds", traced.waited)):
            wanted = sum(of_trace.get(pid, 0) for pid in pids)
            self.assertAlmostEqual(row[name], wanted, delta=wanted / 1000, msg=f"{name} of {row}")
        self.assertEqual(row["switches"], sum(traced.switches.get(pid, 0) for pid in pids), row)

    def test_a_report_agrees_with_the_trace(self):
        pids, job = self.start_some()
        traced = Traced(self.daemon.trace)
        self.assertGreater(min(traced.held[pid] for pid in pids.values()), 0)
        self.assertGreater(min(traced.waited[pids["one"]], traced.waited[pids["two"]]), 0)
        user = self.daemon.api.daemon()["owner"]
        is_all = lambda rows: abs(sum(row["held_seconds"] for row in rows) - sum(traced.held.values())) < 1e-3

        (whole,) = self.rows("user", until=is_all)
        self.assertEqual((whole["uid"], whole["user"]), (os.geteuid(), user))
        self.compare(whole, traced, *pids.values())
        self.assertLessEqual(whole["gpu_seconds"], whole["held_seconds"])
        self.assertGreater(whole["gpu_seconds"], 0)
        self.assertGreater(whole["resident_byte_seconds"], 0)

        by_program = {row["program"]: row for row in self.rows("program")}
        self.assertEqual(set(by_program), set(pids))
        for name, pid in pids.items():
            self.compare(by_program[name], traced, pid)

        by_job = {row.get("job"): row for row in self.rows("job")}
        self.assertEqual(set(by_job), {job, None})
        self.assertEqual(by_job[job]["name"], "nightly")
        self.compare(by_job[job], traced, pids["nightly"])
        self.compare(by_job[None], traced, pids["one"], pids["two"], pids["three"])

        jobs = json.loads(self.ask("queue", "--all", "--json")[0])["jobs"]
        (shown,) = [shown for shown in jobs if shown["id"] == job]
        ran = (shown["ended_unix_ns"] - shown["started_unix_ns"]) / 1e9
        self.assertAlmostEqual(by_job[job]["run_seconds"], ran, places=3)
        self.assertAlmostEqual(whole["run_seconds"], ran, places=3)
        self.assertEqual([row.get("job") for row in self.rows("job", "--job", str(job))], [job])
        self.assertRegex(self.ask("report", "--job", str(job))[0], rf"\n{job} +nightly ")
        for unknown in (str(job + 1), f"{job}_3"):
            self.assertIn(f"there is no job {unknown}", self.ask("report", "--job", unknown, code=1)[1])
        held = self.submit("true", hold=True)
        self.assertEqual(self.ask("report", "--job", str(held))[0], f"Job {held} has used no GPU.")

        (no_pod,) = self.rows("pod")
        self.assertNotIn("pod", no_pod)
        self.compare(no_pod, traced, *pids.values())

        held = [row["held_seconds"] for row in self.rows("program")]
        self.assertEqual(held, sorted(held, reverse=True))
        # Nothing is counted again because it was asked for, and what is gone stays.
        for field in SUMS:
            self.assertAlmostEqual(self.rows("user")[0][field], whole[field])

        # The other forms are of the same sums.
        lines = list(csv.DictReader(io.StringIO(self.ask("report", "--by", "program", "--csv")[0])))
        self.assertEqual([line["program"] for line in lines], [row["program"] for row in self.rows("program")])
        for line in lines:
            for field in SUMS:
                self.assertAlmostEqual(float(line[field]), by_program[line["program"]][field], msg=f"{field} {line}")
        table = self.ask("report", "--by", "program", "--mine")[0].splitlines()
        self.assertRegex(table[0], r"^from \d{4}-\d\d-\d\d \d\d:\d\d to ")
        self.assertEqual([line.split()[0] for line in table[1:]],
                         ["PROGRAM", *(row["program"] for row in self.rows("program")), "all"])
        seconds = round(whole["waited_seconds"])
        self.assertIn(f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}", table[-1].split())

        # Times and users that have nothing.
        self.assertEqual(self.rows("user", "--until", "2001-01-01", since="2000-01-01"), [])
        self.assertEqual(self.rows("user", "--user", "65533"), [])
        self.assertIn("there is no user 'nosuchuser'", self.ask("report", "--user", "nosuchuser", code=1)[1])
        for wrong in (["--since", "soon"], ["--until", "yesterday"], ["--by", "colour"], ["--csv", "--json"]):
            self.ask("report", *wrong, code=2)
        self.assertIn("'colour' is none of user, job, pod", self.ask("report", "--by", "colour", code=2)[1])
        for target in ("?by=colour", "?since_unix_ns=-1", "?since_unix_ns=5&until_unix_ns=4", "?color=1"):
            with self.assertRaises(ApiError) as refused:
                self.daemon.api.ask("GET", "/v1/report" + target)
            self.assertEqual(refused.exception.status, 400)

    def test_a_kill_loses_only_what_was_not_stored(self):
        """A report stores what there is. So what it has said is there after a kill, and nothing is there twice."""
        self.restart_with(quantum="5ms", overlap="false")
        programs = [self.start("worker", name=name, step_us=500, sync_every=4, until=self.enough,
                               variables={"GPUMUX_NAME": name}) for name in ("one", "two")]
        held = lambda: {row["program"]: row["held_seconds"] for row in self.rows("program")}
        for _ in range(3):
            before = wait_until(lambda: len(now := held()) == 2 and min(now.values()) > 0.05 and now, HANG, "both run")
            self.daemon.kill()
            self.daemon.start()
            after = held()
            for name, value in before.items():
                self.assertGreaterEqual(after[name], value - 1e-9)
            wait_until(lambda: all(now > after[name] for name, now in held().items()), HANG,
                       "they go on and are counted")
        pathlib.Path(self.enough).touch()
        for program in programs:
            program.expect_success(timeout=HANG)
        for program in programs:
            self.daemon.trace.wait_for(event="gone", pid=program.pid)
        # One at a time had the GPU, so what is counted twice would be more than the time that has passed.
        events = self.daemon.trace.events()
        passed = (events[-1]["time_ns"] - self.daemon.trace.events(event="grant")[0]["time_ns"]) / 1e9
        self.assertLessEqual(sum(held().values()), passed * 1.001)

    def test_a_stop_in_good_order_loses_nothing(self):
        self.run_named("last").expect_success(timeout=HANG)
        self.daemon.trace.wait_for(event="gone")
        traced = sum(Traced(self.daemon.trace).held.values())
        self.assertEqual(self.daemon.terminate(), 0)
        self.daemon.start()
        (row,) = self.rows("program")
        self.assertAlmostEqual(row["held_seconds"], traced, delta=traced / 1000)

    def test_names_are_hostile(self):
        names = ['=HYPERLINK("http://x","y")', "a,b\nc", "\x1b[2Jgone", "-1+1", "bad \udcff bytes", "(others)", '"']
        for name in names:
            self.run_named(name, steps=8).expect_success(timeout=HANG)
        rows = self.rows("program", until=lambda rows: len(rows) == len(names))
        said = {row["program"] if isinstance(row["program"], str) else row["program"]["base64"] for row in rows}
        self.assertIn('=HYPERLINK("http://x","y")', said)
        self.assertIn("?[2Jgone", said)
        self.assertTrue(all("others" not in row for row in rows), rows)
        for form in ((), ("--csv",), ("--json",)):
            text = self.ask("report", "--by", "program", *form)[0]
            self.assertEqual([c for c in text if ord(c) < 32 and c != "\n"], [], text)
        lines = list(csv.reader(io.StringIO(self.ask("report", "--by", "program", "--csv")[0])))
        self.assertEqual({len(line) for line in lines}, {len(lines[0])})
        cells = [line[0] for line in lines[1:]]
        self.assertEqual(len(cells), len(names))
        self.assertIn("'=HYPERLINK(\"http://x\",\"y\")", cells)
        self.assertFalse([cell for cell in cells if cell and cell[0] in "=+-@"], cells)

    def test_no_store_keeps_no_ledger(self):
        self.restart_with(state_dir="none")
        self.run_named("worker", steps=8).expect_success(timeout=HANG)
        with self.assertRaises(ApiError) as refused:
            self.daemon.api.ask("GET", "/v1/report")
        self.assertEqual(refused.exception.status, 503)
        self.assertIn("--state-dir none", self.ask("report", code=3)[1])

    def test_one_after_the_other(self):
        """Reports of one account wait for each other in the client, not in the daemon."""
        connections = [self.daemon.api.connect() for _ in range(8)]
        for connection in connections:
            connection.request("GET", "/v1/report")
        answers = {connection.getresponse().status for connection in connections}
        for connection in connections:
            connection.close()
        self.assertLessEqual(answers, {200, 429})
        self.assertIn(200, answers)
        self.assertEqual(self.rows("user"), [])


class PrivateDaemon(GpumuxTest):

    def test_what_was_run_is_reported_after_its_daemon_has_ended(self):
        if os.path.exists("/run/gpumux/tenants/tenants.sock"):
            self.skipTest("this machine has a daemon for all, which would be asked")
        place = os.path.join(self.directory, "xdg")
        os.mkdir(place, 0o700)
        variables = {"GPUMUX_RUNTIME_DIR": "", "XDG_RUNTIME_DIR": place}
        self.ask("report", code=3, **variables)
        worker = [str(paths.PROGRAMS / "worker"), "--steps", "50", "--step-us", "500"]
        self.ask("run", "--name", "mine", "--", *worker, **variables)
        api = Api(os.path.join(place, "gpumux", "api.sock"))
        pid = api.daemon()["pid"]
        os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not os.path.exists(f"/proc/{pid}"), HANG, "the private daemon ends")
        (row,) = json.loads(self.ask("report", "--by", "program", "--json", **variables)[0])["rows"]
        self.assertEqual(row["program"], "mine")
        self.assertGreater(row["held_seconds"], 0)
        os.kill(api.daemon()["pid"], signal.SIGTERM)


class Others(UsersTest):
    """The rows that users see of each other's use."""

    def test_privacy(self):
        machine = pathlib.Path(self.machine.directory)
        for path in (machine, *machine.iterdir()):
            path.chmod(0o777)
        worker = [self.hand_out(paths.PROGRAMS / "worker", *paths.SIM_LIBRARIES.iterdir()), "--steps", "8"]
        environment = [f"PATH={os.environ['PATH']}", f"GPUMUX_SIM_DIR={machine}", f"LD_LIBRARY_PATH={self.directory}"]
        jobs = {}
        for user, name in ((self.games, "hush"), (self.news, "open")):
            jobs[user] = self.submit_as(user, *worker, environment=environment, name=name)
            self.assertEqual(self.wait_done(jobs[user])["outcome"], "ok", self.output(user, jobs[user]))
        # Run times are known at once, and the programs' times when they are written.
        users = lambda: {row["uid"] for row in self.daemon.api.ask("GET", "/v1/report?by=program")["rows"]}
        wait_until(lambda: users() == {self.games.pw_uid, self.news.pw_uid}, HANG, lambda: f"both are there: {users()}")

        def ask(by):
            status, answer = self.ask_as(self.news, "GET", f"/v1/report?by={by}")
            self.assertEqual(status, 200, answer)
            return {row["uid"]: row for row in answer["rows"]}

        for privacy in ("open", "limited", "own"):
            self.write_config(f'[queue]\nprivacy = "{privacy}"\n')
            self.daemon.process.send(signal.SIGHUP)
            wait_until(lambda: self.daemon.api.ask("GET", "/v1/queue")["settings"]["privacy"] == privacy, HANG,
                       "it is reloaded")
            by_program, by_job = ask("program"), ask("job")
            self.assertEqual(by_program[self.news.pw_uid]["program"], "open")
            self.assertEqual(by_job[self.news.pw_uid]["name"], "open")
            others = self.games.pw_uid
            if privacy == "own":
                self.assertEqual(set(by_program), {self.news.pw_uid})
                self.assertEqual(set(by_job), {self.news.pw_uid})
                status, answer = self.ask_as(self.news, "GET", f"/v1/report?user={others}")
                self.assertEqual((status, answer["rows"]), (200, []))
                status, answer = self.ask_as(self.news, "GET", f"/v1/report?by=job&job={jobs[self.games]}")
                self.assertEqual(status, 404, answer)
                continue
            self.assertGreater(by_program[others]["held_seconds"], 0)
            self.assertEqual(by_job[others]["job"], jobs[self.games])
            self.assertEqual(by_program[others]["program"], "hush" if privacy == "open" else "(hidden)")
            self.assertEqual(by_job[others].get("name"), "hush" if privacy == "open" else None)
        # Root sees all of it.
        programs = {row["program"] for row in self.daemon.api.ask("GET", "/v1/report?by=program")["rows"]}
        self.assertEqual(programs, {"hush", "open"})


if __name__ == "__main__":
    main()
