# SPDX-License-Identifier: Apache-2.0
"""Where the experiment runs: a real GPU or a simulated machine of its own, a daemon of its own, and its programs."""

import collections
import ctypes
import json
import os
import pathlib
import platform
import queue
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

# The caller's variables with these prefixes must not reach the programs.
FOREIGN = ("GPUMUX_", "NVSHARE_", "CUDA_OVERRIDE_")
DAEMON_START_S = 60
# If this process is killed, its programs end when they hear nothing more, and the daemon when it is alone.
UNUSED = "60s"
SIMULATED = {"gpus": "1", "memory": "1GiB", "context_memory": "16MiB"}

PACKAGES = ("torch", "torchvision", "timm", "transformers")
# Says what there is, without importing what takes long.
PROBE = """
import importlib.metadata, importlib.util, json
found = {}
for name in %r:
    if importlib.util.find_spec(name) is not None:
        found[name] = importlib.metadata.version(name)
gpu, memory = None, 0
if "torch" in found:
    import torch
    if torch.cuda.is_available():
        gpu, memory = torch.cuda.get_device_name(0), torch.cuda.get_device_properties(0).total_memory
print("FOUND " + json.dumps({"packages": found, "gpu": gpu, "memory": memory}))
""" % (PACKAGES,)
PROBE_S = 180


class Failed(Exception):
    """One configuration could not be run; the others go on."""


def has_gpu():
    if not os.path.exists("/dev/nvidiactl"):
        return False
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def clean_environment():
    return {name: value for name, value in os.environ.items()
            if not name.startswith(FOREIGN) and name not in ("LD_PRELOAD", "WORLD_SIZE", "LOCAL_WORLD_SIZE")}


def probe(python, environment):
    """The packages of a Python with their versions, the GPU as PyTorch calls it, and its memory in bytes."""
    nothing = {"packages": {}, "gpu": None, "memory": 0}
    try:
        answer = subprocess.run([python, "-c", PROBE], env=environment, stdin=subprocess.DEVNULL, capture_output=True,
                                text=True, timeout=PROBE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{python} cannot be asked for its packages: {error}", file=sys.stderr)
        return nothing
    for line in answer.stdout.splitlines():
        if line.startswith("FOUND "):
            return json.loads(line[6:])
    print(f"{python} cannot be asked for its packages: {answer.stderr.strip()[-300:]}", file=sys.stderr)
    return nothing


def cpu_model():
    """As the kernel calls it."""
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    return next((line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")),
                platform.machine())


class Machine:
    """`simulated`: a machine in a folder that goes with it."""

    def __init__(self, dist, simulated):
        self.dist = pathlib.Path(dist).resolve()
        self.simulated = simulated
        libraries = next((folder for folder in (self.dist / "sim", self.dist / "lib" / "sim")
                          if (folder / "libcuda.so.1").exists()), None)
        if simulated and libraries is None:
            raise Failed(f"there is no simulated driver in {self.dist}; run make build")
        for name in ("gpumux", "gpumuxd"):
            if not (self.dist / "bin" / name).exists():
                raise Failed(f"{self.dist / 'bin' / name} is missing; run make build")
        # Short, for the path of a unix socket has 107 bytes.
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="gpumux-exp-"))
        self.environment = clean_environment()
        self.environment["PYTHONUNBUFFERED"] = "1"
        self.environment["PYTHONWARNINGS"] = "ignore"
        # Not the user's own folder for state.
        self.environment["XDG_STATE_HOME"] = str(self.folder / "state")
        # Nothing is downloaded, and nothing tries to be.
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.environment["TRANSFORMERS_VERBOSITY"] = "error"
        if simulated:
            memory = self.folder / "machine"
            memory.mkdir()
            (memory / "machine.conf").write_text("".join(f"{key} = {value}\n" for key, value in SIMULATED.items()))
            self.environment["GPUMUX_SIM_DIR"] = str(memory)
            self.environment["LD_LIBRARY_PATH"] = str(libraries)

    def remove(self):
        shutil.rmtree(self.folder, ignore_errors=True)


