#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job queue's figures, beside task-spooler and Slurm on the same machine in the same run.

    python3 bench/jobs/run.py [--build build/release] [--queued 100000] [--million] [--out DIR]

A daemon of its own on simulated GPUs, its queue in DIR (a directory on the disk whose durability counts). The
others' figures are measured where they are installed (Debian's task-spooler, slurm-wlm and munge); Slurm needs root.
Prints a table, and writes what it measured as JSON.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]


# Runs for 50 ms, as nobody's jobs are over at once (and the kernel is quicker the second time in a short while), and
# writes down from when to when.
STAMP = r"""
#include <stdio.h>
#include <time.h>
#include <unistd.h>
long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000L + time.tv_nsec;
}
int main(int count, char** words) {
  long began = now();
  usleep(50000);
  FILE* book = fopen(words[count - 1], "a");
  fprintf(book, "%ld %ld\n", began, now());
  return fclose(book);
}
"""


class Queue:
    """A daemon with its queue, started, stopped and measured."""

    def __init__(self, build, place):
        self.bin = build / "bin"
        self.library = build / "lib"
        self.place = pathlib.Path(place)
        self.socket = self.place / "run" / "api.sock"
        self.process = None
        for folder in ("run", "sim", "home"):
            (self.place / folder).mkdir(mode=0o700, exist_ok=True)
        machine = "gpus = 1\nmemory = 1GiB\ncontext_memory = 16MiB\n"
        (self.place / "sim" / "machine.conf").write_text(machine, encoding="utf-8")

    def environment(self):
        return {"PATH": f"{self.bin}:{os.environ['PATH']}", "HOME": str(self.place / "home"),
                "GPUMUX_RUNTIME_DIR": str(self.place / "run"), "GPUMUX_SIM_DIR": str(self.place / "sim"),
                "LD_LIBRARY_PATH": str(self.library / "sim"),
                "GPUMUX_QUEUE_MAX_QUEUED": "unlimited", "GPUMUX_QUEUE_MAX_BYTES": "unlimited"}

    def start(self):
        """Seconds until it serves."""
        reading, writing = os.pipe()
        began = time.monotonic()
        with open(self.place / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.bin / "gpumuxd", "--private", "--runtime-dir", self.place / "run", "--state-dir",
                 self.place / "state", "--notify-fd", str(writing)],
                env=self.environment(), pass_fds=(writing,), stderr=log, stdout=log)
        os.close(writing)
        if not os.read(reading, 16):
            raise SystemExit(f"the daemon does not start: {(self.place / 'log').read_text()}")
        os.close(reading)
        return time.monotonic() - began

    def stop(self):
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()
            self.process = None

    def load(self, *arguments):
        said = subprocess.run([self.bin / "gpumux_queue_load", self.socket, *map(str, arguments)], check=True,
                              capture_output=True, text=True).stdout
        return {key: float(value) for key, value in (word.split("=") for word in said.split())}

    def command(self, *arguments):
        return subprocess.run([self.bin / "gpumux", *map(str, arguments)], env=self.environment(), check=True,
                              capture_output=True, text=True).stdout

    def rss_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def commands_each(run, times):
    """Median milliseconds of a command, one after the other."""
    taken = []
    for _ in range(times):
        began = time.monotonic()
        run()
        taken.append((time.monotonic() - began) * 1000)
    return statistics.median(taken)


def measure_queue(build, place, queued, million):
    figures = {}
    queue = Queue(build, place)
    queue.start()
    queue.command("admin", "pause")
    rounds = [queue.load("submit", 8, 8000, "held") for _ in range(3)]
    figures["submissions a second, 8 clients"] = statistics.median(entry["per_second"] for entry in rounds)
    figures["round trip, 8 clients, median ms"] = statistics.median(entry["median_ms"] for entry in rounds)
    alone = queue.load("submit", 1, 2000, "held")
    figures["round trip, 1 client, median ms"] = alone["median_ms"]
    figures["round trip, 1 client, p99 ms"] = alone["p99_ms"]
    figures["`gpumux submit`, ms"] = commands_each(
        lambda: queue.command("submit", "--quiet", "--hold", "--output", os.devnull, "--", "true"), 30)
    have = 26_030
    if queued > have:
        queue.load("submit", 8, queued - have, "held")
    figures[f"`gpumux queue --json` of {queued:,} jobs, ms"] = commands_each(
        lambda: queue.command("queue", "--json"), 5)
    figures["page of 1,000, ms"] = queue.load("list", 20, "/v1/jobs?limit=1000")["median_ms"]
    figures["first page of 100, ms"] = queue.load("list", 20, "/v1/jobs?limit=100")["median_ms"]
    queue.stop()
    figures["daemon start with them, s"] = statistics.median([restarted(queue) for _ in range(3)])
    queue.stop()
    if million:
        queue.start()
        before = queue.rss_kib()
        queue.load("submit", 8, 1_000_000 - queued, "held")
        figures["daemon memory for each of 1,000,000, bytes"] = (queue.rss_kib() - before) * 1024 / (1_000_000 - queued)
        one = queue.load("submit", 1, 2000, "held")
        figures["round trip with 1,000,000, median ms"] = one["median_ms"]
        queue.stop()
    shutil.rmtree(queue.place / "state")
    figures.update(measure_start(queue))
    return figures


