# SPDX-License-Identifier: Apache-2.0
"""The self-checking programs of NVIDIA/cuda-samples: natively, alone under gpumux, and six at a time next to a tenant
that fills the GPU. A sample that passes natively has to pass. Natively and alone every driver call's results are
recorded (programs/recorder.cc) and compared."""
import concurrent.futures
import os
import shutil
import struct
import time

from support import FAIL, INFO, PASS, SKIP, Daemon, Failed, Group, run

NAMES = ("native", "alone", "together")
AT_A_TIME = 6
# Natively; more under gpumux, where programs wait for each other.
NATIVE_S, GPUMUX_S = 40, 150
FILLER_SHARE = 0.9
# Of the time that is left, when both come next.
ALONE_SHARE = 0.55
WAIVED = 2  # the samples' exit status where this machine lacks what they show

# recorder.cc: struct Call.
NAME_BYTES, RESULTS = 80, 6
CALL_BYTES = NAME_BYTES + RESULTS * 8 + RESULTS * 4
# Whether work is done yet is a matter of time.
CUDA_ERROR_NOT_READY = 600


def is_program(path):
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"\x7fELF"


def programs_in(folder):
    found = {}
    for path, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "CMakeFiles"]
        for name in files:
            if is_program(os.path.join(path, name)):
                found[name] = os.path.join(path, name)
    return dict(sorted(found.items()))


def compiler():
    return shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"


def library_path():
    """For samples that were built where the toolkit lies elsewhere."""
    toolkit = os.path.dirname(os.path.dirname(os.path.realpath(compiler())))
    folders = [os.environ.get("LD_LIBRARY_PATH", "")] + [os.path.join(toolkit, name) for name in ("lib64", "lib")]
    return ":".join(folder for folder in folders if folder)


def samples(session):
    folder = session.options.samples
    if folder is None:
        raise Failed("part samples needs --samples FOLDER")
    found = programs_in(os.path.abspath(folder))
    if not found:
        raise Failed(f"--samples {folder}: no programs are there; build the samples first, by their own instructions")
    return found


def calls_of(folder):
    """{name: {result: how often}} of all processes that recorded in this folder."""
    calls = {}
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            data = file.read()
        for at in range(0, len(data) - CALL_BYTES + 1, CALL_BYTES):
            counts = struct.unpack_from(f"{RESULTS}Q", data, at + NAME_BYTES)
            results = struct.unpack_from(f"{RESULTS}I", data, at + NAME_BYTES + RESULTS * 8)
            entry = data[at:at + NAME_BYTES].split(b"\0")[0].decode()
            for count, result in zip(counts, results):
                if result != 0 and result - 1 != CUDA_ERROR_NOT_READY:
                    own = calls.setdefault(entry, {})
                    own[result - 1] = own.get(result - 1, 0) + count
    return calls


def differences(native, other):
    """Errors that one got from an entry and the other did not."""
    found = []
    for entry in sorted(set(native) | set(other)):
        for result in sorted(set(native.get(entry, {})) ^ set(other.get(entry, {}))):
            if result != 0:
                where = "natively" if result in native.get(entry, {}) else "under gpumux"
                found.append(f"{entry} gives {result} {where} only")
    return found


