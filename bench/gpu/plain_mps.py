# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's MPS without gpumux, for what is compared with it."""
import contextlib
import os
import shutil
import signal
import subprocess
import time

MPS_CONTROL = "nvidia-cuda-mps-control"
START_S = 30


class NotReady(Exception):
    """Its control daemon takes no connections."""


@contextlib.contextmanager
def plain_mps(environment, folder, log_path):
    """Runs a control daemon. Yields the variables that its clients get. `folder` is made, and goes with it."""
    own = {f"CUDA_MPS_{kind}_DIRECTORY": os.path.join(folder, kind.lower()) for kind in ("PIPE", "LOG")}
    for path in own.values():
        os.makedirs(path)
    environment = dict(environment, **own)
    with open(log_path, "ab") as log:
        control = subprocess.Popen([MPS_CONTROL, "-f"], env=environment, stdin=subprocess.DEVNULL, stdout=log,
                                   stderr=log, start_new_session=True)
    try:
        deadline = time.monotonic() + START_S
        while not os.path.exists(os.path.join(folder, "pipe", "control")):
            if control.poll() is not None or time.monotonic() > deadline:
                raise NotReady(f"{MPS_CONTROL} takes no connections; {log_path} has what it said")
            time.sleep(0.01)
        yield own
    finally:
        # It ends its servers, which a signal to it does not.
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([MPS_CONTROL], input=b"quit\n", env=environment, check=False, timeout=START_S,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(control.pid, signal.SIGKILL)
        control.wait()
        shutil.rmtree(folder, ignore_errors=True)