def restarted(queue):
    took = queue.start()
    queue.stop()
    return took


def measure_start(queue):
    """From the end of a job to the first instruction of the next one on the same GPU, as the jobs themselves see it."""
    queue.start()
    book = queue.place / "book"
    stamp = queue.place / "stamp"
    source = queue.place / "stamp.c"
    source.write_text(STAMP, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-o", stamp, source], check=True)
    for _ in range(100):
        queue.command("submit", "--quiet", "--output", os.devnull, "--", stamp, book)
    while len(book.read_text(encoding="utf-8").splitlines() if book.exists() else ()) < 100:
        time.sleep(0.05)
    queue.stop()
    stamps = [list(map(int, line.split())) for line in book.read_text(encoding="utf-8").splitlines()]
    gaps = [(begin - end) / 1e6 for (_, end), (begin, _) in zip(stamps[50:], stamps[51:])]
    return {"free GPU to the next job's first instruction, median ms": statistics.median(gaps),
            "free GPU to the next job's first instruction, most ms": max(gaps)}


def measure_task_spooler(place):
    program = shutil.which("tsp")
    if program is None:
        return {}
    environment = {**os.environ, "TS_SOCKET": f"{place}/tsp.sock", "TMPDIR": str(place)}
    run = lambda *arguments: subprocess.run([program, *arguments], env=environment, check=True, capture_output=True)
    run("sleep", "1000")
    figures = {"`tsp`, ms": commands_each(lambda: run("true"), 100)}
    subprocess.run([program, "-K"], env=environment, check=False, capture_output=True)
    return figures


def measure_slurm(place):
    """One node, one controller, nothing durable but its own state files."""
    if shutil.which("sbatch") is None or shutil.which("munged") is None or os.geteuid() != 0:
        return {}
    host = os.uname().nodename
    place = pathlib.Path(place) / "slurm"
    for folder in ("state", "spool"):
        (place / folder).mkdir(parents=True)
    conf = place / "slurm.conf"
    conf.write_text(f"""ClusterName=bench
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CredType=cred/munge
SlurmUser=root
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/ctld.pid
SlurmdPidFile={place}/d.pid
SlurmctldLogFile={place}/ctld.log
SlurmdLogFile={place}/d.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MaxJobCount=200000
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP
""", encoding="utf-8")
    key = place / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    place.chmod(0o755)
    environment = {**os.environ, "SLURM_CONF": str(conf)}
    daemons = [subprocess.Popen(["munged", "-F", "--force", "-S", f"{place}/munge.sock", "--key-file", str(key),
                                 "--pid-file", f"{place}/munge.pid", "--log-file", f"{place}/munge.log", "--seed-file",
                                 f"{place}/seed"], stderr=subprocess.DEVNULL)]
    time.sleep(1)
    daemons.append(subprocess.Popen(["slurmctld", "-D", "-f", str(conf)], env=environment, stderr=subprocess.DEVNULL))
    try:
        script = place / "job.sh"
        script.write_text("#!/bin/sh\ntrue\n", encoding="utf-8")
        command = ["sbatch", "--hold", "--output", os.devnull, str(script)]
        run = lambda: subprocess.run(command, env=environment, check=True, capture_output=True, cwd="/")
        for _ in range(30):
            try:
                run()
                break
            except subprocess.CalledProcessError as error:
                last = error.stderr.decode()
                time.sleep(0.5)
        else:
            print(f"slurm: not measured: {last}", file=sys.stderr)
            return {}
        return {"`sbatch`, ms": commands_each(run, 100)}
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--million", action="store_true", help="also with 1,000,000 jobs: minutes, and 6 GB of disk")
    parser.add_argument("--out", help="where the queue lies and the figures go (default: a new directory here)")
    options = parser.parse_args()
    place = options.out or tempfile.mkdtemp(prefix="jobs-bench-", dir=".")
    os.makedirs(place, exist_ok=True)
    place = os.path.abspath(place)
    figures = measure_queue(options.build.resolve(), place, options.queued, options.million)
    figures.update(measure_task_spooler(place))
    figures.update(measure_slurm(place))
    for name, value in figures.items():
        print(f"{name:60} {value:12.3f}")
    with open(os.path.join(place, "figures.json"), "w", encoding="utf-8") as file:
        json.dump(figures, file, indent=1)


if __name__ == "__main__":
    main()