class Samples:
    def __init__(self, session, programs):
        self.session, self.programs = session, programs
        self.recorder = session.program("libgpumux_recorder.so")
        self.libraries = library_path()
        self.passing = []
        self.took = {}

    def records(self, mode, name):
        folder = os.path.join(self.session.built, "calls", mode, name)
        os.makedirs(folder, exist_ok=True)
        return folder

    def argv(self, name):
        path = self.programs[name]
        return ["env", "-C", os.path.dirname(path), path]

    def start(self, mode, name, daemon, seconds, **variables):
        return run(self.session, f"samples.{mode}.{name}", self.argv(name), daemon, seconds,
                   LD_LIBRARY_PATH=self.libraries, **variables)

    def native(self, name):
        begin = time.monotonic()
        process = self.start("native", name, None, NATIVE_S, LD_PRELOAD=self.recorder,
                             GPUMUX_RECORD=self.records("native", name))
        self.took[name] = time.monotonic() - begin
        return process

    def alone(self, name, daemon):
        # In front of the library, which `gpumux run` would put first.
        return self.start("alone", name, None, GPUMUX_S, LD_PRELOAD=f"{self.recorder} {self.session.library}",
                          GPUMUX_RECORD=self.records("alone", name), GPUMUX_RECORD_ABOVE=self.session.library,
                          GPUMUX_RUNTIME_DIR=daemon.dir)

    def at_once(self, mode, count, start, share=1.0):
        """{name: process} of all that pass natively, the quickest first; what time is too short for is left out."""
        ended = {}
        until = max(20, self.session.left() * (1 - share))

        def one(name):
            if self.session.left() > until + self.took[name]:
                ended[name] = start(name)

        with concurrent.futures.ThreadPoolExecutor(count) as pool:
            list(pool.map(one, sorted(self.passing, key=self.took.get)))
        self.judge(mode, ended)
        return ended

    def judge(self, mode, ended):
        failed = [name for name, process in ended.items() if process.timed_out or process.code != 0]
        for name in sorted(failed):
            again = self.start(f"native-again-{mode}", name, None, NATIVE_S)
            why = ended[name].why() + "; " + last_line(ended[name])
            self.session.add(SKIP if again.code != 0 else FAIL, f"samples {mode}: {name}",
                             why if again.code == 0 else "fails natively, too, now and then")
        self.session.check(bool(ended), f"samples {mode}",
                           f"{len(ended) - len(failed)} of {len(ended)} pass that pass natively; "
                           f"{len(self.passing) - len(ended)} were not run for want of time")

    def run_native(self):
        self.passing = list(self.programs)
        ended = {}
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
            for name, process in zip(self.programs, pool.map(self.native, self.programs)):
                ended[name] = process
        waived = [name for name, process in ended.items() if process.code == WAIVED and not process.timed_out]
        failing = [name for name, process in ended.items()
                   if name not in waived and (process.timed_out or process.code != 0)]
        self.passing = [name for name in self.programs if name not in waived + failing]
        self.session.keep("samples.passing", "\n".join(self.passing) + "\n")
        self.session.add(INFO, "samples natively", f"{len(self.passing)} of {len(ended)} pass, {len(waived)} are "
                         f"waived: {' '.join(waived)}")
        self.session.keep("samples.seconds",
                          "".join(f"{name} {self.took[name]:.1f}\n" for name in self.passing))
        for name in failing:
            self.session.add(SKIP, f"samples natively: {name}", ended[name].why() + "; " + last_line(ended[name]))

    def run_alone(self):
        with Daemon(self.session, "samples-alone", mode="auto") as daemon:
            share = ALONE_SHARE if self.session.wants("together") else 1.0
            ended = self.at_once("alone", 1, lambda name: self.alone(name, daemon), share)
        different = []
        for name in ended:
            native, own = calls_of(self.records("native", name)), calls_of(self.records("alone", name))
            different += [f"{name}: {line}" for line in differences(native, own)]
        self.session.keep("samples.differences", "\n".join(different) + "\n")
        for line in different:
            self.session.add(INFO, "samples alone: another answer", line)
        self.session.add(PASS if not different else INFO, "samples alone: every driver call's errors",
                         f"{len(different)} differ from native")

    def run_together(self):
        with Daemon(self.session, "samples-together", mode="auto") as daemon, \
                Group(self.session, "samples-together", daemon) as group:
            filler = group.add("filler", self.session.workload("large") +
                               ["--share", str(FILLER_SHARE), "--seconds", "600"])
            group.wait_ready()
            group.go()
            self.at_once("together", AT_A_TIME, lambda name: self.start("together", name, daemon, GPUMUX_S))
            status = daemon.status()
            self.session.keep("samples.together-status.json", str(status))
            self.session.check(filler.process.poll() is None, "samples together: the tenant that fills the GPU goes on",
                               "" if filler.process.poll() is None else filler.why())
            filler.end()


def last_line(process):
    with open(process.out, errors="replace") as file:
        lines = [line.strip() for line in file if line.strip()]
    return lines[-1][:160] if lines else ""


def run_samples(session):
    parts = Samples(session, samples(session))
    # The other parts compare with the native results.
    parts.run_native()
    if session.wants("alone"):
        parts.run_alone()
    if session.wants("together"):
        parts.run_together()
