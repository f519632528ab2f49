# SPDX-License-Identifier: Apache-2.0
"""Containers of runc's: images made from files of this machine, and bundles with what a CDI specification says."""

import itertools
import json
import os
import pathlib
import re
import secrets
import shutil
import subprocess
import unittest

from framework import paths
from framework.case import GpumuxTest
from framework.process import Process
from framework.users import SystemDaemon
from framework.waiting import HANG, wait_until

LOADERS = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
LOADER = LOADERS.get(os.uname().machine, "")
MUSL_LOADER = f"/lib/ld-musl-{os.uname().machine}.so.1"

# The capabilities that a runtime for Kubernetes gives to root of a container.
CAPABILITIES = ["CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETUID"]

MOUNTS = [
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]},
]


def reason_to_skip():
    """Why no container can run here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root: containers"
    if shutil.which("runc") is None:
        return "needs runc (tools/setup.sh --list)"
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0:
        return "needs the right to make namespaces (CAP_SYS_ADMIN): containers"
    return ""


class Image:
    """A container's root folder."""

    def __init__(self, directory):
        self.root = pathlib.Path(directory)
        for folder in ("etc", "proc", "dev", "tmp"):
            (self.root / folder).mkdir(parents=True)
        (self.root / "tmp").chmod(0o1777)

    def path(self, inside):
        return self.root / inside.lstrip("/")

    def add(self, source, inside=None, mode=0o755):
        """Returns the file's path in the container."""
        inside = inside or f"/bin/{pathlib.Path(source).name}"
        to = self.path(inside)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, to)
        to.chmod(mode)
        return inside

    def add_program(self, name):
        """One of tests/programs with the glibc libraries that it needs, but for the driver's."""
        return self._add_with_libraries(paths.PROGRAMS / name, f"/bin/{name}")

    def add_machines(self, program):
        """One of this machine's programs, the same way."""
        return self._add_with_libraries(program, program)

    def _add_with_libraries(self, source, inside):
        self.add(source, inside)
        self.add(LOADER, LOADER)
        listed = subprocess.run(["ldd", source], capture_output=True, text=True, check=True).stdout
        for library in re.findall(r"=> (/\S+)", listed):
            self.add(library, library)
        return inside

    def give_to(self, uid):
        for path in (self.root, *self.root.rglob("*")):
            os.chown(path, uid, uid, follow_symlinks=False)


