# SPDX-License-Identifier: Apache-2.0
"""A Slurm cluster of one test's own: slurmctld, two nodes and munge, Debian's, in namespaces (framework/inside.py).

Both nodes are slurmds of one machine, n1 with the simulated GPUs 0 and 1, n2 with 2 and 3. Slurm wants a device for
each GPU: character devices that nothing serves. Slurm resolves no name, not even 127.0.0.1, where a machine has no
other address: node_init.py gives it one.
"""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import stat
import unittest

from framework import inside, paths
from framework.case import GpumuxTest
from framework.users import SystemDaemon
from framework.waiting import HANG, wait_until

PROGRAMS = ("slurmctld", "slurmd", "srun", "munged")
NODES = ("n1", "n2")
GPUS_PER_NODE = 2
SHARDS_PER_GPU = 10
FIRST_PORT = 17001
# The daemon sees the tests' own process as a stranger in a container, which may ask so often.
POLL = 0.05
NVIDIA_MAJOR = 195
SPANK = paths.BUILD / "lib" / "spank_gpumux.so"
LEAF = paths.ROOT / "slurm"


def reason_to_skip():
    if any(shutil.which(program) is None for program in PROGRAMS):
        return "needs slurmctld, slurmd, slurm-client and munge (tools/setup.sh --list)"
    if not SPANK.exists():
        return "needs spank_gpumux.so, which is built where Slurm's headers are (libslurm-dev)"
    return inside.reason_to_skip("a Slurm cluster")


class Slurm(inside.Inside):

    def __init__(self, case):
        super().__init__(case)
        self.slurmd = {}

    def start(self):
        self._start_first()
        self._configure()
        self._start_munge()
        self.start_process("slurmctld", "-D", name="slurmctld")
        for node in NODES:
            self.start_slurmd(node)
        self.wait_idle()
        return self

    def start_slurmd(self, node):
        self.slurmd[node] = self.start_process("slurmd", "-D", "-N", node, name=f"slurmd {node}")

    def states(self):
        with contextlib.suppress(AssertionError):  # slurmctld does not serve yet
            return self.run("sinfo", "--noheader", "--Node", "--format=%T").split()
        return []

    def wait_idle(self):
        wait_until(lambda: self.states() == ["idle"] * len(NODES), HANG, lambda: f"the nodes are idle: {self.states()}",
                   poll=POLL)

    def _write(self, name, text, folder="/etc/slurm"):
        # Through the node's root: /etc is its own.
        place = self.root / folder.lstrip("/")
        place.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text, encoding="utf-8")

    def _configure(self):
        devices = self.directory / "devices"
        devices.mkdir()
        for number in range(GPUS_PER_NODE * len(NODES)):
            os.mknod(devices / f"nvidia{number}", stat.S_IFCHR | 0o666, os.makedev(NVIDIA_MAJOR, number))
        (self.directory / "state").mkdir()
        gres, nodes = [], []
        for index, node in enumerate(NODES):
            first = index * GPUS_PER_NODE
            files = f"File={devices}/nvidia[{first}-{first + GPUS_PER_NODE - 1}]"
            shards = GPUS_PER_NODE * SHARDS_PER_GPU
            gres += [f"NodeName={node} Name=gpu Type=sim {files}", f"NodeName={node} Name=shard Count={shards} {files}"]
            nodes.append(f"NodeName={node} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
                         f"Port={FIRST_PORT + index} CPUs=16 Gres=gpu:sim:{GPUS_PER_NODE},shard:{shards}")
        self._write("gres.conf", "\n".join(gres) + "\n")
        self._write("cgroup.conf", f"""CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
ConstrainDevices={"yes" if self.case.constrain_devices else "no"}
""")
        self._write("plugstack.conf", f"optional {self.case.plugin} runtime_dir={self.case.runtime_dir}\n")
        shutil.copy(LEAF / "job_submit.lua", self.root / "etc/slurm/job_submit.lua")
        self._write("slurm.conf", f"""ClusterName=test
SlurmctldHost={socket.gethostname()}(127.0.0.1)
SlurmUser=root
StateSaveLocation={self.directory}/state
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd.%n.pid
SlurmdSpoolDir={self.directory}/spool.%n
ProctrackType=proctrack/{self.case.proctrack}
TaskPlugin=task/{"cgroup" if self.case.proctrack == "cgroup" else "none"}
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu,shard
JobSubmitPlugins=lua
Prolog={LEAF}/prolog
PrologFlags=Alloc
SchedulerParameters=bf_interval=1,sched_interval=1
KillWait=2
SlurmdParameters=config_overrides
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
{chr(10).join(nodes)}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
""")

    def _start_munge(self):
        folder = self.directory / "munge"
        folder.mkdir()
        key = folder / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        (self.root / "run/munge").mkdir(mode=0o755)
        self.start_process("munged", "--foreground", f"--key-file={key}", f"--pid-file={folder}/pid",
                           f"--seed-file={folder}/seed", f"--log-file={folder}/log", name="munged")
        wait_until((self.root / "run/munge/munge.socket.2").is_socket, HANG, "munge serves")


