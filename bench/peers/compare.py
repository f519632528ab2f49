#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ways to share one GPU, side by side on one machine: gpumux, MPS, the plain driver, and peers that you have built.

    bench/peers/compare.py [--dist dist] [--out DIR] [--rounds N] [--peer NAME=FOLDER]... [--only WORK...]

Each round runs each work under each way, one directly after the other, and begins with another way than the round
before. Each run starts its programs, and its way's server, anew. Nothing is left running. README.md beside this file
says how to build the peers, and what is fair about it.
"""

import argparse
import contextlib
import datetime
import json
import os
import pathlib
import platform
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "gpu"))
sys.path.insert(0, str(HERE.parent / "experiment"))
sys.path.insert(0, str(HERE))

import arrivals  # noqa: E402
import measures  # noqa: E402
import picture  # noqa: E402
import table  # noqa: E402
import ways as ways_of  # noqa: E402
import works as works_of  # noqa: E402
from machine import ROOT, Failed, Machine, Program, cpu_model, has_gpu, probe  # noqa: E402

READY_S = 180
# Between `go` and the beginning of the measurement: all programs are at full speed by then.
LEAD_S = 0.5
# A request that has waited for so long after the end is not waited for any more.
GRACE_S = 5
END_S = 10
LAUNCH_S = 120
LAUNCHER = "gpumux_gpu_launch"
# Mode auto has chosen how programs share by then. Every way gets that time.
SETTLE_S = 10


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="See bench/peers/README.md.")
    parser.add_argument("--dist", default=str(ROOT / "dist"), help="gpumux as it was built (default: dist/)")
    parser.add_argument("--out", help="where results go (default: experiments/runs/DATE-peers)")
    parser.add_argument("--rounds", type=int, default=5, help="runs of everything (default: 5)")
    parser.add_argument("--more", action="store_true", help="add the rounds to those that --out has")
    parser.add_argument("--scale", type=float, default=1.0, help="factor of all times (default: 1)")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=FOLDER",
                        help="a peer that you have built: nixie, xsched, nvshare or hami; may be repeated")
    parser.add_argument("--only", nargs="+", choices=works_of.NAMES, help="these works only", metavar="WORK")
    parser.add_argument("--ways", nargs="+", choices=[way.name for way in ways_of.ALL], help="these ways only",
                        metavar="WAY")
    parser.add_argument("--seed", type=int, default=1, help="of the requests' times; each round uses the next one")
    parser.add_argument("--gpu", choices=("auto", "real", "simulated"), default="auto")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or not 0 < arguments.scale <= 100:
        parser.error("--rounds must be at least 1, and --scale more than 0")
    if arguments.more and not arguments.out:
        parser.error("--more needs --out, the folder that has rounds already")
    folders = dict(pair.split("=", 1) for pair in arguments.peer if "=" in pair)
    unknown = [pair for pair in arguments.peer if pair.split("=", 1)[0] not in {way.name for way in ways_of.ALL}]
    if unknown or len(folders) != len(arguments.peer):
        parser.error("--peer wants NAME=FOLDER, with one of the names nixie, xsched, nvshare, hami")
    return arguments, folders


def in_turn(things, turn):
    """The same things, beginning with another one in each round."""
    return things[turn % len(things):] + things[:turn % len(things)]


class Comparison:

    def __init__(self, arguments, folders, machine):
        self.arguments = arguments
        self.machine = machine
        self.works = [work for work in works_of.WORKS if not arguments.only or work.name in arguments.only]
        self.has_launch = not arguments.only or works_of.LAUNCH in arguments.only
        asked = [way for way in ways_of.ALL if not arguments.ways or way.name in arguments.ways]
        found = [way(machine, folders.get(way.peer or way.name)) for way in asked]
        self.missing = {way.title: why for way in found if (why := way.missing())}
        self.ways = [way for way in found if way.title not in self.missing]
        if not self.ways:
            raise Failed("; ".join(f"{title} cannot be run: {why}" for title, why in self.missing.items()))
        self.runs = []
        self.refusals = {}
        stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H%M%S")
        self.out = pathlib.Path(arguments.out or ROOT / "experiments" / "runs" / f"{stamp}-peers").resolve()
        self.logs = self.out / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.python = sys.executable
        # Asked for without any way: under one of them a program may see less, and would take less.
        self.gpu_memory = 0
        gpu = "simulated; its times show how the ways differ, not how fast anything is"
        if not machine.simulated:
            venv = ROOT / "venv" / "bin" / "python"
            self.python = str(venv) if venv.exists() else "python3"
            found = probe(self.python, machine.environment)
            gpu, self.gpu_memory = found["gpu"], found["memory"]
            if gpu is None:
                raise Failed(f"{self.python} has no PyTorch that sees a GPU, and the programs need it")
        commits = ", ".join(f"{way.title} {way.commit()}" for way in self.ways if way.folder)
        version = subprocess.run([machine.dist / "bin" / "gpumux", "--version"], capture_output=True, text=True,
                                 env=machine.environment, check=False).stdout.split("\n", 1)[0]
        self.facts = {
            "GPU": gpu,
            "machine": f"{os.cpu_count()} CPUs ({cpu_model()}), Linux {platform.release()}",
            "date": datetime.date.today().isoformat(),
            "versions": ", ".join(filter(None, [version, commits])),
            "times": f"{arguments.scale:g} of those in works.py",
        }
        if self.missing:
            self.facts["not run"] = "; ".join(f"{title}: {why}" for title, why in self.missing.items())
        if arguments.more:
            self.runs = self.earlier_runs()
        self.first = max((run["round"] for run in self.runs), default=0)

    def earlier_runs(self):
        """Those that --out has. Only runs of the same GPU, versions and times can share a table."""
        path = self.out / "runs.json"
        try:
            earlier = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise Failed(f"no rounds can be added to {self.out}: {error}") from None
        for fact in ("GPU", "versions", "times"):
            if earlier["facts"][fact] != self.facts[fact]:
                raise Failed(f"{path} has other {fact}: {earlier['facts'][fact]}, and not {self.facts[fact]}")
        return earlier["runs"]

    def seconds_of(self, work):
        return work.seconds * self.arguments.scale

    def run(self):
        for turn in range(self.first, self.first + self.arguments.rounds):
            self.facts["rounds"] = str(turn + 1)
            if self.has_launch:
                for way in in_turn(self.ways, turn):
                    self.note(turn, works_of.LAUNCH, way.name, lambda way=way: self.launch(turn, way))
            for work in self.works:
                self.note(turn, work.name, table.ALONE, lambda work=work: self.alone(turn, work))
                for way in in_turn(self.ways, turn):
                    why = way.refuses(work)
                    if why:
                        self.refusals[work.name, way.name] = f"not run: {why}"
                        continue
                    self.note(turn, work.name, way.name,
                              lambda work=work, way=way: self.measure(turn, work, way, work.tasks))

    def note(self, turn, work, way, measured):
        """Runs and records one measurement. A failure is a result, too."""
        run = {"round": turn + 1, "work": work, "way": way}
        try:
            run["figures"] = measured()
        except Failed as error:
            run["failed"] = str(error)
        self.runs.append(run)
        print(f"round {turn + 1}, {work}, {way}: {run.get('failed') or json.dumps(run['figures'])}", flush=True)
        self.write()

    def launch(self, turn, way):
        program = self.machine.dist / "bin" / LAUNCHER
        if not program.exists():
            raise Failed(f"{program} is missing; --dist takes a build folder, such as build/release")
        task = works_of.Task("batch", "", "")
        work = works_of.Work(works_of.LAUNCH, "", (task,), 0)
        with way.server(work, self.logs / f"{turn + 1}.launch.{way.name}.server") as variables:
            environment = dict(self.machine.environment, **variables, **way.variables(task, work))
            try:
                done = subprocess.run([str(word) for word in way.command(task, [program])], env=environment,
                                      stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LAUNCH_S,
                                      check=False)
            except subprocess.TimeoutExpired:
                raise Failed(f"the launching program did not end within {LAUNCH_S} s") from None
        for line in done.stdout.splitlines():
            if line.startswith("RESULT "):
                return {"launch_ns": json.loads(line[7:])["created"]["offered_ns"]}
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise Failed(f"the launching program ended with {done.returncode}: {said[:200]}")

    def alone(self, turn, work):
        """One program of each kind, one after the other, on the plain driver."""
        plain = ways_of.Plain(self.machine)
        found = {}
        for task in work.alone():
            found.update(self.measure(turn, work, plain, (task,), table.ALONE))
        return found

    def command(self, turn, work, task, log_path):
        model = task.simulated if self.machine.simulated else task.model
        return [self.python, ROOT / "bench" / "experiment" / "task.py", task.role, "--model", model, "--log", log_path,
                "--rate", works_of.REQUEST_RATE, "--seconds", self.seconds_of(work), "--grace", GRACE_S, "--seed",
                self.arguments.seed + turn, "--ballast", task.ballast, "--gpu-memory", self.gpu_memory]

    def measure(self, turn, work, way, tasks, label=None):
        """The figures of `tasks` at once under `way`. Raises Failed if one of them does not end as it should."""
        name = f"{turn + 1}.{work.name}.{label or way.name}"
        deadline = time.monotonic() + READY_S
        with contextlib.ExitStack() as stack:
            common = stack.enter_context(way.server(work, self.logs / f"{name}.server"))
            programs, logs = [], []
            for index, task in enumerate(tasks):
                environment = dict(self.machine.environment, **common)
                environment.update(way.variables(task, work))
                logs.append(self.machine.folder / f"{name}.{task.role}{index}")
                command = way.command(task, self.command(turn, work, task, logs[-1]))
                programs.append(Program(task.role, command, environment, self.logs / f"{name}.{task.role}{index}.err"))
                stack.callback(programs[-1].end)
            for program in programs:
                program.hear("imported", deadline)
            # One after the other where memory does not fit: it would move to and fro.
            for program in programs:
                program.tell("warm")
                if work.is_of_memory():
                    program.hear("ready", deadline)
            if not work.is_of_memory():
                for program in programs:
                    program.hear("ready", deadline)
            if way.library and not all(is_loaded(way.library, program.pid) for program in programs):
                raise Failed(f"{way.library} is not in a program that was started under {way.title}")
            settle = 0 if len(tasks) == 1 else SETTLE_S * self.arguments.scale
            begin = time.monotonic_ns() + round((LEAD_S + settle) * 1e9)
            end = begin + round(self.seconds_of(work) * 1e9)
            for task, program in zip(tasks, programs):
                # A program that trains also works while the way settles. The first request comes after that.
                program.tell("go", begin, end)
            self.wait_for_end(tasks, programs, end)
            return self.figures(turn, work, tasks, logs, begin, end)

    @staticmethod
    def wait_for_end(tasks, programs, end_ns):
        for task, program in sorted(zip(tasks, programs), key=lambda pair: pair[0].role, reverse=True):
            over = max(end_ns / 1e9 + (GRACE_S if task.role == "latency" else 0), time.monotonic()) + END_S
            # A program that is still at work, or waits for its turn, is ended. Its log has what it has done.
            if not program.wait(over):
                program.end()

    def figures(self, turn, work, tasks, logs, begin, end):
        found = {}
        for task, log in zip(tasks, logs):
            rows = [list(map(int, line.split(","))) for line in log.read_text().splitlines()]
            window = measures.Window(begin, end)
            if task.role == "latency":
                window.requests = [measures.Request(*row) for row in rows]
                times = arrivals.poisson(works_of.REQUEST_RATE, self.seconds_of(work), self.arguments.seed + turn)
                window.unanswered = [begin + offset for offset in times[len(rows):]]
                window.gave_up = end + GRACE_S * 10**9
                found["latency_ms"] = window.figures().get("latency_ms", {})
            else:
                window.steps = [row[0] for row in rows]
                found.setdefault("steps_per_s", []).append(window.figures().get("steps_per_s", 0.0))
        return found

    def write(self):
        """After every run, so that nothing is lost if it is interrupted."""
        works = [(works_of.LAUNCH, works_of.LAUNCH_TITLE, ())] if self.has_launch else []
        works += [(work.name, work.title, {task.role for task in work.tasks}) for work in self.works]
        ways = [(way.name, way.title, way.limits) for way in self.ways]
        text = table.markdown(self.facts, works, ways, self.runs, self.refusals)
        (self.out / "table.md").write_text(text, encoding="utf-8")
        refusals = [{"work": work, "way": way, "why": why} for (work, way), why in self.refusals.items()]
        (self.out / "runs.json").write_text(
            json.dumps({"facts": self.facts, "runs": self.runs, "not_asked": refusals}, indent=1) + "\n",
            encoding="utf-8")
        return text

    def draw(self):
        works = [(work.name, work.title, {task.role for task in work.tasks}) for work in self.works]
        picture.draw(self.out / "comparison.svg", self.facts, works, [(way.name, way.title) for way in self.ways],
                     self.runs)


def is_loaded(library, pid):
    """Whether the program, or a process that it has started, has the library mapped."""
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        with contextlib.suppress(OSError):
            if library in pathlib.Path(f"/proc/{one}/maps").read_text(errors="replace"):
                return True
            waiting += map(int, pathlib.Path(f"/proc/{one}/task/{one}/children").read_text().split())
    return False


def main():
    arguments, folders = options()
    # As Ctrl-C: what was measured is written, and nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    machine = None
    try:
        machine = Machine(arguments.dist, arguments.gpu == "simulated" or (arguments.gpu == "auto" and not has_gpu()))
        comparison = Comparison(arguments, folders, machine)
        for title, why in comparison.missing.items():
            print(f"{title} is not run: {why}")
        interrupted = False
        try:
            comparison.run()
        except KeyboardInterrupt:
            interrupted = True
            print("interrupted: the rest is not run", file=sys.stderr)
        print("\n" + comparison.write())
        try:
            comparison.draw()
        except ModuleNotFoundError as error:
            print(f"no picture: {error.name} is not installed for {sys.executable}")
        print(f"{comparison.out}: table.md, runs.json, comparison.svg, logs/")
        return 130 if interrupted else 0
    except Failed as error:
        print(f"compare: {error}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            shutil.rmtree(machine.folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
