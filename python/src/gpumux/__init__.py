# SPDX-License-Identifier: Apache-2.0
"""gpumux from Python: the state of GPUs, and jobs.

    import gpumux
    job = gpumux.submit(["python", "train.py"], gpus=2, mem="20G")
    for line in gpumux.logs(job, follow=True):
        print(line, end="")
    print(gpumux.wait(job)["outcome"])

The functions ask the daemon that the command `gpumux` finds. Client(runtime_dir) asks another one. Answers are typed
dictionaries. A call that fails raises gpumux.Error.
"""

from __future__ import annotations

from typing import Any

from . import notebook
from .answers_gen import (ChangedGpu, ChangedJob, ChangedTenant, Daemon, Gpu, Job, Queue, Report, ReportRow,
                          Seat, SeatMemory, Status, Tenant, TenantSeat)
from .client import Client, JobId
from .error import Error
from .version import VERSION

__version__ = VERSION

_client = Client()
daemon = _client.daemon
status = _client.status
tenants = _client.tenants
report = _client.report
set = _client.set
set_program = _client.set_program
submit = _client.submit
jobs = _client.jobs
job = _client.job
wait = _client.wait
wait_all = _client.wait_all
logs = _client.logs
cancel = _client.cancel
hold = _client.hold
release = _client.release
suspend = _client.suspend
resume = _client.resume
change = _client.change
queue = _client.queue
call = _client.call

__all__ = ["ChangedGpu", "ChangedJob", "ChangedTenant", "Client", "Daemon", "Error", "Gpu", "Job", "JobId", "Queue",
           "Report", "ReportRow", "Seat", "SeatMemory", "Status", "Tenant", "TenantSeat", "call", "cancel", "change",
           "daemon", "hold", "job", "jobs", "logs", "queue", "release", "report", "resume", "set", "set_program",
           "status", "submit", "suspend", "tenants", "wait", "wait_all"]


def load_ipython_extension(shell: Any) -> None:
    """IPython calls this for `%load_ext gpumux`: then `%gpumux` shows the seats of the kernel."""
    notebook.load(shell, _client.status)