@unittest.skipIf(reason_to_skip(), reason_to_skip())
class SlurmTest(GpumuxTest):
    """A cluster, and the daemon of its machine."""

    gpus = GPUS_PER_NODE * len(NODES)
    constrain_devices = False
    proctrack = "cgroup"
    machine_settings = {"memory": "512MiB", "context_memory": "4MiB"}

    def setUp(self):
        super().setUp()
        os.chmod(self.directory, 0o755)
        os.chmod(self.runtime_dir, 0o755)
        # Every user may read and run these.
        self.files = pathlib.Path(self.directory) / "files"
        shutil.copytree(paths.SIM_LIBRARIES, self.files / "sim")
        # As they are installed.
        self.plugin = self.files / "lib/gpumux/spank_gpumux.so"
        self.library = self.files / "lib/libgpumux.so"
        self.plugin.parent.mkdir(parents=True)
        shutil.copy(SPANK, self.plugin)
        shutil.copy(paths.LIBRARY, self.library)
        for program in ("worker", "large", "collective"):
            shutil.copy(paths.PROGRAMS / program, self.files)
        self.slurm = Slurm(self)
        self.records = pathlib.Path(self.runtime_dir) / "root" / "containers"
        self.slurm.start()
        self.start_node_daemon()
        self.temporary = pathlib.Path(self.directory) / "temporary"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)

    def start_node_daemon(self):
        config = pathlib.Path(self.directory) / "gpumux.toml"
        config.touch()
        self.daemon = SystemDaemon(self.machine, self.runtime_dir, self.daemon_settings, ["--config", config])
        self.daemon.make_process = self.slurm.make_process
        self.daemons.append(self.daemon)
        self.daemon.start()
        # Real GPUs are everybody's. The simulated machine is its maker's, who is root here.
        os.chmod(self.machine.directory, 0o777)
        for file in os.scandir(self.machine.directory):
            os.chmod(file, 0o666)

    # ---- jobs

    def user_environment(self, **variables):
        return {"PATH": os.environ["PATH"], "HOME": self.directory, "TMPDIR": str(self.temporary),
                "GPUMUX_SIM_DIR": self.machine.directory,
                "LD_LIBRARY_PATH": str(self.files / "sim"), **variables}

    def submit(self, command, *arguments, user=None, **variables):
        """srun or sbatch. `user`: of pwd; None: root."""
        become = []
        if user is not None:
            become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
        process = self.slurm.make_process([*become, command, f"--chdir={self.directory}", *arguments],
                                          self.user_environment(**variables), name=command)
        self.programs.append(process)
        return process

    def srun(self, *arguments, **options):
        return self.submit("srun", *arguments, **options)

    def worker(self, *arguments, **options):
        """It computes until finish()."""
        return self.srun(*arguments, self.files / "worker", "--until", self.enough, "--steps", 20, "--step-us", 500,
                         **options)

    def finish(self, *processes):
        pathlib.Path(self.enough).touch()
        for process in processes:
            process.expect_success()

    def submit_script(self, text, *arguments, **options):
        """A batch job's id."""
        script = pathlib.Path(self.directory) / "script"
        script.write_text("#!/bin/sh\n" + text, encoding="utf-8")
        submitted = self.submit("sbatch", "--parsable", f"--output={self.directory}/output-%j", *arguments, script,
                                **options)
        return int(submitted.expect_success().lines[0])

    def wait_script(self, job):
        """Waits until the job has ended well; gives the lines of its output.

        (sbatch --wait looks for the end every ten seconds.)
        """
        def state():
            said = self.slurm.run("scontrol", "--oneliner", "show", "job", str(job))
            return re.search(r"JobState=(\S+)", said)[1]

        output = pathlib.Path(self.directory) / f"output-{job}"
        wait_until(lambda: state() == "COMPLETED", HANG,
                   lambda: f"job {job} ends well: {state()}, {output.read_text(encoding='utf-8')}", poll=POLL)
        return output.read_text(encoding="utf-8").splitlines()

    def run_script(self, text, *arguments, **options):
        return self.wait_script(self.submit_script(text, *arguments, **options))

    def jobs(self):
        """Ids of jobs that are not done, with their states."""
        return dict(line.split() for line in self.slurm.run("squeue", "--noheader", "--format=%i %T").splitlines())

    # ---- what the daemon knows

    def seats(self):
        """Of each GPU the Slurm jobs of its seats; 0 for a seat that is of none."""
        def job(seat):
            return int(seat.get("container", {"id": ""})["id"].removeprefix("slurm-") or 0)

        return [sorted(job(seat) for seat in gpu["seats"]) for gpu in self.daemon.api.status()["gpus"]]

    def wait_seats(self, *expected):
        """Jobs on GPU 0, 1 ...; none on the others."""
        expected = [*expected, *[[]] * (self.gpus - len(expected))]
        wait_until(lambda: self.seats() == expected, HANG, lambda: f"the seats are {expected}; they are {self.seats()}",
                   poll=POLL)

    def wait_nothing_left(self):
        """No job, no tenant, no record, no control group."""
        def left():
            # os.walk does not mind a folder that goes meanwhile.
            groups = [name for folder in self.slurm.cgroup.folders.values() for _, names, _ in os.walk(folder)
                      for name in names if name.startswith("job_")]
            return [self.jobs(), *self.seats(), list(self.records.iterdir()), groups]

        wait_until(lambda: not any(left()), HANG, lambda: f"nothing of a job is left: {left()}", poll=POLL)
