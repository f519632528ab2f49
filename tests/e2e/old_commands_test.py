#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of the scheduler that the job queue comes from, as its README has them.

Method: each of its examples is run word by word, from a home with the files that they name. Python, virtual
environments and conda are real as far as the shell sees them; what trains is a program on simulated GPUs. Jobs begin in
the home that the user database names: the test has one of its own, in a mount namespace of its own. It is skipped
without root, which the server needs, too, and where no such namespace can be made (a chroot; a container without
CAP_SYS_ADMIN).
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from framework import paths  # noqa: E402
from framework.api import Api  # noqa: E402
from framework.case import GpumuxTest, main  # noqa: E402
from framework.waiting import HANG, wait_until  # noqa: E402

# The program of the commands: it computes on its GPU, and prints with what.
TRAINS = """
    import os, subprocess
    rank, gpus = int(os.environ.get("LOCAL_RANK", 0)), os.environ["CUDA_VISIBLE_DEVICES"]
    print("ran", os.path.basename(__file__), "gpus", gpus, "rank", rank,
          "venv", os.environ.get("VIRTUAL_ENV"), "conda", os.environ.get("CONDA_DEFAULT_ENV"))
    subprocess.run([os.environ["WORKER"], "--steps", "20", "--step-us", "200"], check=True,
                   env=dict(os.environ, CUDA_VISIBLE_DEVICES=gpus.split(",")[rank]))
"""
# torchrun, as far as its line needs it: so many processes, each with its rank.
TORCHRUN = """
    import os, subprocess, sys
    count = int(sys.argv[1].partition("=")[2])
    ranks = [subprocess.Popen([sys.executable, *sys.argv[2:]], env=dict(os.environ, LOCAL_RANK=str(rank)))
             for rank in range(count)]
    sys.exit(max(rank.wait() for rank in ranks))
"""
CONDA = """
    [ "$*" = "shell.bash hook" ] || exit 9
    echo 'conda() { [ "$1" = activate ] && export CONDA_DEFAULT_ENV=$2; }'
"""
ACTIVATE = """
    export VIRTUAL_ENV="$PWD/venv"
    PATH="$VIRTUAL_ENV/bin:$PATH"
"""


IN_NAMESPACE = "GPUMUX_TEST_IN_NAMESPACE"
NO_NAMESPACE = "GPUMUX_TEST_NO_NAMESPACE"  # why there is none


