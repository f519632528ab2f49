#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A timeline says what the trace says, and readers of its format can read it.

Method: programs that take turns on a simulated GPU; `gpumux trace --perfetto` writes the file. protoc decodes it with
the messages of the project, and without any. With GPUMUX_TEST_TRACE_PROCESSOR=PATH Perfetto's own trace processor
answers questions about it.
"""

import csv
import io
import json
import os
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tarfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.jobs import JobsTest  # noqa: E402
from framework.memory import LARGE, MemoryTest  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

PROCESSOR = os.environ.get("GPUMUX_TEST_TRACE_PROCESSOR")


class TimelineOfPrograms(GpumuxTest):
    gpus = 2

    def record(self):
        """The trace of two programs that took turns on GPU 0 and one on GPU 1, as events and as a file."""
        daemon = self.start_daemon(quantum="5ms", overlap="false")
        programs = [self.start("worker", name=name, gpu=gpu, steps=100, step_us=500, sync_every=2, until=self.enough)
                    for name, gpu in (("one", 0), ("two", 0), ("three", 1))]
        self.work_until(lambda: len(daemon.trace.switches(0)) >= 6, "6 turns on GPU 0", *programs)
        for program in programs:
            daemon.trace.wait_for(event="gone", pid=program.pid)
        file = os.path.join(self.directory, "trace.pftrace")
        self.ask("trace", "--perfetto", file)
        return daemon, programs, file

    @staticmethod
    def decode(file):
        """As protoc reads it: {track's name: [(begin, end, name)]}, tracks by their parents' names, too; slices that
        have not ended, in the same way; and {arrow: [(track, time)]}."""
        with open(file, "rb") as binary:
            text = subprocess.run(["protoc", "-I", paths.ROOT / "src", "--decode=gpumux.perfetto.Trace",
                                   "cli/timeline/perfetto.proto"], stdin=binary, capture_output=True, check=True,
                                  text=True).stdout
        def field(packet, name):
            found = re.search(rf'^ *{name}: "?(.*?)"?$', packet, re.MULTILINE)
            return found and found[1]

        names, slices, stacks, arrows, events = {}, {}, {}, {}, []
        for packet in re.findall(r"^packet \{\n(.*?)^\}", text, re.MULTILINE | re.DOTALL):
            if "track_descriptor {" in packet:
                parent = names.get(field(packet, "parent_uuid"))
                names[field(packet, "uuid")] = (f"{parent}|" if parent else "") + field(packet, "name")
                slices[names[field(packet, "uuid")]] = []
            elif "track_event {" in packet:
                events.append((int(field(packet, "timestamp")), packet))
        # In the order of time, as readers do; of equal times in that of the file.
        for at, packet in sorted(events, key=lambda event: event[0]):
            track = names[field(packet, "track_uuid")]
            stack = stacks.setdefault(track, [])
            if (arrow := field(packet, "flow_ids")) is not None:
                arrows.setdefault(arrow, []).append((track, at))
            if field(packet, "type") == "TYPE_SLICE_BEGIN":
                stack.append((at, re.findall(r'^    name: "(.*)"$', packet, re.MULTILINE)[-1]))
            elif field(packet, "type") == "TYPE_SLICE_END":
                begin, name = stack.pop()
                slices[track].append((begin, at, name))
        return slices, stacks, arrows

    @staticmethod
    def clocks(file):
        """The same moment by REALTIME and by MONOTONIC, as the file has it."""
        with open(file, "rb") as binary:
            text = subprocess.run(["protoc", "-I", paths.ROOT / "src", "--decode=gpumux.perfetto.Trace",
                                   "cli/timeline/perfetto.proto"], stdin=binary, capture_output=True, check=True,
                                  text=True).stdout
        times = dict(re.findall(r"clocks \{\s+clock_id: (\d+)\s+timestamp: (\d+)", text))
        return int(times["1"]), int(times["3"])

    @staticmethod
    def has_manifests():
        """Whether the trace processor lays the files of an archive beside each other: from version 58 on."""
        said = subprocess.run([PROCESSOR, "--version"], capture_output=True, check=True, text=True).stdout
        return int(re.search(r"v(\d+)\.", said)[1]) >= 58

    def query(self, file, question):
        """The answer of Perfetto's own trace processor."""
        path = os.path.join(self.directory, "query.sql")
        pathlib.Path(path).write_text(question + ";")
        said = subprocess.run([PROCESSOR, "-q", path, file], capture_output=True, check=True, text=True).stdout
        return list(csv.DictReader(io.StringIO(said)))

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_it_says_what_the_trace_says(self):
        daemon, programs, file = self.record()
        slices, stacks, _ = self.decode(file)
        self.assertEqual([track for track, stack in stacks.items() if stack], [], "slices that nobody ended")
        for program in programs:
            gpu = 1 if program.name == "three" else 0
            leases = [lease for lease in daemon.trace.leases(gpu) if lease.pid == program.pid]
            shown = slices[f"GPU {gpu}|worker ({program.pid})"]
            self.assertEqual(sorted((begin, end) for begin, end, name in shown if name.startswith("holds")),
                             [(lease.granted, lease.drained) for lease in leases])
            reasons = [event["detail"] for event in daemon.trace.events(event="revoke", pid=program.pid)]
            self.assertEqual([name for _, _, name in sorted(shown) if name.startswith("leaves: ")],
                             [f"leaves: {reason}" for reason in reasons])
            waits = slices[f"GPU {gpu}|worker ({program.pid}) waits"]
            requests = [event["time_ns"] for event in daemon.trace.events(event="request", pid=program.pid)]
            self.assertEqual([begin for begin, _, _ in sorted(waits)], requests)
        # Without overlap nobody has the GPU beside another.
        holders = sorted(slices["GPU 0"])
        self.assertGreaterEqual(len(holders), 6)
        self.assertTrue(all(first[1] <= second[0] for first, second in zip(holders, holders[1:])))
        # Anybody's protobuf reads it.
        with open(file, "rb") as binary:
            subprocess.run(["protoc", "--decode_raw"], stdin=binary, check=True, stdout=subprocess.DEVNULL)

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_a_hold_of_before_the_trace_is_shown(self):
        daemon = self.start_daemon()
        holder = self.start("worker", name="holder", gpu=1, steps=10_000_000, step_us=500)
        grant = daemon.trace.wait_for(event="grant", pid=holder.pid)[0]
        other = self.start("worker", name="other", gpu=0, steps=10, step_us=500)
        daemon.trace.wait_for(event="gone", pid=other.pid)
        first = daemon.trace.events(event="request", pid=other.pid)[0]
        file = os.path.join(self.directory, "trace.pftrace")
        self.ask("trace", "--perfetto", file, "--since", str(first["sequence"]))
        slices, stacks, _ = self.decode(file)
        for track in ("GPU 1", f"GPU 1|worker ({holder.pid})"):
            [(begin, _)] = stacks[track]
            self.assertEqual(slices[track], [])
            self.assertLessEqual(grant["time_ns"], begin)
            self.assertLess(begin, first["time_ns"])
        picture, _ = self.ask("trace", "--picture", "--since", str(first["sequence"]))
        self.assertRegex(picture, rf"worker \({holder.pid}\) █+ ")

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_idle_holds_are_what_the_status_leaves_out(self):
        """A program that pauses for longer than its idle hold: it has no work in that time, and holds the GPU."""
        daemon = self.start_daemon(quantum="30s", idle_hold="4ms")
        pausing = self.start("worker", name="pausing", gpu=0, steps=10, step_us=200, sync_every=1, pause_us=20_000,
                             until=self.enough)
        other = self.start("worker", name="other", gpu=0, steps=10, step_us=200, sync_every=1, pause_us=30_000,
                           until=self.enough)

        def idle(program):
            return daemon.trace.events(event="drained", pid=program.pid, before="idle")

        wait_until(lambda: len(idle(pausing)) >= 3 and len(idle(other)) >= 3, HANG, "idle holds")
        # Stopped, so that both accounts are of the same moment: nobody asks for anything, or gives anything up.
        for program in (pausing, other):
            program.send(signal.SIGSTOP)
        file = os.path.join(self.directory, "idle.pftrace")

        def unused():
            return {seat["pid"]: seat["held_ns"] - seat["gpu_time_ns"]
                    for seat in daemon.api.status()["gpus"][0]["seats"]}

        def is_at_rest():
            before = unused()
            self.ask("trace", "--perfetto", file)
            return unused() == before and before

        left_out = wait_until(is_at_rest, HANG, "what was sent before has arrived")
        slices, _, _ = self.decode(file)
        for program in (pausing, other):
            shown = slices[f"GPU 0|worker ({program.pid})"]
            holds = [(begin, end) for begin, end, name in shown if name == "holds"]
            idles = sorted((begin, end) for begin, end, name in shown if name == "idle")
            self.assertEqual(idles, [(event["time_ns"] - event["before_ns"], event["time_ns"])
                                     for event in idle(program)])
            for begin, end in idles:
                self.assertTrue(any(first <= begin and end == last for first, last in holds), (begin, end, holds))
                # It has kept the lease for its hold, and no longer.
                self.assertLessEqual(end - begin, 4_000_000)
            self.assertEqual(sum(end - begin for begin, end in idles), left_out[program.pid])
            program.send(signal.SIGCONT)
        pathlib.Path(self.enough).touch()
        for program in (pausing, other):
            program.expect_success()

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_other_traces_lie_beside_it(self):
        """A trace as PyTorch 2.11 writes it, and a report of Nsight Systems, of a range in which a program had its
        first lease. The document's lines make the archives; by their manifests the lease is within both ranges."""
        began = time.time_ns()
        daemon, programs, _ = self.record()
        ended = time.time_ns()
        self.ask("trace", "--perfetto", os.path.join(self.directory, "gpus.pftrace"))
        # PyTorch rounds its base down to some round time of the last months.
        base = began // 10**15 * 10**15
        torch = {"schemaVersion": 1, "deviceProperties": [], "displayTimeUnit": "ms", "baseTimeNanoseconds": base,
                 "traceEvents": [{"ph": "X", "cat": "user_annotation", "name": "step", "pid": 1, "tid": 1,
                                  "ts": (began - base) / 1000, "dur": (ended - began) / 1000}]}
        pathlib.Path(self.directory, "torch.json").write_text(json.dumps(torch))
        report = sqlite3.connect(os.path.join(self.directory, "nsys.sqlite"))
        session = began - 5_000_000
        report.executescript(f"""
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INTEGER, utcTime TEXT, localTime TEXT);
            INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES ({session}, '', '');
            CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
            INSERT INTO StringIds VALUES (7, 'epoch');
            CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL, text TEXT,
                                      globalTid INTEGER, textId INTEGER);
            INSERT INTO NVTX_EVENTS VALUES ({began - session}, {ended - session}, 59, 'step', {(42 << 24) + 43}, NULL),
                                           ({began - session}, {ended - session}, 59, NULL, {(42 << 24) + 43}, 7),
                                           ({began - session}, NULL, 34, 'a mark', {(42 << 24) + 43}, NULL);""")
        report.close()
        recipe = re.findall(r"^```python\n(.*?)^```", (paths.ROOT / "docs/timeline.md").read_text(),
                            re.MULTILINE | re.DOTALL)
        self.assertEqual(len(recipe), 3)
        subprocess.run([sys.executable, "-c", "\n".join(recipe)], cwd=self.directory, check=True)

        for archive, other, names in (("with-torch.tar", "torch.json", {"step"}),
                                      ("with-nvtx.tar", "nvtx.json", {"step", "epoch"})):
            archive = os.path.join(self.directory, archive)
            with tarfile.open(archive) as tar:
                self.assertEqual(tar.getnames(), ["perfetto_manifest.json", "gpus.pftrace", other])
                # Readers know a manifest by its first characters.
                text = tar.extractfile("perfetto_manifest.json").read()
                self.assertTrue(text.startswith(b'{"perfetto_manifest"'))
                events = json.load(tar.extractfile(other))["traceEvents"]
                tar.extract("gpus.pftrace", os.path.join(self.directory, "of-" + other))
            gpus, beside = json.loads(text)["perfetto_manifest"]["files"]
            self.assertEqual((gpus, beside["path"]), ({"path": "gpus.pftrace"}, other))
            self.assertEqual(beside["clocks"]["sync_to"], {"file": "gpus.pftrace", "clock": "REALTIME"})
            self.assertEqual({event["name"] for event in events}, names)
            # By REALTIME, which the file relates to its own clock.
            unpacked = os.path.join(self.directory, "of-" + other, "gpus.pftrace")
            slices, _, _ = self.decode(unpacked)
            realtime, monotonic = self.clocks(unpacked)
            begin, end, _ = min(one for one in slices[f"GPU 1|worker ({programs[2].pid})"] if one[2] == "holds")
            for event in events:
                first = event["ts"] * 1000 + beside["clocks"]["offset_ns"]
                # A double has the microseconds of months.
                self.assertLess(abs(first - began), 2_000)
                self.assertLess(first, begin - monotonic + realtime)
                self.assertLess(end - monotonic + realtime, first + event["dur"] * 1000)
            if PROCESSOR and self.has_manifests():
                rows = self.query(archive, "select name, ts, dur from slice where name in ('step', 'holds', 'epoch')")
                steps = [row for row in rows if row["name"] == "step"]
                self.assertEqual(len(steps), 1, rows)
                for row in rows:
                    if row["name"] == "holds":
                        self.assertLess(int(steps[0]["ts"]), int(row["ts"]))
                        self.assertLess(int(row["ts"]), int(steps[0]["ts"]) + int(steps[0]["dur"]))
        self.assertTrue(daemon.trace.leases(1))

    def test_one_gpu_alone(self):
        _, programs, file = self.record()
        self.ask("trace", "--perfetto", file, "--gpu", "1")
        slices, _, _ = self.decode(file)
        self.assertEqual({track.partition("|")[0] for track in slices}, {"GPU 1"})
        said, _ = self.ask("trace", "--gpu", "1")
        self.assertNotIn("GPU 0", said)
        self.assertIn(f"({programs[2].pid})", said)

    def test_it_begins_when_it_is_told_to(self):
        daemon, _, file = self.record()
        events = daemon.trace.events()
        middle = events[len(events) // 2]

        def numbers(since):
            said, _ = self.ask("trace", "--json", "--since", since)
            return [json.loads(line)["sequence"] for line in said.splitlines()]

        of_all = [event["sequence"] for event in events]
        self.assertEqual(numbers("1w"), of_all)
        self.assertEqual(numbers(str(middle["sequence"])), of_all[len(events) // 2:])
        # Of all times the one of the event in the middle, to the microsecond before it.
        offset = time.time_ns() - time.monotonic_ns()
        at = (middle["time_ns"] + offset) // 1000
        clock = time.strftime("%H:%M:%S", time.localtime(at // 1_000_000)) + f".{at % 1_000_000:06}"
        begun = numbers(clock)
        self.assertEqual(begun, of_all[-len(begun):])
        # The two clocks are not read at one moment.
        near = [event["sequence"] for event in events if abs(event["time_ns"] - middle["time_ns"]) < 1_000_000_000]
        self.assertIn(begun[0], near)
        self.ask("trace", "--perfetto", file, "--since", clock)
        _, why = self.ask("trace", "--since", "soon", code=2)
        self.assertIn("'soon' is no time", why)

    def test_a_file_that_cannot_be_written(self):
        self.start_daemon()
        _, why = self.ask("trace", "--perfetto", "/nowhere/trace", code=1)
        self.assertIn("cannot write /nowhere/trace", why)
        if os.path.exists("/dev/full"):
            _, why = self.ask("trace", "--perfetto", "/dev/full", code=1)
            self.assertIn("cannot write /dev/full", why)

    @unittest.skipUnless(PROCESSOR, "GPUMUX_TEST_TRACE_PROCESSOR names no trace processor of Perfetto")
    def test_perfettos_own_reader(self):
        daemon, programs, file = self.record()
        rows = self.query(file, "select track.name as track, slice.name as name, ts, dur from slice "
                                "join track on slice.track_id = track.id where slice.name glob 'holds*'")
        for program in programs:
            leases = [lease for lease in daemon.trace.leases() if lease.pid == program.pid]
            self.assertEqual(sorted((int(row["ts"]), int(row["dur"])) for row in rows
                                    if row["track"] == f"worker ({program.pid})"),
                             [(lease.granted, lease.drained - lease.granted) for lease in leases])
        self.assertEqual(self.query(file, "select name, value from stats where severity != 'info' and value > 0"), [])


class MemoryTimeline(MemoryTest):

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_memory_goes_out_and_comes_in(self):
        """Of two programs that do not fit together, the memory goes out after each turn and comes in for the next."""
        daemon = self.start_daemon()
        programs = [self.start("large", name=f"large{i}", until=self.enough, **LARGE) for i in range(2)]
        # Of a move that no report came in the middle of, the trace has no "out" and no "in".
        wanted = {(program.pid, way) for program in programs for way in ("out", "in")}
        self.work_until(lambda: wanted <= {(event["pid"], event["detail"])
                                           for event in daemon.trace.events(event="moves")},
                        "memory of each was seen on its way out, and on its way in", *programs)
        for program in programs:
            daemon.trace.wait_for(event="gone", pid=program.pid)
        file = os.path.join(self.directory, "memory.pftrace")
        self.ask("trace", "--perfetto", file)
        slices, stacks, _ = TimelineOfPrograms.decode(file)
        for program in programs:
            track = f"GPU 0|large ({program.pid}) memory"
            self.assertEqual(stacks[track], [])
            shown = sorted(slices[track])
            self.assertEqual({name for _, _, name in shown}, {"not all on the GPU", "out", "in"})
            away = [(begin, end) for begin, end, name in shown if name == "not all on the GPU"]
            for begin, end, name in shown:
                self.assertTrue(any(first <= begin and end <= last for first, last in away), (name, begin, end, away))


class JobsTimeline(JobsTest):

    @unittest.skipUnless(shutil.which("protoc"), "protoc is not installed")
    def test_jobs_are_shown_beside_their_programs(self):
        """A job that its time limit suspends for another one; a held job that nothing happens to."""
        file = os.path.join(self.directory, "jobs.pftrace")
        followed = os.path.join(self.directory, "followed.pftrace")
        follower = self.gpumux("trace", "--perfetto", followed, "--follow")
        wait_until(lambda: os.path.exists(followed) and os.path.getsize(followed), HANG, "it follows")
        train = self.submit(*self.worker(gpu=0, steps=100, step_us=500, until=self.enough), name="train", gpu_ids=0,
                            time_limit=1)
        held = self.submit("true", name="held", hold=True)
        self.wait_state(train, "running")
        other = self.hold_gpus(name="other", gpu_ids=0)
        self.wait_state(train, "suspended")
        self.wait_state(other, "running")
        # A state that has not changed is shown from its beginning, even if that is no part of the trace.
        after = max(event["sequence"] for event in self.daemon.trace.events()) + 1
        self.ask("trace", "--perfetto", file, "--since", str(after))
        _, stacks, _ = TimelineOfPrograms.decode(file)
        changed = {event["job"]: event for event in self.daemon.trace.events(event="job")}
        for job, name, state in ((other, "other", "running"), (train, "train", "suspended")):
            ((begin, shown),) = stacks[f"Jobs|{name} (job {job})"]
            self.assertEqual(shown, state)
            self.assertLess(abs(begin - changed[job]["time_ns"]), 1_000_000_000)
        ((_, shown),) = stacks[f"Jobs|held (job {held})"]
        self.assertEqual(shown, "held")

        self.release(other)
        pathlib.Path(self.enough).touch()
        self.wait_done(train, "ok")
        self.wait_done(other, "ok")
        self.ask("trace", "--perfetto", file)
        wait_until(lambda: f"Jobs|train (job {train})" in (read := TimelineOfPrograms.decode(followed))[0]
                   and not read[1][f"Jobs|train (job {train})"], HANG, "the job's end is in the file that is followed")
        follower.send(signal.SIGINT)
        follower.wait(HANG)
        for which in (file, followed):
            slices, _, arrows = TimelineOfPrograms.decode(which)
            for job, name in ((train, "train"), (other, "other")):
                events = self.daemon.trace.events(event="job", job=job)
                self.assertEqual({event["name"] for event in events}, {name})
                self.assertEqual(slices[f"Jobs|{name} (job {job})"],
                                 [(event["time_ns"] - event["before_ns"], event["time_ns"], event["before"])
                                  for event in events])
                self.assertEqual(events[-1]["detail"], "done")
            self.assertEqual([name for _, _, name in slices[f"Jobs|train (job {train})"]][:7],
                             ["queued", "starting", "running", "suspending", "suspended", "resuming", "running"])
            (lease, *_) = [event for event in self.daemon.trace.events(event="grant", job=train)]
            self.assertEqual(list(arrows.values()),
                             [[(f"Jobs|train (job {train})", lease["time_ns"]),
                               (f"GPU 0|{lease['program']} ({lease['pid']})", lease["time_ns"])]])


if __name__ == "__main__":
    main()