class Daemon:
    """A private daemon with the settings that it comes with, and `settings`: names and values, as its file has them."""

    def __init__(self, machine, log_path, settings):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="d", dir=machine.folder))
        self.trace_path = self.folder / "trace"
        self.log_path = log_path
        config = self.folder / "gpumux.toml"
        # A file of its own, so that nobody's own settings take part. A name that there is not is refused in a file.
        lines = {name: value if value in ("true", "false") else json.dumps(value) for name, value in settings.items()}
        everywhere = {name: lines.pop(name) for name in ("host_memory", "log_level", "mps_control") if name in lines}
        config.write_text("\n".join([*(f"{name} = {value}" for name, value in everywhere.items()), "[defaults]",
                                     *(f"{name} = {value}" for name, value in lines.items()), ""]))
        environment = dict(machine.environment, GPUMUX_RUNTIME_DIR=str(self.folder))
        reading, writing = os.pipe()
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen(
                [machine.dist / "bin" / "gpumuxd", "--private", "--config", config, "--state-dir",
                 self.folder / "queue", "--trace", self.trace_path, "--notify-fd", str(writing), "--exit-when-unused",
                 UNUSED],
                env=environment, pass_fds=[writing], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            ready, _, _ = select.select([pipe], [], [], DAEMON_START_S)
            if not ready or not pipe.read(1):
                said = pathlib.Path(log_path).read_text(errors="replace")[-600:].strip()
                self.end()
                raise Failed(f"gpumuxd did not start: {said}")

    def environment(self):
        return {"GPUMUX_RUNTIME_DIR": str(self.folder)}

    def events(self):
        """The events whose lines the daemon has written whole."""
        text = self.trace_path.read_bytes() if self.trace_path.exists() else b""
        return [json.loads(line) for line in text[:text.rfind(b"\n") + 1].splitlines()]

    def end(self):
        end_process(self.process, gently=True)


def end_process(process, gently=False):
    """Whatever is left of it and of its group."""
    if gently and process.poll() is None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Program:
    """task.py in one role. It is told what to do by lines, and says how far it is (task.py)."""

    def __init__(self, role, arguments, environment, error_path):
        self.role = role
        self.error_path = error_path
        self.lines = queue.Queue()
        self.said = collections.deque(maxlen=20)
        with open(error_path, "ab") as error:
            self.process = subprocess.Popen([str(argument) for argument in arguments], env=environment,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=error, text=True,
                                            errors="replace", start_new_session=True, cwd=HERE)
        self.pid = self.process.pid
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.strip())
        self.lines.put(None)

    def tell(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise Failed(self.why("ended too early")) from None

    def hear(self, word, deadline):
        """Waits for the line that begins with `word`; returns the rest of it."""
        while True:
            try:
                line = self.lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise Failed(self.why(f"did not say '{word}' in time")) from None
            if line is None:
                raise Failed(self.why(f"ended without saying '{word}'"))
            if line.split(" ", 1)[0] == word:
                return line[len(word):].strip()
            self.said.append(line)

    def has_loaded(self, library):
        return library in pathlib.Path(f"/proc/{self.pid}/maps").read_text(errors="replace")

    def wait(self, deadline):
        """Whether it ended by itself, and well, before the deadline."""
        try:
            code = self.process.wait(max(0.01, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        if code != 0:
            raise Failed(self.why(f"ended with {code}"))
        return True

    def why(self, what):
        lines = pathlib.Path(self.error_path).read_text(errors="replace").strip().splitlines()
        last = (lines or list(self.said) or ["it said nothing"])[-1]
        return f"the {self.role} task {what}: {last[:200]}"

    def end(self):
        end_process(self.process)
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except OSError:
                pass
