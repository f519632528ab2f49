# SPDX-License-Identifier: Apache-2.0
"""Jobs of the queue: one that was suspended and resumed ends with the same result as one that never was; a job has the
memory that it asked for; how soon the next one starts.

Without PyTorch a compiled program takes the training's place."""
import json
import os
import statistics
import subprocess
import tempfile
import time

from parts_same import START_S
from support import FAIL, INFO, SKIP, Daemon, Failed, median, run

LIMIT_S = 4  # after which a job makes room for another: a few times in its life
LOOK_S = 0.003
STARTS = 21


class JobsDaemon(Daemon):
    """Its jobs end with it: they would go on without."""

    def __exit__(self, *details):
        try:
            self.session.keep(self.name + ".jobs.json", self.ask("GET", "/v1/jobs?state=all"))
            self.session.keep(self.name + ".queue.json", self.ask("GET", "/v1/queue"))
            self.ask("PATCH", "/v1/jobs/all", {"cancel": True})
            end = time.monotonic() + 20
            while self.jobs() and time.monotonic() < end:
                time.sleep(0.02)
        except (OSError, Failed) as error:
            self.session.add(FAIL, f"{self.name}: its jobs end", str(error))
        super().__exit__(*details)

    def jobs(self, state="unfinished"):
        return {job["id"]: job for job in json.loads(self.ask("GET", "/v1/jobs?state=" + state))["jobs"]}

    def job(self, job):
        return json.loads(self.ask("GET", f"/v1/jobs/{job}"))

    def command(self, *arguments):
        done = subprocess.run([self.session.command, *map(str, arguments)], env=self.environment(), timeout=60,
                              cwd=self.session.raw, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              check=False)
        if done.returncode != 0:
            raise Failed(f"gpumux {arguments[0]}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def submit(self, name, argv, *options):
        return Job(self, name, self.command("submit", "--quiet", "--name", name, "--output", log_of(self, name),
                                            *options, "--", *argv))


def log_of(daemon, name):
    return os.path.join(daemon.session.raw, f"{daemon.name}.{name}.log")


class Job:
    def __init__(self, daemon, name, said):
        self.daemon, self.name, self.id = daemon, name, int(said.split()[0])

    def text(self):
        try:
            with open(log_of(self.daemon, self.name), errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def result(self):
        """The values of its RESULT line. None: it said nothing, or did not end well."""
        lines = [line for line in self.text().splitlines() if line.startswith("RESULT ")]
        return json.loads(lines[-1][7:]) if lines and self.daemon.job(self.id)["outcome"] == "ok" else None

    def why(self):
        job = self.daemon.job(self.id)
        lines = [line.strip() for line in self.text().splitlines() if line.strip()]
        said = lines[-1][:160] if lines else "said nothing"
        return f"{job['state']} {job['outcome']} {job.get('why', '')} {job.get('note', '')}: {said}"

    def wait(self, seconds):
        end = time.monotonic() + min(seconds, self.daemon.session.left())
        while self.daemon.job(self.id)["state"] != "done":
            if time.monotonic() > end:
                raise Failed(f"job {self.name} is not done in time: {self.why()}")
            time.sleep(0.01)
        return self


class Watch:
    """The states of two jobs, looked at all the time. Moments are CLOCK_MONOTONIC, as in the trace."""

    def __init__(self, daemon, jobs):
        self.daemon = daemon
        self.jobs = jobs
        self.pids = {}
        self.changes = {job.id: [] for job in jobs}  # (ns, state)
        self.beside = 0  # how often one was seen to run while the other was suspended
        self.together = []
        self.worked = []  # who had processor time while suspended
        self.how = set()
        self.shown = None
        self.memory = ("not looked at", 0, 0)
        self.ticks = {}

    def look(self):
        """The states, in the order of the jobs."""
        before = {job: ticks_of(pid) for job, pid in self.pids.items()}
        known = self.daemon.jobs("all")
        now = time.monotonic_ns()
        states = {job.id: known[job.id]["state"] for job in self.jobs}
        for job, state in states.items():
            changes = self.changes[job]
            if not changes or changes[-1][1] != state:
                changes.append((now, state))
                self.ticks.pop(job, None)
                if state == "running":
                    self.pids[job] = self.daemon.job(job).get("pid")
            elif state == "suspended" and before.get(job):
                # It was so before this, and after it: what it has had by now was all before.
                ticks, letter = before[job]
                self.how.add("SIGSTOP" if letter == "T" else "the control group's freezer")
                if ticks != self.ticks.setdefault(job, ticks):
                    self.worked.append(job)
                if self.shown is None:
                    self.show(job)
        listed = sorted(states.values())
        self.beside += listed == ["running", "suspended"]
        if listed == ["running", "running"]:
            self.together.append(now)
        return [states[job.id] for job in self.jobs]

    def show(self, job):
        status = self.daemon.status()
        self.shown = json.loads(self.daemon.command("show", "--json", job))
        self.daemon.session.keep("jobs.while-suspended.json", json.dumps([self.shown, status], indent=1))
        seats = [seat for seat in status["gpus"][0]["seats"] if seat["pid"] == self.pids[job]]
        memory = (seats[0].get("memory") if seats else None) or {}
        self.memory = (seats[0]["phase"] if seats else "no seat",
                       memory.get("allocated_bytes", 0), memory.get("resident_bytes", 0))

    def times(self, job, state):
        return sum(1 for _, seen in self.changes[job.id] if seen == state)

    def spans(self, events, kind, state):
        """Milliseconds from each such event of a job's program in the trace until the job is seen to be so."""
        found = []
        for job, changes in self.changes.items():
            for event in events:
                if event["event"] == kind and event.get("pid") == self.pids.get(job):
                    later = [at for at, seen in changes if seen == state and at > event["time_ns"]]
                    found += [(later[0] - event["time_ns"]) / 1e6] if later else []
        return found


def ticks_of(pid):
    """Processor time of a process with all its threads, and its state's letter. None: it is not there."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12]), fields[0]
    except (OSError, IndexError, ValueError):
        return None


def spans_in_trace(events, pids, begin, end):
    """Milliseconds from each event of the one kind to the next one of the other kind of the same tenant."""
    found, open_since = [], {}
    for event in events:
        if event.get("pid") not in pids:
            continue
        tenant = event["tenant"]
        if event["event"] == begin:
            open_since[tenant] = event["time_ns"]
        elif event["event"] == end and tenant in open_since:
            found.append((event["time_ns"] - open_since.pop(tenant)) / 1e6)
    return found


def told(spans):
    if not spans:
        return "not seen"
    return f"median {statistics.median(spans):.1f} ms, most {max(spans):.1f} ms of {len(spans)}"


def choose_work(session):
    if run(session, "import.jobs", [session.python, "-c", "import torch"], seconds=START_S).code == 0:
        return "transformer", session.workload("transformer")
    session.add(SKIP, "jobs: PyTorch", "cannot be imported; a compiled program takes its place")
    return "driver_api", [session.program("gpumux_gpu_worker"), "--launches", "8", "--spin-us", "2000"]


def suspended_and_resumed(session):
    name, argv = choose_work(session)
    native = run(session, f"native.jobs-{name}", argv + ["--seconds", "6" if session.quick else "10"], seconds=START_S)
    expected = native.result()
    if expected is None:
        raise Failed(f"native {name}: {native.why()}")
    session.add(INFO, f"jobs: native {name}", f"{expected['digest'][:20]}, {expected['steps']} steps in "
                f"{expected['steady_s']:.2f} s")
    argv = argv + ["--steps", str(expected["steps"])]
    with JobsDaemon(session, "jobs", mode="serial") as daemon, tempfile.TemporaryDirectory() as meeting:
        ready, go = os.path.join(meeting, "ready"), os.path.join(meeting, "go")
        # The whole GPU each. The second one comes when the first one trains: that is what is to be interrupted.
        first = daemon.submit("first", argv + ["--ready", ready, "--go", go], "--time-limit", LIMIT_S)
        end = time.monotonic() + min(START_S, session.left())
        while not os.path.exists(ready):
            if time.monotonic() > end or daemon.job(first.id)["state"] == "done":
                raise Failed(f"the first job was not ready: {first.why()}")
            time.sleep(0.01)
        with open(go, "w"):
            pass
        second = daemon.submit("second", argv, "--time-limit", LIMIT_S)
        watch = Watch(daemon, (first, second))
        end = time.monotonic() + min(240, session.left())
        while watch.look() != ["done", "done"]:
            if time.monotonic() > end:
                raise Failed(f"not done in time: first {first.why()}; second {second.why()}; {watch.changes}")
            time.sleep(LOOK_S)
        session.keep("jobs.changes.json", json.dumps(watch.changes))
        judge(session, daemon, watch, name, native, expected, (first, second))


def judge(session, daemon, watch, name, native, expected, jobs):
    for job in jobs:
        count = watch.times(job, "suspended")
        label = f"jobs: {job.name} {name}, suspended {'once' if count == 1 else f'{count} times'}"
        result = job.result()
        if result is None:
            session.check(False, label, job.why())
        elif result["digest"] == expected["digest"]:
            session.check(True, label, f"same result, {result['steady_s']:.1f} s in all")
        else:
            again = run(session, f"native-again.jobs-{name}", native.process.args[:-2] + ["--steps",
                        str(expected["steps"])], seconds=START_S).result()
            if again is not None and again["digest"] != expected["digest"]:
                session.add(SKIP, label, "natively not the same from run to run")
            else:
                session.check(False, label, "ANOTHER RESULT than native")
    count = watch.times(jobs[0], "suspended")
    session.check(count >= 1, "jobs: the first is suspended at its limit", f"{count} times of {LIMIT_S} s; the second "
                  f"{watch.times(jobs[1], 'suspended')} times")
    session.check(watch.beside > 0, "jobs: the other runs meanwhile", f"seen {watch.beside} times")
    session.check(not watch.together, "jobs: never both at once on the GPU", f"seen {len(watch.together)} times")
    session.check(not watch.worked, "jobs: no processor time while suspended", f"held by {', '.join(watch.how)}")
    shown = watch.shown.get("state") if watch.shown else "not looked at"
    phase, allocated, resident = watch.memory
    session.check(shown == "suspended", "jobs: gpumux show says so", f"{shown}; its seat is {phase}: "
                  f"{allocated >> 20} MiB allocated, {resident >> 20} MiB of it on the GPU")
    events, pids = daemon.trace(), set(watch.pids.values())
    evicted = spans_in_trace(events, pids, "suspend", "evicted")
    session.check(bool(evicted), "jobs: memory left the GPU", told(evicted) + " from suspend to evicted")
    session.add(INFO, "jobs: from suspend to frozen", told(watch.spans(events, "suspend", "suspended")))
    session.add(INFO, "jobs: from resume to running", told(watch.spans(events, "resume", "running")))
    session.add(INFO, "jobs: from resume to all memory back", told(spans_in_trace(events, pids, "resume", "complete")))


def memory_of_a_job(session):
    with JobsDaemon(session, "jobs-memory") as daemon:
        mib = (daemon.status()["gpus"][0]["memory_total_bytes"] >> 20) // 4
        job = daemon.submit("memory", session.workload("job_memory"), "--mem", f"{mib}M").wait(START_S)
        seen = job.result()
        if seen is None:
            raise Failed(f"a job that looks at its memory: {job.why()}")
        for who in ("torch", "driver"):
            told_of = seen[who]
            if told_of is None:
                session.add(SKIP, f"jobs: --mem as {who} sees it", "PyTorch cannot be imported")
                continue
            mib_of = {key: told_of[key] / 2**20 for key in ("total", "free", "at_once")}
            good = mib_of["total"] == mib and 0 < mib_of["free"] <= mib and told_of["refuses_more"]
            session.check(good, f"jobs: --mem as {who} sees it",
                          f"{mib} MiB; total {mib_of['total']:.1f}, free {mib_of['free']:.1f}, more is "
                          f"{'refused' if told_of['refuses_more'] else 'GIVEN'}; the first answer was "
                          f"{mib_of['at_once']:.1f}, and right after {told_of['after_s'] * 1000:.1f} ms")


def fsync_ms(directory):
    """The disk's time for an fdatasync, in ms (median): a start waits for one."""
    taken = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(20):
            os.write(file.fileno(), b"x" * 4096)
            begin = time.monotonic()
            os.fdatasync(file.fileno())
            taken.append((time.monotonic() - begin) * 1000)
    return median(taken)


def start_latency(session):
    """As bench/jobs: short jobs say from when to when they run; what is between two is the queue's."""
    with JobsDaemon(session, "jobs-start") as daemon:
        logs = os.path.join(session.raw, "jobs-start.%j.stamp")
        daemon.command("admin", "pause")
        script = "date +%s%N; sleep 0.05; exec date +%s%N"
        ids = [int(daemon.command("submit", "--quiet", "--output", logs, "--", "sh", "-c", script))
               for _ in range(STARTS)]
        daemon.command("admin", "unpause")
        end = time.monotonic() + min(60, session.left())
        while daemon.jobs():
            if time.monotonic() > end:
                raise Failed("the short jobs are not done in time")
            time.sleep(0.1)  # seldom: what is measured answers this too
        stamps = []
        for job in ids:
            with open(logs.replace("%j", str(job))) as file:
                stamps.append(list(map(int, file.read().split())))
        gaps = [(begin - end) / 1e6 for (_, end), (begin, _) in zip(stamps, stamps[1:])]
        done = daemon.jobs("all")
        starts = [(done[after]["started_unix_ns"] - done[before]["ended_unix_ns"]) / 1e6
                  for before, after in zip(ids, ids[1:])]
        session.add(INFO, "jobs: free GPU to the next one's first word", told(gaps) +
                    f" (goal 20 ms); fsync {fsync_ms(daemon.dir):.2f} ms")
        session.add(INFO, "jobs: end to the next one's process", told(starts))


PARTS = (suspended_and_resumed, memory_of_a_job, start_latency)


def run_jobs(session):
    session.run_parts(PARTS, 30)
