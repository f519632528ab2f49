# SPDX-License-Identifier: Apache-2.0
"""Shared by the parts of run.py: the session with its table, private daemons, processes with time limits, the lease
trace."""
import collections
import http.client
import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from framework.spans import Standing, spans  # noqa: E402

WORKLOADS = os.path.join(HERE, "workloads")

DAEMON_START_S = 60
MPS_CONTROL = "nvidia-cuda-mps-control"
PASS, FAIL, SKIP, INFO = "PASS", "FAIL", "SKIP", "INFO"


class Failed(Exception):
    """A part cannot go on; what happened so far stays in the table."""


class OutOfTime(Failed):
    """The budget was over before a program without gpumux was done, with which a part compares: nothing is shown."""


class Session:
    """One call of run.py: where things are, how much time is left, and the table."""

    def __init__(self, arguments):
        self.dist = os.path.abspath(arguments.dist)
        self.out = os.path.abspath(arguments.out)
        self.gpus = arguments.gpus
        self.quick = arguments.quick
        self.options = arguments
        self.seconds = 1.0 if arguments.quick else 2.0
        self.raw = tempfile.mkdtemp(prefix="gpumux-raw-")
        self.deadline = time.monotonic() + arguments.budget
        self.rows = []
        self.facts = {}
        self.natives = {}
        self.available = set()
        self.compiles = True
        self.alone = {}
        self.python = sys.executable
        self.library = os.path.join(self.dist, "lib", "libgpumux.so")
        self.daemon_binary = os.path.join(self.dist, "bin", "gpumuxd")
        self.command = os.path.join(self.dist, "bin", "gpumux")
        self.programs = os.path.join(self.dist, "libexec", "gpumux-tests")
        self.built = os.path.join(self.raw, "built")
        self.via_run = True
        os.makedirs(self.out, exist_ok=True)
        os.makedirs(self.built)
        self.environment = dict(os.environ, CUBLAS_WORKSPACE_CONFIG=":4096:8", PYTHONUNBUFFERED="1",
                                PYTHONWARNINGS="ignore",
                                TORCHINDUCTOR_CACHE_DIR=os.path.join(self.built, "inductor"), NCCL_NVLS_ENABLE="0",
                                TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
        for name in ("LD_PRELOAD", "GPUMUX_RUNTIME_DIR", "WORLD_SIZE", "RANK"):
            self.environment.pop(name, None)

    def left(self):
        return self.deadline - time.monotonic()

    def program(self, name):
        return os.path.join(self.programs, name)

    def workload(self, name):
        return [self.python, os.path.join(WORKLOADS, name + ".py")]

    def add(self, status, name, figure="", **details):
        self.rows.append({"status": status, "name": name, "figure": figure, **details})
        print(f"{status:4}  {name:44}  {figure}", flush=True)
        self.write()

    def check(self, ok, name, figure="", **details):
        self.add(PASS if ok else FAIL, name, figure, **details)
        return ok

    def write(self):
        with open(os.path.join(self.out, "summary.json"), "w") as file:
            json.dump({"facts": self.facts, "rows": self.rows}, file, indent=1, default=str)
        with open(os.path.join(self.out, "table.txt"), "w") as file:
            file.write(self.table())

    def wants(self, name):
        return not self.options.within or name in self.options.within

    def run_parts(self, parts, seconds):
        """Each of these functions, while so much time is left; one that fails does not keep the next from running."""
        for part in parts:
            if not self.wants(part.__name__):
                continue
            if self.left() < seconds:
                self.add(SKIP, part.__name__, "out of time")
                continue
            try:
                part(self)
            except Failed as error:
                self.give_up(part.__name__, error)

    def give_up(self, name, error):
        """A part has ended early."""
        self.add(SKIP if isinstance(error, OutOfTime) else FAIL, name, str(error))

    def table(self):
        text = "".join(f"{key}: {value}\n" for key, value in self.facts.items()) + "\n"
        for row in self.rows:
            text += f"{row['status']:4}  {row['name']:44}  {row['figure']}\n"
        count = collections.Counter(row["status"] for row in self.rows)
        return text + "\n" + ", ".join(f"{count[status]} {status}" for status in (PASS, FAIL, SKIP, INFO)) + "\n"

    def keep(self, name, text):
        with open(os.path.join(self.raw, name), "w") as file:
            file.write(text)

    def pack(self):
        shutil.rmtree(os.path.join(self.built, "inductor"), ignore_errors=True)
        shutil.make_archive(os.path.join(self.out, "raw"), "gztar", self.raw)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("gpumux", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Daemon:
    """A private daemon of one part. `settings` are those of PATCH /v1/gpus/all."""

    def __init__(self, session, name, **settings):
        self.session = session
        self.name = name
        self.settings = settings
        # Short: the path of a unix socket has 107 bytes.
        self.dir = tempfile.mkdtemp(prefix="gpumux-")
        self.process = None
        self.starts = 0

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        try:
            self.session.keep(self.name + ".status.json", json.dumps(self.status(), indent=1))
            self.session.keep(self.name + ".trace.jsonl", "".join(json.dumps(event) + "\n" for event in self.trace()))
        except (OSError, Failed, http.client.HTTPException) as error:
            self.session.keep(self.name + ".trace.jsonl", f"no trace: {error}\n")
        self.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def start(self):
        self.starts += 1
        read_end, write_end = os.pipe()
        log = open(os.path.join(self.session.raw, f"{self.name}.daemon-{self.starts}.log"), "wb")
        environment = dict(self.session.environment, GPUMUX_RUNTIME_DIR=self.dir,
                           GPUMUX_STATE_DIR=os.path.join(self.dir, "state"))
        if control := shutil.which(MPS_CONTROL):
            environment["GPUMUX_MPS_CONTROL"] = control
        with log:
            self.process = subprocess.Popen([self.session.daemon_binary, "--private", "--notify-fd", str(write_end)],
                                            env=environment,
                                            pass_fds=[write_end], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True)
        os.close(write_end)
        try:
            ready, _, _ = select.select([read_end], [], [], DAEMON_START_S)
            if not ready or not os.read(read_end, 64):
                with open(log.name, errors="replace") as file:
                    said = file.read()[-600:]
                self.stop()
                raise Failed(f"gpumuxd did not start: {said.strip()}")
        finally:
            os.close(read_end)
        if self.settings:
            self.set(**self.settings)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
                self.session.add(FAIL, f"{self.name}: daemon ends on SIGTERM", "killed after 10 s")

    def ask(self, method, path, body=None):
        connection = UnixConnection(os.path.join(self.dir, "api.sock"), 20)
        try:
            connection.request(method, path, None if body is None else json.dumps(body),
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status >= 300:
                raise Failed(f"{method} {path}: {answer.status} {text[:300]}")
            return text
        finally:
            connection.close()

    def set(self, gpu="all", **settings):
        self.ask("PATCH", f"/v1/gpus/{gpu}", settings)

    def status(self):
        return json.loads(self.ask("GET", "/v1/status"))

    def about(self):
        return json.loads(self.ask("GET", "/v1/daemon"))

    def trace(self):
        return [json.loads(line) for line in self.ask("GET", "/v1/trace?follow=0&since=0").splitlines() if line.strip()]

    def environment(self):
        return dict(self.session.environment, GPUMUX_RUNTIME_DIR=self.dir)

    def holder(self, gpu, among, seconds):
        """The pid among `among` that holds the GPU, waiting for one. None: nobody did in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for seat in self.status()["gpus"][gpu]["seats"]:
                if seat["phase"] == "holding" and seat["pid"] in among:
                    return seat["pid"]
            time.sleep(0.002)
        return None


class Process:
    """A program in a process group of its own, native or under a daemon, with its output in files."""

    def __init__(self, session, name, argv, daemon=None, **variables):
        self.session = session
        self.name = name
        self.is_native = daemon is None and "LD_PRELOAD" not in variables
        environment = dict(daemon.environment() if daemon else session.environment, **variables)
        if daemon and session.via_run:
            argv = [session.command, "run", "--"] + argv
        elif daemon:
            environment["LD_PRELOAD"] = session.library
        self.out = os.path.join(session.raw, name + ".out")
        self.error = os.path.join(session.raw, name + ".err")
        with open(self.out, "wb") as out, open(self.error, "wb") as error:
            self.process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=error,
                                            start_new_session=True, cwd=session.raw)
        self.pid = self.process.pid
        self.timed_out = False

    def wait(self, seconds):
        try:
            self.process.wait(max(1, min(seconds, self.session.left())))
        except subprocess.TimeoutExpired:
            self.timed_out = True
            self.end()
            if self.is_native and self.session.left() <= 0:
                raise OutOfTime(f"{self.name}: not done when the budget was over") from None
        return self

    def end(self):
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()

    @property
    def code(self):
        return self.process.returncode

    def result(self):
        """The values of its RESULT line; None: it said nothing or failed."""
        if self.code != 0 or self.timed_out:
            return None
        with open(self.out, errors="replace") as file:
            for line in file:
                if line.startswith("RESULT "):
                    return json.loads(line[7:])
        return None

    def why(self):
        if self.timed_out:
            return "not done in time"
        with open(self.error, errors="replace") as file:
            lines = [line.strip() for line in file if line.strip()]
        return f"exit {self.code}: {lines[-1][:160] if lines else 'said nothing'}"


def run(session, name, argv, daemon=None, seconds=120, **variables):
    return Process(session, name, argv, daemon, **variables).wait(seconds)


class Group:
    """Programs that get ready one by one and then start together."""

    def __init__(self, session, name, daemon):
        self.session, self.name, self.daemon = session, name, daemon
        self.dir = tempfile.mkdtemp(prefix="gpumux-go-")
        self.go_file = os.path.join(self.dir, "go")
        self.members = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for member in self.members:
            if member.process.poll() is None:
                member.end()
        shutil.rmtree(self.dir, ignore_errors=True)

    def add(self, label, argv, waits=True, **variables):
        place = len(self.members)
        if waits:
            argv = argv + ["--ready", os.path.join(self.dir, f"ready-{place}"), "--go", self.go_file]
        member = Process(self.session, f"{self.name}.{place}-{label}", argv, self.daemon, **variables)
        member.ready_file = os.path.join(self.dir, f"ready-{place}") if waits else None
        self.members.append(member)
        return member

    def wait_ready(self, seconds=150):
        end = time.monotonic() + min(seconds, self.session.left())
        for member in self.members:
            while member.ready_file and not os.path.exists(member.ready_file):
                if member.process.poll() is not None:
                    raise Failed(f"{member.name} ended before it was ready: {member.why()}")
                if time.monotonic() > end:
                    raise Failed(f"{member.name} was not ready in time")
                time.sleep(0.005)

    def go(self):
        with open(self.go_file, "w"):
            pass
        return time.monotonic_ns()

    def wait(self, seconds):
        end = time.monotonic() + seconds
        for member in self.members:
            member.wait(end - time.monotonic())


def review(events, gpu=0, among=None):
    """Reads one GPU's trace: grants and waited time for each pid, and every moment at which two had an exclusive
    lease. `among`: these pids only, so that processes that one of them has started, which may hold together with it,
    are left out."""
    grants, waited = collections.Counter(), collections.Counter()
    for span in spans(events, gpu, among):
        if span.kind == "waits" and span.end is not None:
            waited[span.pid] += span.end - span.begin
    wrong, silent = [], set()  # others do not wait for a tenant that does not answer
    standing = Standing(gpu, among)
    for event in standing.through(events):
        kind, tenant = event["event"], event.get("tenant")
        if kind == "silent":
            silent.add(tenant)
        elif kind in ("drained", "close", "gone"):
            silent.discard(tenant)
        elif kind == "grant":
            silent.discard(tenant)
            passed_over = silent | {tenant}
            others = [span.tenant for span in standing.holds.values() if span.tenant not in passed_over]
            before = [span.tenant for span in standing.drains.values() if span.tenant not in passed_over]
            is_borrowed = event.get("detail") == "borrowed"
            if others and event.get("lease", "exclusive") == "exclusive" and not is_borrowed:
                wrong.append(f"sequence {event['sequence']}: {kind} to {tenant} while {others} held")
            if len(before) > 1:
                wrong.append(f"sequence {event['sequence']}: {kind} to {tenant} with {len(before)} before it undrained")
            grants[event["pid"]] += 1
    return {"grants": grants, "waited_ns": waited, "wrong": wrong}


def kept_from_others(events, gpu, among):
    """For each pid, how many nanoseconds it held the GPU while another one waited for it. `among`: these pids only."""
    kept, before = collections.Counter(), None
    standing = Standing(gpu, among)
    for event in standing.through(events):
        waiting = {span.pid for span in standing.waits.values()}
        for span in standing.holds.values():
            kept[span.pid] += event["time_ns"] - before if waiting - {span.pid} else 0
        before = event["time_ns"]
    return kept


# A turn that another program waits for is a quantum, and what `fair` owes and the GPU has queued.
QUANTA_OF_A_TURN = 4


def least_turns(kept_ns, quantum_ns):
    """Of a program that has kept the GPU from others for so long: a short one may rightly have a single turn."""
    return max(1, kept_ns // (QUANTA_OF_A_TURN * quantum_ns))


def grants_between(events, gpu, pid, begin_ns, end_ns):
    return [event["time_ns"] for event in events
            if event["event"] == "grant" and event.get("gpu") == gpu and event.get("pid") == pid
            and begin_ns <= event["time_ns"] <= end_ns]


def lost_by_second(results, step_s, begin_ns):
    """[seconds lost] in each second from `begin_ns` until all have ended: what is missing to the work of one program
    that does a step in `step_s`. `results`: RESULT values (workloads/common.py). A program's digest counts as work."""
    def steps_at(result, time_ns):
        points = [[result["start_ns"], 0], *result["pace"], [result["end_ns"], result["steps"]]]
        for (before_ns, before), (after_ns, after) in zip(points, points[1:]):
            if before_ns <= time_ns < after_ns:
                return before + (after - before) * (time_ns - before_ns) / (after_ns - before_ns)
        return 0 if time_ns < points[0][0] else result["steps"]

    end_ns = max(result["done_ns"] for result in results)
    lost = []
    for first in range(begin_ns, end_ns, 10**9):
        last = min(first + 10**9, end_ns)
        steps = sum(steps_at(result, last) - steps_at(result, first) for result in results)
        digests = sum(max(0, min(last, result["done_ns"]) - max(first, result["end_ns"])) for result in results)
        lost.append((last - first - digests) / 1e9 - steps * step_s)
    return lost


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(len(values) * share))]


def median(values):
    return statistics.median(values) if values else float("nan")