@unittest.skipUnless(os.geteuid() == 0, "needs root: the server runs as root")
class OldCommands(GpumuxTest):
    gpus = 3
    machine_settings = {"memory": "16GiB"}

    def setUp(self):
        if NO_NAMESPACE in os.environ:
            self.skipTest(f"no mount namespace can be made here: {os.environ[NO_NAMESPACE]}")
        super().setUp()
        self.home = pathlib.Path(self.directory)
        self.replace_home()
        self.script("bin/python", f'exec {shlex.quote(sys.executable)} "$@"')
        self.script("bin/conda", CONDA)
        self.write("bin/torchrun.py", TORCHRUN)
        self.script("bin/torchrun", f'exec {shlex.quote(sys.executable)} {self.home}/bin/torchrun.py "$@"')
        self.write("venv/bin/activate", ACTIVATE)
        for name in ("train.py", "inference.py", "important_task.py"):
            self.write(name, TRAINS)
        for name in ("mgpu_srun", "mgpu_queue", "mgpu_cancel"):
            self.write(f"dist/{name}", "").unlink()
            os.symlink(paths.BUILD / "bin" / name, self.home / "dist" / name)
        self.api = Api(f"{self.runtime_dir}/api.sock")
        server = [paths.BUILD / "bin" / "mgpu_scheduler_server", "--max-job-time", "3600"]
        self.server = self.start_process(server, environment=self.environment(
            preload=False, GPUMUX_STATE_DIR=f"{self.runtime_dir}.state", GPUMUX_LIBRARY=paths.LIBRARY,
            GPUMUX_DAEMON=paths.DAEMON, GPUMUX_MODE="serial"))
        wait_until(self.is_served, HANG, lambda: f"the server serves: {self.server.tail(20)}")

    def tearDown(self):
        if self.is_served():
            self.api.ask("PATCH", "/v1/jobs/all", {"cancel": True})
            wait_until(lambda: not self.api.ask("GET", "/v1/jobs")["jobs"], HANG, "all jobs have ended")
        super().tearDown()

    def replace_home(self):
        """Root's, in the user database as this namespace sees it."""
        with open("/etc/passwd", encoding="utf-8") as file:
            users = re.sub(r"^(root:([^:]*:){4})[^:]*", rf"\g<1>{self.directory}", file.read(), flags=re.MULTILINE)
        subprocess.run(["mount", "--bind", self.write("passwd", users), "/etc/passwd"], check=True)
        self.addCleanup(subprocess.run, ["umount", "/etc/passwd"], check=True)

    def is_served(self):
        try:
            return self.api.ask("GET", "/v1/jobs") is not None
        except OSError:
            return False

    def write(self, name, text):
        path = self.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text).lstrip(), encoding="utf-8")
        return path

    def script(self, name, text):
        self.write(name, "#!/bin/sh\n" + textwrap.dedent(text)).chmod(0o755)

    def run_line(self, line, code=0):
        """The output of a line of the README."""
        environment = self.environment(preload=False, PATH=f"{self.home}/bin:{os.environ['PATH']}",
                                       WORKER=paths.PROGRAMS / "worker", GPUMUX_LIBRARY=paths.LIBRARY)
        process = self.start_process(shlex.split(line), environment=environment, cwd=self.directory)
        self.assertEqual(process.wait(HANG), code, process.tail(30))
        return "\n".join(process.lines)

    def finished(self, said):
        """The output of the job that a line has handed in, when it has ended well."""
        job = int(re.search(r"\d+", said).group())
        done = wait_until(lambda: (found := self.api.ask("GET", f"/v1/jobs/{job}"))["state"] == "done" and found,
                          HANG, f"job {job} ends")
        (log,) = (self.home / ".local/state/gpumux/logs").glob(f"*/{job}.log")
        output = log.read_text(encoding="utf-8")
        self.assertEqual((done["outcome"], done["exit_status"]), ("ok", 0), output)
        return output

    def test_a_priority_counts_against_everybody(self):
        self.assertNotIn("priority_cap", self.api.ask("GET", "/v1/queue")["settings"]["limits"])

    def test_the_examples_run_as_they_are_written(self):
        said = self.run_line("./dist/mgpu_srun --gpu-ids 0 --interactive -- python train.py")
        self.assertIn("ran train.py gpus 0 rank 0", said)
        self.assertIn("digest=", said)

        said = self.run_line("./dist/mgpu_srun --gpu-ids 0,1 --mem 8000 --time-limit 600 -- "
                             "torchrun --nproc_per_node=2 train.py")
        output = self.finished(said)
        for rank in range(2):
            self.assertIn(f"ran train.py gpus 0,1 rank {rank}", output)
        self.assertEqual(output.count("digest="), 2)

        said = self.run_line('./dist/mgpu_srun --gpu-ids 2 --env-setup-cmd "source venv/bin/activate" -- '
                             "python train.py")
        self.assertIn(f"gpus 2 rank 0 venv {self.home}/venv", self.finished(said))

        said = self.run_line('./dist/mgpu_srun --gpu-ids 1 --env-setup-cmd "conda activate myenv" -- '
                             "python inference.py")
        self.assertIn("ran inference.py gpus 1 rank 0 venv None conda myenv", self.finished(said))

        for how in ("--interactive", "--background"):
            said = self.run_line("./dist/mgpu_srun --gpu-ids 0,1 --mem 8000 --time-limit 600 --priority 10 "
                                 f'--env-setup-cmd "source venv/bin/activate" {how} -- '
                                 "torchrun --nproc_per_node=2 train.py")
            self.assertEqual((said if how == "--interactive" else self.finished(said)).count("digest="), 2)

        said = self.run_line("./dist/mgpu_srun --gpu-ids 0 --priority 10 -- python important_task.py")
        self.assertIn("ran important_task.py gpus 0", self.finished(said))

    def test_jobs_are_seen_and_cancelled(self):
        self.write("train.py", "import time\ntime.sleep(3600)\n")
        said = self.run_line("./dist/mgpu_srun --gpu-ids 0 -- python train.py")
        job = re.search(r"\d+", said).group()
        wait_until(lambda: self.api.ask("GET", f"/v1/jobs/{job}")["state"] == "running", HANG, "it runs")
        queue = self.run_line("./dist/mgpu_queue")
        self.assertRegex(queue, rf"\b{job}\b")
        self.assertIn("python train.py", queue)
        self.run_line(f"./dist/mgpu_cancel {job}")
        wait_until(lambda: self.api.ask("GET", f"/v1/jobs/{job}")["outcome"] == "cancelled", HANG, "it is cancelled")
        self.assertNotRegex(self.run_line("./dist/mgpu_queue"), rf"\b{job}\b")


if __name__ == "__main__":
    if os.geteuid() == 0 and IN_NAMESPACE not in os.environ:
        unshare = ["unshare", "--mount", "--propagation", "private"]
        tried = subprocess.run([*unshare, "true"], capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            os.environ[IN_NAMESPACE] = "yes"
            os.execvp("unshare", [*unshare, sys.executable, *sys.argv])
        os.environ[NO_NAMESPACE] = tried.stderr.strip()
    main()