class Container:

    def __init__(self, case, image, arguments, edits, env=(), user=0, read_only=False, hooks=(), volumes=(),
                 first_uid=None, annotations=None):
        """`volumes`: paths of the host and the container. `first_uid`: root of its user namespace, on the host."""
        self.case = case
        self.image = image
        self.id = secrets.token_hex(32)  # as Kubernetes' runtimes name containers, and their control groups
        self.bundle = pathlib.Path(case.directory) / self.id
        self.bundle.mkdir()
        config = {
            "ociVersion": "1.0.2",
            "process": {
                "user": {"uid": user, "gid": user}, "args": [str(argument) for argument in arguments], "cwd": "/",
                "env": ["PATH=/bin", *env],
                "capabilities": {kind: CAPABILITIES if user == 0 or kind == "bounding" else []
                                 for kind in ("bounding", "effective", "permitted")},
            },
            "root": {"path": str(image.root), "readonly": read_only},
            "mounts": list(MOUNTS),
            "hooks": {"createContainer": list(hooks)},
            "annotations": annotations or {},
            "linux": {"namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]},
        }
        for source, inside in [(case.shared, "/shared"), *volumes]:
            config["mounts"].append({"destination": inside, "source": str(source), "options": ["bind", "rw"]})
        if first_uid is not None:
            config["linux"]["namespaces"].append({"type": "user"})
            for ids in ("uidMappings", "gidMappings"):
                config["linux"][ids] = [{"containerID": 0, "hostID": first_uid, "size": 65536}]
            image.give_to(first_uid)
        self._apply(config, edits)
        (self.bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
        case.addCleanup(self._remove)
        self.process = case.start_process(["runc", "--root", case.runc_state, "run", "--bundle", self.bundle, self.id],
                                          environment={"PATH": os.environ["PATH"]}, name=self.id)

    @staticmethod
    def _apply(config, edits):
        """As the CDI specification says that runtimes do it: a variable of the edits replaces the container's."""
        env = config["process"]["env"]
        for variable in edits.get("env", []):
            name = variable.split("=")[0] + "="
            env[:] = [other for other in env if not other.startswith(name)] + [variable]
        for mount in edits.get("mounts", []):
            config["mounts"].append({"destination": mount["containerPath"], "source": mount["hostPath"],
                                     "options": mount["options"]})
        for hook in edits.get("hooks", []):
            config["hooks"].setdefault(hook["hookName"], []).append({"path": hook["path"], "args": hook["args"]})

    def _remove(self):
        subprocess.run(["runc", "--root", self.case.runc_state, "delete", "--force", self.id], capture_output=True,
                       check=False)

    def pid_on_the_host(self):
        """Of its first process."""
        def ask():
            done = subprocess.run(["runc", "--root", self.case.runc_state, "state", self.id], capture_output=True,
                                  text=True, check=False)
            state = json.loads(done.stdout) if done.returncode == 0 else {}
            return state.get("status") == "running" and state["pid"]
        return wait_until(ask, HANG, lambda: f"the container runs: {self.process.tail()}")

    def lines(self):
        """The lines that the container has printed, once it has ended with success."""
        self.process.expect_success()
        return self.process.lines


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class ContainersTest(GpumuxTest):
    """A daemon for the whole machine, and what a node has for containers."""

    version = "1.0"

    def setUp(self):
        super().setUp()
        self.numbers = itertools.count()
        self.runc_state = os.path.join(self.directory, "runc")
        self.shared = os.path.join(self.directory, "shared")
        os.mkdir(self.shared)
        for folder in (self.directory, self.runtime_dir, self.machine.directory):
            os.chmod(folder, 0o755)
        os.chmod(self.shared, 0o1777)
        self.node = pathlib.Path(self.directory) / "node"
        self.install(self.version)
        self.enough = os.path.join(self.shared, "enough")

    def install(self, version):
        folder = self.node / "libraries" / version
        folder.mkdir(parents=True)
        shutil.copy(paths.LIBRARY, folder)

    def start_system_daemon(self, make_process=Process):
        config = pathlib.Path(self.directory) / "gpumux.toml"
        config.touch()
        daemon = SystemDaemon(self.machine, self.runtime_dir, self.daemon_settings, ["--config", config])
        daemon.make_process = make_process
        self.daemons.append(daemon)
        daemon.start()
        # Real GPUs are everybody's. The simulated machine is its maker's, who is root here.
        os.chmod(self.machine.directory, 0o777)
        for file in os.scandir(self.machine.directory):
            os.chmod(file, 0o666)
        return daemon

    def image(self, *programs):
        image = Image(os.path.join(self.directory, f"image-{next(self.numbers)}"))
        for program in programs:
            image.add_program(program)
        return image

    @property
    def library(self):
        return f"/usr/lib/gpumux/containers/{self.version}/libgpumux.so"

    def _said_by_the_writer(self, arguments, claim=()):
        os.makedirs(f"{self.runtime_dir}/tenants", exist_ok=True)
        node = [self.node / "libraries", self.version, self.runtime_dir, paths.SIM_LIBRARIES, self.machine.directory]
        done = subprocess.run([paths.PROGRAMS / "injection", *arguments, *node, *map(str, claim)],
                              capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def specification(self, *claim):
        """The edits of a specification file, as a runtime reads it. `claim`: its uid, a GPU, the bytes and
        cores there, and its priority."""
        folder = pathlib.Path(self.directory) / "cdi"
        device = self._said_by_the_writer(["cdi", folder, paths.HOOK, "one"], claim)
        files = list(folder.iterdir())
        self.assertEqual(len(files), 1, files)
        found = json.loads(files[0].read_text(encoding="utf-8"))
        self.assertEqual(device, f"{found['kind']}={found['devices'][0]['name']}")
        return found["devices"][0]["containerEdits"]

    def plain_edits(self):
        """The edits of a plugin whose runtime has no CDI."""
        return json.loads(self._said_by_the_writer(["env"]))

    def run_container(self, image, *arguments, edits=None, **options):
        return Container(self, image, arguments, self.specification() if edits is None else edits, **options)

    def listed(self, image):
        return image.path("/etc/ld.so.preload").read_text(encoding="utf-8")
