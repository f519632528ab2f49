# SPDX-License-Identifier: Apache-2.0
"""The ways to share a GPU: how each one is started, what its programs get, and what it cannot do.

A way that is not gpumux is started as its own documents say, with the settings that they recommend for the work. The
caller has built a peer and names its folder (--peer NAME=FOLDER); README.md says how.
"""

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import time

from machine import Daemon, Failed, end_process
from plain_mps import MPS_CONTROL, NotReady, plain_mps

START_S = 30
END_S = 5
MIB = 1 << 20


class Server:
    """A process of a way's own. It is ended with all of its group."""

    def __init__(self, arguments, environment, log_path):
        self.log_path = pathlib.Path(log_path)
        with open(log_path, "ab") as log:
            self.process = subprocess.Popen([str(argument) for argument in arguments], env=environment,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def wait_until(self, is_ready):
        deadline = time.monotonic() + START_S
        while not is_ready():
            if self.process.poll() is not None:
                raise Failed(f"its server ended with {self.process.returncode}: {self.last_words()}")
            if time.monotonic() > deadline:
                self.end()
                raise Failed(f"its server was not ready after {START_S} s: {self.last_words()}")
            time.sleep(0.05)

    def last_words(self):
        """The end of its log: the reason need not be in the last line."""
        return "; ".join(self.log_path.read_text(errors="replace").split("\n")).strip("; ")[-200:] or "it said nothing"

    def end(self):
        # Nixie and XSched remove what they have made after SIGINT, and not after SIGTERM.
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(END_S)
        end_process(self.process)


@contextlib.contextmanager
def serving(arguments, environment, log_path, socket, *others):
    """A server that listens on a unix socket. The socket goes with it, and so do the `others`, its other files."""
    server = Server(arguments, environment, log_path)
    try:
        server.wait_until(socket.exists)
        yield
    finally:
        server.end()
        for path in (socket, *others):
            path.unlink(missing_ok=True)


class Way:
    name = ""
    title = ""
    limits = ""    # what a reader of its column has to know
    library = ""   # must be in each of its programs; empty: none
    needs = ()     # files in its folder
    peer = ""      # whose folder that is, if not its own name's

    def __init__(self, machine, folder=None):
        self.machine = machine
        self.folder = pathlib.Path(folder).resolve() if folder else None

    def missing(self):
        """Why it cannot be run here, or None."""
        if not self.needs:
            return None
        if self.folder is None:
            return f"no folder was given (--peer {self.peer or self.name}=FOLDER)"
        for name in self.needs:
            if not (self.folder / name).exists():
                return f"{self.folder / name} is missing"
        return "its programs need a real GPU" if self.machine.simulated else None

    def refuses(self, work):
        """Why it is not asked to do this work, or None."""
        return None

    def commit(self):
        """The commit in the file COMMIT of its folder, or else that of the repository in which the folder lies."""
        if self.folder is None:
            return ""
        with contextlib.suppress(OSError):
            return (self.folder / "COMMIT").read_text(encoding="utf-8").strip()
        asked = subprocess.run(["git", "-C", self.folder, "rev-parse", "--short", "HEAD"], capture_output=True,
                               text=True, check=False)
        return asked.stdout.strip() if asked.returncode == 0 else "unknown commit"

    @contextlib.contextmanager
    def server(self, work, log_path):
        """Runs the way's server beside the programs. Yields the variables that all of them get."""
        yield {}

    def variables(self, task, work):
        """The variables that one program gets more."""
        return {}

    def command(self, task, arguments):
        return arguments


class Plain(Way):
    name, title = "plain", "plain driver"
    limits = "The driver gives each process a time slice in turn."


class Gpumux(Way):
    name, title = "gpumux", "gpumux"
    library = "libgpumux.so"
    limits = "Settings as they come. The program that answers requests has priority 10."
    settings = {}

    def missing(self):
        return None

    @contextlib.contextmanager
    def server(self, work, log_path):
        daemon = Daemon(self.machine, log_path, self.settings)
        try:
            yield daemon.environment()
        finally:
            daemon.end()

    def command(self, task, arguments):
        priority = ["--priority", "10"] if task.matters else []
        return [self.machine.dist / "bin" / "gpumux", "run", "--quiet", *priority, "--", *arguments]


def why_no_mps(machine):
    if machine.simulated:
        return "MPS needs a real GPU"
    return None if shutil.which(MPS_CONTROL) else f"there is no {MPS_CONTROL} here"


class GpumuxMps(Gpumux):
    name, title = "gpumux-mps", "gpumux with MPS"
    limits = "As gpumux, with the setting mps = on. Programs share each other's faults."

    def missing(self):
        if os.geteuid() == 0:
            return "gpumux starts MPS for ordinary users only: run the comparison as one"
        return why_no_mps(self.machine)

    @property
    def settings(self):
        return {"mps": "on", "mps_control": shutil.which(MPS_CONTROL)}


class Mps(Way):
    name, title = "mps", "MPS"
    limits = "All programs share one context, and so each other's faults. Memory has to fit."

    def missing(self):
        return why_no_mps(self.machine)

    @contextlib.contextmanager
    def server(self, work, log_path):
        try:
            with plain_mps(self.machine.environment, self.machine.folder / "mps", log_path) as variables:
                yield variables
        except NotReady as error:
            raise Failed(str(error)) from None

    def variables(self, task, work):
        # 1 is the lower one of its two priorities.
        has_two = any(other.matters for other in work.tasks)
        return {"CUDA_MPS_CLIENT_PRIORITY": "1"} if has_two and not task.matters else {}


class Nvshare(Way):
    name, title = "nvshare", "nvshare"
    library = "libnvshare.so"
    needs = ("nvshare-scheduler", "libnvshare.so")
    limits = ("Turns of 30 s, its default. What libraries launch by cuLaunchKernelEx goes past them, for it does not "
              "know that call. One GPU a machine.")
    socket = pathlib.Path("/var/run/nvshare/scheduler.sock")

    def missing(self):
        # Its scheduler makes the folder, and sets the folder's mode.
        folder = self.socket.parent
        if os.geteuid() != 0 and not (folder.is_dir() and folder.stat().st_uid == os.geteuid()):
            return f"its scheduler needs the folder {folder}, as this user's own: install -d -o USER {folder}"
        if self.socket.exists():
            return f"another scheduler of it runs, or has left {self.socket}"
        return super().missing()

    def refuses(self, work):
        return "it would need more managed memory than the GPU has" if work.is_of_memory() else None

    @contextlib.contextmanager
    def server(self, work, log_path):
        with serving([self.folder / "nvshare-scheduler"], self.machine.environment, log_path, self.socket):
            yield {"LD_PRELOAD": str(self.folder / "libnvshare.so")}


class Nixie(Way):
    name, title = "nixie", "Nixie"
    library = "libnixiesidecar.so"
    needs = ("nixie", "libnixiesidecar.so")
    limits = "One program works at a time. It sees programs of the CUDA runtime only, not of the driver API."
    socket = pathlib.Path("/tmp/nixie-ctl.sock")
    # Its file in /dev/shm stays after each end, and keeps the memory that was written.
    others = tuple(map(pathlib.Path, ("/tmp/nixie.sock", "/tmp/nixie.pagebuffer", "/dev/shm/nixie_shm_buffer")))

    def missing(self):
        if self.socket.exists():
            return f"another daemon of it runs, or has left {self.socket}"
        return super().missing()

    @contextlib.contextmanager
    def server(self, work, log_path):
        # Each program registers all of the pinned memory at its start, which takes its time. Where nothing is evicted
        # there is little of it.
        pinned = other = 1 << 30
        if work.is_of_memory():
            # Evicted memory may take as much as gpumux's own default lets it: 60 % of what is available, most of it
            # pinned. Pinned memory lies in /dev/shm.
            memory = available_memory()
            pinned, other = min(memory * 4 // 10, shutil.disk_usage("/dev/shm").free), memory * 2 // 10
        daemon = [self.folder / "nixie", "daemon", "--shmem", in_blocks(pinned), "--hostmem", in_blocks(other)]
        with serving(daemon, self.machine.environment, log_path, self.socket, *self.others):
            yield {}

    def command(self, task, arguments):
        return [self.folder / "nixie", "run", *arguments]


class Xsched(Way):
    name, title = "xsched", "XSched"
    level = {"XSCHED_AUTO_XQUEUE_LEVEL": "1"}
    library = "libshimcuda.so"
    needs = ("bin/xserver", "lib/libshimcuda.so")
    limits = ("It queues what is launched on streams that a program creates, and not on the default stream, PyTorch's "
              "own. Memory has to fit. Its server listens on port 50000 of all addresses.")

    @contextlib.contextmanager
    def server(self, work, log_path):
        policy = "HPF" if any(task.matters for task in work.tasks) else "CFS"
        server = Server([self.folder / "bin" / "xserver", policy, "50000"], self.machine.environment, log_path)
        try:
            server.wait_until(lambda: is_listening(50000))
            yield {}
        finally:
            server.end()

    def variables(self, task, work):
        # As its example has them for a program of a high priority and one of a low one.
        has_two = any(other.matters for other in work.tasks)
        in_flight = (4, 2) if has_two and not task.matters else (16, 8)
        path = [str(self.folder / "lib"), self.machine.environment.get("LD_LIBRARY_PATH", "")]
        return {**self.level, "XSCHED_SCHEDULER": "GLB", "XSCHED_AUTO_XQUEUE": "ON",
                "XSCHED_AUTO_XQUEUE_PRIORITY": "1" if task.matters else "0",
                "XSCHED_AUTO_XQUEUE_THRESHOLD": str(in_flight[0]), "XSCHED_AUTO_XQUEUE_BATCH_SIZE": str(in_flight[1]),
                "LD_LIBRARY_PATH": ":".join(filter(None, path))}


class XschedInterrupts(Xsched):
    """XSched at its level 3, which takes running kernels off the GPU, by its closed library cuXtra."""
    name, title = "xsched-3", "XSched, level 3"
    peer = "xsched"
    level = {"XSCHED_AUTO_XQUEUE_LEVEL": "3", "XSCHED_CUDA_LV3_IMPL": "TSG"}


class Hami(Way):
    name, title = "hami", "HAMi-core"
    library = "libvgpu.so"
    needs = ("libvgpu.so",)
    limits = "It limits memory and parts of the GPU, and makes no turns. Memory has to fit."

    @contextlib.contextmanager
    def server(self, work, log_path):
        os.makedirs("/tmp/vgpulock", exist_ok=True)
        cache = self.machine.folder / "vgpu.cache"
        try:
            yield {"LD_PRELOAD": str(self.folder / "libvgpu.so"), "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(cache)}
        finally:
            cache.unlink(missing_ok=True)


def in_blocks(size):
    """As Nixie's options have it: it takes multiples of its largest allocation, 128 MiB."""
    return f"{size // (128 * MIB) * 128}m"


def available_memory():
    """Bytes of host memory that the machine has left, or the container, if that is less."""
    meminfo = pathlib.Path("/proc/meminfo").read_text(encoding="ascii")
    available = int(meminfo.split("MemAvailable:")[1].split()[0]) * 1024
    group = pathlib.Path("/sys/fs/cgroup")
    # A container without a limit says "max".
    with contextlib.suppress(OSError, ValueError):
        most, now = (int((group / name).read_text(encoding="ascii")) for name in ("memory.max", "memory.current"))
        available = min(available, most - now)
    return available


ALL = (Plain, Mps, Gpumux, GpumuxMps, Nixie, Xsched, XschedInterrupts, Nvshare, Hami)


def is_listening(port):
    """Whether a TCP server of this machine has it, by the kernel's list."""
    wanted = f":{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError), open(name, encoding="ascii") as lines:
            for line in lines.readlines()[1:]:
                fields = line.split()
                if fields[1].endswith(wanted) and fields[3] == "0A":
                    return True
    return False
