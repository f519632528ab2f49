#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A latency-sensitive model beside a training loop on one GPU, under everything that can decide who goes first.

    bench/experiment/run.py [--dist dist] [--out DIR] [--only NAME...] [--seconds S] [--repeat N] [--budget S]

Each configuration starts both programs anew, natively or under a gpumux daemon of its own, sends the same requests at
the same random times, and looks how long each answer took and how much training got done meanwhile. README.md beside
this file says how to read what comes out. Nothing is left running, and nothing outside DIR is written to.
"""

import argparse
import csv
import datetime
import gzip
import json
import math
import os
import pathlib
import platform
import shutil
import signal
import sys
import tarfile
import time

import arrivals
import configurations
import drawings
import measures
import report
from machine import PACKAGES, ROOT, Daemon, Failed, Machine, Program, cpu_model, has_gpu, probe

# From both programs' start until they are ready, before anything was measured: PyTorch takes most of it.
FIRST_GUESS_S = {True: 3, False: 30}
READY_S = 180
# Between `go` and the beginning of the measurement: the batch task is at full speed by then.
LEAD_S = 0.3
# For a task that has not ended by itself when everything is over. Its log has what it has done.
END_S = 5
# Where memory does not fit each change of hands takes about a second for each 20 GiB: requests come more rarely, so
# that the other one runs at all, and those at the end get longer.
MEMORY_RATE_PART = 30
MEMORY_GRACE_S = 10
TIMELINE_S = {"memory": 4.0, "other": 0.4}

LATENCY_MODELS = ("vit", "resnet", "bert", "torch-vit", "spin")
BATCH_MODELS = ("gpt", "resnet", "vit", "torch-gpt", "matmul", "spin")


def options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog="See bench/experiment/README.md.")
    parser.add_argument("--dist", default=str(ROOT / "dist"), help="the built files (default: dist/)")
    parser.add_argument("--out", help="where results go (default: experiments/runs/DATE-HOST)")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME",
                        help="configurations or groups of them, * for anything; both tasks alone come along")
    parser.add_argument("--list", action="store_true", help="list the configurations and stop")
    parser.add_argument("--seconds", type=float, help="of each configuration (default: 4; simulated 2)")
    parser.add_argument("--rate", type=float, default=30.0, help="requests a second (default: 30)")
    parser.add_argument("--memory-rate", type=float, help=f"where memory does not fit (default: --rate / "
                        f"{MEMORY_RATE_PART})")
    parser.add_argument("--latency-model", choices=LATENCY_MODELS, help="default: vit; spin without PyTorch")
    parser.add_argument("--batch-model", choices=BATCH_MODELS, help="default: gpt; spin without PyTorch")
    parser.add_argument("--ballast", type=float, help="of the GPU's memory for the batch task, where it does not fit "
                        "(default: 0.7; the latency task has 0.5)")
    parser.add_argument("--repeat", type=int, default=1, help="runs of all of them, one round after the other")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals; each round uses the next one")
    parser.add_argument("--budget", type=float, default=290.0,
                        help="seconds; what does not fit is left out, and said (default: 290)")
    parser.add_argument("--gpu", choices=("auto", "real", "simulated"), default="auto")
    parser.add_argument("--daemon", action="append", default=[], metavar="NAME=VALUE",
                        help="a setting of the daemon, such as in_flight=2ms")
    parser.add_argument("--keep-traces", action="store_true", help="keep the daemons' lease traces")
    parser.add_argument("--pack", action="store_true", help="raw.tar.gz instead of the folder raw/")
    arguments = parser.parse_args()
    for name in ("seconds", "rate", "memory_rate", "budget"):
        value = getattr(arguments, name)
        if value is not None and not 0 < value < 1e6:
            parser.error(f"--{name.replace('_', '-')} must be more than 0, not {value:g}")
    if arguments.repeat < 1:
        parser.error("--repeat must be at least 1")
    if arguments.ballast is not None and not 0 < arguments.ballast < 0.95:
        parser.error("--ballast must be between 0 and 0.95: the driver needs some of the memory itself")
    if not all("=" in setting for setting in arguments.daemon):
        parser.error("--daemon wants NAME=VALUE, such as in_flight=2ms")
    return parser, arguments


class Experiment:

    def __init__(self, arguments, chosen, machine, deadline):
        self.arguments = arguments
        self.chosen = chosen
        self.deadline = deadline
        self.machine = machine
        self.windows = {configuration.name: {} for configuration in chosen}
        self.failures = {}
        self.notes = []
        self.left_out = []
        self.took = {}
        self.seconds = arguments.seconds or (2.0 if machine.simulated else 4.0)
        self.memory_rate = arguments.memory_rate or arguments.rate / MEMORY_RATE_PART
        self.models = {}
        self.described = {}
        self.facts = {}
        self.choose_models()
        host = platform.node().split(".")[0] or "host"
        stamp = datetime.datetime.now().strftime("%Y-%m-%dT%H%M%S")
        self.out = pathlib.Path(arguments.out or ROOT / "experiments" / "runs" / f"{stamp}-{host}").resolve()
        self.raw = self.out / "raw"
        self.raw.mkdir(parents=True, exist_ok=True)

    def choose_models(self):
        arguments = self.arguments
        venv = ROOT / "venv" / "bin" / "python"
        self.python = sys.executable
        found = {"packages": {}, "gpu": None}
        if not self.machine.simulated:
            self.python = str(venv) if venv.exists() else "python3"
            found = probe(self.python, self.machine.environment)
            missing = [name for name in PACKAGES if name not in found["packages"]]
            if missing:
                print(f"{self.python} has no {', '.join(missing)}: the models are taken from what is there "
                      f"(pip install {' '.join(missing)}).")
        if "torch" in found["packages"] and found["gpu"] is None:
            print("PyTorch sees no GPU here; using programs of the driver API instead.")
        has_torch = found["gpu"] is not None
        for role, wanted, default in (("latency", arguments.latency_model, "vit"),
                                      ("batch", arguments.batch_model, "gpt")):
            if wanted not in (None, "spin") and not has_torch:
                raise Failed(f"the model {wanted} needs PyTorch and a GPU that it sees; without, there is only spin")
            self.models[role] = wanted or (default if has_torch else "spin")
        self.facts = {
            "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
            "GPU": found["gpu"] or "real, name unknown",
            "machine": f"{os.cpu_count()} CPUs ({cpu_model()}), Linux {platform.release()}",
            "packages": ", ".join([f"Python {platform.python_version()}"]
                                  + [f"{name} {version}" for name, version in found["packages"].items()]),
            "requests": f"{arguments.rate:g} a second (where memory does not fit {self.memory_rate:g}), at random "
                        f"times (Poisson), seed {arguments.seed}",
            "measured": f"{self.seconds:g} s of each configuration, {arguments.repeat} "
                        f"{'time' if arguments.repeat == 1 else 'times'}",
        }
        if self.machine.simulated:
            self.facts["GPU"] = "simulated; its times show how the configurations differ, not how fast anything is"
        if arguments.daemon:
            self.facts["daemon"] = ", ".join(arguments.daemon)

    def left(self):
        return self.deadline - time.monotonic()

    def rate_of(self, configuration):
        return self.memory_rate if configuration.group == "memory" else self.arguments.rate

    def seconds_of(self, configuration):
        return self.seconds * (2 if configuration.group == "memory" else 1)

    def grace_of(self, configuration):
        return MEMORY_GRACE_S if configuration.group == "memory" else max(1.0, self.seconds / 4)

    def expected_seconds(self, configuration):
        """How long it will take, by what the others of its kind took."""
        start = max([took for kind, took in self.took.items() if kind == configuration.group] or
                    [took for kind, took in self.took.items()] or [FIRST_GUESS_S[self.machine.simulated]])
        return start + LEAD_S + self.seconds_of(configuration) + self.grace_of(configuration)

    def run(self):
        for turn in range(self.arguments.repeat):
            for configuration in configurations.in_running_order(self.chosen):
                if configuration.name in self.failures:
                    continue
                where = configuration.name + (f", run {turn + 1}" if self.arguments.repeat > 1 else "")
                if self.left() < self.expected_seconds(configuration):
                    self.left_out.append(where)
                    print(f"{where}: left out for lack of time", flush=True)
                    continue
                try:
                    window = self.measure(configuration, turn)
                except Failed as error:
                    print(f"{where}: FAILED: {error}", flush=True)
                    self.notes.append(f"{where} failed: {error}")
                    if not self.windows[configuration.name]:
                        self.failures[configuration.name] = f"failed: {error}"
                else:
                    self.windows[configuration.name][turn] = window
                    self.keep_raw(configuration, turn, window)
                    print(f"{where}: {self.in_a_line(window)}", flush=True)
                self.write()

    @staticmethod
    def in_a_line(window):
        figures = window.figures()
        words = []
        if "latency_ms" in figures:
            latency = figures["latency_ms"]
            words.append(f"p50 {report.short(latency['p50'])} ms, p99 {report.short(latency['p99'])} ms of "
                         f"{figures['requests']} requests, {figures['unanswered']} not answered")
        if "steps_per_s" in figures:
            words.append(f"{figures['steps_per_s']:.1f} steps/s")
        return "; ".join(words)

    def command(self, configuration, role, turn, log_path):
        # Real and simulated programs are started alike.
        run = []
        if configuration.under_gpumux:
            run = [self.machine.dist / "bin" / "gpumux", "run", "--name", role]
            run += configuration.latency_run if role == "latency" else []
            run += ["--"]
        return run + [self.python, ROOT / "bench" / "experiment" / "task.py", role, "--model", self.models[role],
                      "--log", log_path, "--rate", self.rate_of(configuration), "--seconds",
                      self.seconds_of(configuration), "--grace", self.grace_of(configuration), "--seed",
                      self.arguments.seed + turn, "--ballast", configuration.ballast.get(role, 0.0)]

    def measure(self, configuration, turn):
        started = time.monotonic()
        name = f"{configuration.name}.{turn + 1}"
        deadline = min(time.monotonic() + READY_S, self.deadline)
        daemon, programs = None, {}
        try:
            environment = dict(self.machine.environment)
            if configuration.under_gpumux:
                settings = dict(pair.split("=", 1) for pair in self.arguments.daemon)
                daemon = Daemon(self.machine, self.raw / f"{name}.daemon.log", settings)
                environment.update(daemon.environment(), **configuration.environment)
            logs = {role: self.machine.folder / f"{name}.{role}" for role in configuration.roles}
            for role in configuration.roles:
                own = configuration.latency_environment if role == "latency" else {}
                programs[role] = Program(role, self.command(configuration, role, turn, logs[role]),
                                         dict(environment, **own), self.raw / f"{name}.{role}.err")
            for program in programs.values():
                program.hear("imported", deadline)
            self.warm_up(configuration, programs, deadline)
            if not configuration.under_gpumux and any(p.has_loaded("libgpumux.so") for p in programs.values()):
                raise Failed("libgpumux.so is in a program that was started without it; /etc/ld.so.preload names it?")
            ready = time.monotonic() - started
            begin = time.monotonic_ns() + round(LEAD_S * 1e9)
            end = begin + round(self.seconds_of(configuration) * 1e9)
            for program in programs.values():
                program.tell("go", begin, end)
            window = measures.Window(begin, end)
            self.wait_for_end(configuration, programs, end)
            ended = time.monotonic() - started
            self.read(configuration, turn, programs, logs, daemon, window)
            self.took[configuration.group] = max(self.took.get(configuration.group, 0.0), ready + max(
                0.0, ended - ready - LEAD_S - self.seconds_of(configuration) - self.grace_of(configuration)) + 1)
            return window
        finally:
            for program in programs.values():
                program.end()
            if daemon is not None:
                if self.arguments.keep_traces and daemon.trace_path.exists():
                    with open(daemon.trace_path, "rb") as source, \
                            gzip.open(self.raw / f"{name}.trace.jsonl.gz", "wb", compresslevel=3) as target:
                        shutil.copyfileobj(source, target)
                daemon.end()
            for path in self.raw.glob(f"{name}.*"):
                if path.stat().st_size == 0:
                    path.unlink()

    def warm_up(self, configuration, programs, deadline):
        """The batch task first where the latency task keeps the GPU once it has it, for nobody could warm up after it,
        and where memory does not fit, for it would move to and fro."""
        one_by_one = bool(configuration.latency_environment or configuration.ballast)
        if not one_by_one:
            for program in programs.values():
                program.tell("warm")
        for role in sorted(programs):
            if one_by_one:
                programs[role].tell("warm")
            self.described[role] = programs[role].hear("ready", deadline)

    def wait_for_end(self, configuration, programs, end_ns):
        """The latency task first: it may be what the batch task waits for."""
        for role in sorted(programs, reverse=True):
            grace = self.grace_of(configuration) if role == "latency" else 0.0
            over = max(end_ns / 1e9 + grace, time.monotonic()) + END_S
            if not programs[role].wait(min(over, self.deadline)):
                # Its log has what it did until the end of the measurement; its own end is not measured.
                self.notes.append(f"{configuration.name}: the {role} task was ended {END_S} s after its time")
                programs[role].end()

    def read(self, configuration, turn, programs, logs, daemon, window):
        rows = {role: [list(map(int, line.split(","))) for line in logs[role].read_text().splitlines()]
                for role in programs}
        if "latency" in programs:
            window.requests = [measures.Request(*row) for row in rows["latency"]]
            offsets = arrivals.poisson(self.rate_of(configuration), self.seconds_of(configuration),
                                       self.arguments.seed + turn)
            window.unanswered = [window.begin + offset for offset in offsets[len(window.requests):]]
            window.gave_up = window.end + round(self.grace_of(configuration) * 1e9)
        if "batch" in programs:
            window.steps = [row[0] for row in rows["batch"]]
        if daemon is not None:
            events = daemon.events()
            for role, program in programs.items():
                window.holds[role] = measures.holds(events, program.pid)
                window.turns[role] = measures.turns(events, program.pid)
            if not all(window.holds.values()):
                raise Failed("a task was never given the GPU by the daemon, so it did not run under gpumux")

    def keep_raw(self, configuration, turn, window):
        """Times are nanoseconds since the measurement's begin."""
        name = f"{configuration.name}.{turn + 1}"

        def table(kind, head, rows):
            with open(self.raw / f"{name}.{kind}.csv", "w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file, lineterminator="\n")
                writer.writerow(head)
                writer.writerows(rows)

        begin = window.begin
        if window.requests or window.unanswered:
            table("requests", ("arrival_ns", "begin_ns", "end_ns"),
                  [(r.arrival - begin, r.begin - begin, r.end - begin) for r in window.requests]
                  + [(arrival - begin, "", "") for arrival in window.unanswered])
        if window.steps:
            table("steps", ("end_ns",), [(step - begin,) for step in window.steps])
        if window.holds:
            table("leases", ("task", "begin_ns", "end_ns", "exclusive"),
                  [(role, hold.begin - begin, hold.end - begin, int(hold.exclusive))
                   for role, found in window.holds.items() for hold in found])

    def summaries(self):
        found = report.summaries(self.windows)
        found.update({name: {"failed": why} for name, why in self.failures.items()})
        return found

    def all_facts(self):
        return dict(self.facts, **{f"{role} task": self.described[role] for role in sorted(self.described)})

    def all_notes(self):
        if not self.left_out:
            return self.notes
        return self.notes + [f"left out for lack of time (--budget {self.arguments.budget:g}): "
                             f"{', '.join(self.left_out)}"]

    def write(self):
        """After every configuration, so that nothing is lost if it is interrupted."""
        facts, summaries, notes = self.all_facts(), self.summaries(), self.all_notes()
        text = report.table(facts, self.chosen, summaries, notes)
        (self.out / "table.txt").write_text(text, encoding="utf-8")
        details = [{"name": configuration.name, "title": configuration.title, "group": configuration.group,
                    "environment": configuration.environment, "latency_environment": configuration.latency_environment,
                    "latency_run": configuration.latency_run, "ballast": configuration.ballast,
                    "summary": summaries.get(configuration.name),
                    "runs": [{"run": turn + 1, **window.figures()}
                             for turn, window in self.windows[configuration.name].items()]}
                   for configuration in self.chosen]
        (self.out / "summary.json").write_text(
            json.dumps({"facts": facts, "notes": notes, "configurations": details}, indent=1) + "\n",
            encoding="utf-8")
        return text

    def looks(self):
        """Each configuration's (colour, dashes): variants have their mode's colour."""
        looks, colours = {}, 0
        for configuration in configurations.every():
            base = configuration.name.removesuffix("+keeps").removeprefix("memory-")
            if base not in looks:
                looks[base] = drawings.style(colours)
                colours += base != "alone-batch"
            dashes = "7 3" if configuration.group == "memory" else ""
            if configuration.name.endswith("+keeps"):
                dashes = "2 3"
            looks[configuration.name] = (looks[base][0], dashes)
        return looks

    def draw(self):
        looks = self.looks()
        measured = [configuration for configuration in self.chosen if self.windows[configuration.name]]
        written = []
        caption = report.caption(self.all_facts(), self.summaries())

        def keep(name, figure):
            drawings.save(figure, self.out / name, caption)
            written.append(name)

        def latency(name, title, members):
            series = []
            for configuration in members:
                windows = self.windows[configuration.name].values()
                series.append((configuration.title,
                               [value for window in windows for value in measures.latencies_ms(window.requests)],
                               sum(len(window.requests) + len(window.unanswered) for window in windows),
                               looks[configuration.name]))
            if any(configuration.group != "alone" for configuration in members):
                keep(name, drawings.latency(title, series))

        main = ("alone-latency", "native", "default", "priority", "n-sync-10", "max-ms-2", "always-lock")
        latency("latency.svg", "Latency of requests beside a batch task", [c for c in measured if c.name in main])
        wrapper = [c for c in measured if c.name == "alone-latency" or c.group == "wrapper"]
        latency("latency-wrapper.svg", "Latency of requests in the wrapper's modes", wrapper)
        memory = [c for c in measured if c.name == "alone-latency" or c.group == "memory"]
        latency("latency-memory.svg", "Latency of requests where memory does not fit", memory)

        summaries = self.summaries()
        points = []
        for c in measured:
            summary = summaries[c.name]
            if len(c.roles) == 2 and c.group != "memory" and "kept" in summary and "p99" in summary:
                points.append((c.title, summary["p99"]["median"], summary["kept"]["median"], looks[c.name], c.group))
        if points:
            alone = summaries.get("alone-latency", {}).get("p99", {}).get("median", math.nan)
            keep("trade.svg", drawings.trade("What is traded for what", points, alone))
        for name, members in (("timeline.svg", [c for c in measured if len(c.roles) == 2 and c.group != "memory"]),
                              ("timeline-memory.svg", [c for c in measured if c.group == "memory"])):
            if members:
                self.draw_timeline(name, members, keep)
        return written

    def draw_timeline(self, name, members, keep):
        panels = [(c.title, next(iter(self.windows[c.name].values()))) for c in members]
        seconds = self.seconds_of(members[0])
        span = min(TIMELINE_S["memory" if members[0].group == "memory" else "other"], seconds)
        first = panels[0][1]
        times = [request.arrival - first.begin for request in first.requests] + \
            [arrival - first.begin for arrival in first.unanswered]
        keep(name, drawings.timeline("Who had the GPU when", panels, drawings.densest(times, seconds, span), span))

    def write_page(self, text):
        """report.html: the table with all pictures that were drawn into `out`."""
        pictures = [(path.name, path.read_bytes()) for path in sorted(self.out.glob("*.svg"))]
        (self.out / "report.html").write_text(report.page(self.all_facts(), text, self.all_notes(), pictures),
                                              encoding="utf-8")

    def pack(self):
        with tarfile.open(self.out / "raw.tar.gz", "w:gz") as archive:
            archive.add(self.raw, "raw")
        shutil.rmtree(self.raw)


def main():
    parser, arguments = options()
    if arguments.list:
        for configuration in configurations.every():
            print(f"{configuration.name:22} {configuration.group:8} {configuration.title}")
        return 0
    try:
        chosen = configurations.choose(arguments.only, {"batch": arguments.ballast} if arguments.ballast else None)
    except ValueError as error:
        parser.error(str(error))
    # As Ctrl-C: what was measured is written, and nothing is left running.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    deadline = time.monotonic() + arguments.budget
    machine = None
    interrupted = False
    try:
        machine = Machine(arguments.dist, arguments.gpu == "simulated" or (arguments.gpu == "auto" and not has_gpu()))
        experiment = Experiment(arguments, chosen, machine, deadline)
        print(f"{len(chosen)} configurations, {experiment.seconds:g} s each"
              + (f", {arguments.repeat} times" if arguments.repeat > 1 else "")
              + f", on {'the simulated GPU' if experiment.machine.simulated else experiment.facts['GPU']}"
              + f"; at most {arguments.budget:g} s in all", flush=True)
        try:
            experiment.run()
        except KeyboardInterrupt:
            interrupted = True
            experiment.notes.append("interrupted: the rest was not run")
        text = experiment.write()
        try:
            pictures = experiment.draw()
        except ModuleNotFoundError as error:
            pictures = [f"no pictures: {error.name} is not installed for {sys.executable}"]
        experiment.write_page(text)
        if arguments.pack:
            experiment.pack()
        print("\n" + text)
        raw = "raw.tar.gz" if arguments.pack else "raw/"
        print(f"{experiment.out}: {', '.join(['report.html', 'table.txt', 'summary.json', *pictures, raw])}")
    except Failed as error:
        print(f"experiment: {error}", file=sys.stderr)
        return 1
    finally:
        if machine is not None:
            machine.remove()
    if interrupted:
        return 130
    return 1 if experiment.failures or not any(experiment.windows.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
