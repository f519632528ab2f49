# SPDX-License-Identifier: Apache-2.0
"""The daemon's HTTP API as calls: docs/api.md says what each answer means.

One connection for each call, so that a daemon that restarts between two calls is not noticed. A Client has no state but
where it asks: it may be used by several threads, and across fork.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import http.client
import json
import os
import re
import secrets
import socket
import time
import urllib.parse
from typing import (Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar, Union,
                    cast)

from . import answers_gen as answers
from .connection import Connection, find_runtime_dir
from .error import Error
from .log_file import LogFile
from .version import VERSION

Answer = TypeVar("Answer")
JobId = Union[int, str]  # 17, "17", or "17_3": element 3 of array 17

# How long wait() and logs() bear that the daemon is away: as the command.
PATIENCE_S = 600.0
# How long submit() asks again for an answer: as the command.
SUBMIT_PATIENCE_S = 60.0
# Between two looks for a daemon that is away.
LOOK_AGAIN_S = 0.2
# The daemon waits no longer for a job in one request.
LONGEST_WAIT_S = 30.0
# Between two looks at a log that is followed.
FOLLOW_S = 0.1
# The jobs of one request to change them: their ids fit into its header.
CHANGED_AT_ONCE = 100
# The most jobs and tenants of a page.
PAGE = 1000


def _decoded(value: Dict[str, Any]) -> Any:
    """Text that is not UTF-8 becomes a string as Python has it for files' names."""
    if value.keys() != {"base64"}:
        return value
    try:
        return os.fsdecode(base64.b64decode(value["base64"], validate=True))
    except (binascii.Error, TypeError):
        return value


def _encoded(text: Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]) -> Any:
    """The way back: a string, or its bytes in base64 if they are not UTF-8."""
    raw = os.fsencode(text)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(raw).decode("ascii")}


def parse_memory(text: Union[int, str]) -> int:
    """Bytes of "20G" or "800MiB", as the command takes them; a number is in bytes."""
    if isinstance(text, int):
        return text
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text, re.IGNORECASE | re.ASCII)
    if found is None or text[-1:].isdigit():
        raise Error("invalid", f"'{text}' is no amount of memory: write 20G or 800M, or a number of bytes")
    return int(float(found[1]) * 1024 ** " KMGT".index(found[2].upper() or " ") + 0.5)


def _check_id(job: JobId) -> str:
    if not re.fullmatch(r"\d+(_\d+)?", str(job), re.ASCII):
        raise Error("invalid", f"'{job}' is no job's id: write 17, or 17_3 for element 3 of array 17")
    return str(job)


def _unix_ns(moment: datetime.datetime) -> int:
    """A time without a zone is local."""
    return int(moment.timestamp() * 1_000_000) * 1000


def _umask() -> int:
    """Asked of the kernel: os.umask() can only be asked by changing it, in all threads."""
    with open("/proc/self/status", encoding="utf-8", errors="replace") as file:
        return next(int(line.split()[1], 8) for line in file if line.startswith("Umask:"))


class Client:
    """The daemon whose sockets are in `runtime_dir`; without it, the one that the command finds.

    `timeout`: seconds that the daemon may be silent within one call.
    """

    def __init__(self, runtime_dir: Optional[str] = None, timeout: float = 10.0) -> None:
        self._runtime_dir = runtime_dir
        self._timeout = timeout

    def call(self, method: str, path: str, body: Any = None, *, silence: float = 0.0, **query: Any) -> Any:
        """One request, and the JSON of its answer. A parameter that is None is left out of the query.

        `silence`: seconds that the answer may take in addition to the time limit.
        """
        given = {key: value for key, value in query.items() if value is not None}
        target = path + ("?" + urllib.parse.urlencode(given) if given else "")
        connection = Connection(self._runtime_dir or find_runtime_dir(), self._timeout + silence)
        try:
            connection.connect()
            status, text = _exchange(connection, method, target, body)
        except socket.timeout:
            raise Error("timeout", f"the gpumux daemon at {connection.path} did not answer in time: it hangs or is "
                                   "overloaded; see its log") from None
        except (OSError, http.client.HTTPException):
            raise Error("unavailable", f"the gpumux daemon at {connection.path} closed the connection before its "
                                       "answer was complete: it was stopped or restarted; try again") from None
        finally:
            connection.close()
        try:
            answer = json.loads(text, object_hook=_decoded)
        except ValueError:
            raise Error("internal", f"the answer of {method} {path} is not JSON") from None
        if status < 300:
            return answer
        error = answer.get("error") if isinstance(answer, dict) else None
        if not isinstance(error, dict):
            raise Error("internal", f"the daemon answered with HTTP status {status} and no explanation")
        raise Error(str(error.get("code")), str(error.get("message")))

    # ---- GPUs and programs

    def daemon(self) -> answers.Daemon:
        """The daemon: its version, its user, its driver."""
        return cast(answers.Daemon, self.call("GET", "/v1/daemon"))

    def status(self) -> answers.Status:
        """The GPUs with their seats, and host memory."""
        return cast(answers.Status, self.call("GET", "/v1/status"))

    def tenants(self) -> List[answers.Tenant]:
        """The programs that have seats, each with its seats."""
        return list(self._pages("/v1/tenants", "tenants", lambda last: {"beyond": last["tenant"]}))

    def report(self, by: str = "user", since: Optional[datetime.datetime] = None,
               until: Optional[datetime.datetime] = None, user: Optional[str] = None) -> answers.Report:
        """The use of GPUs so far. `by`: user, job, pod or program."""
        return cast(answers.Report, self.call(
            "GET", "/v1/report", by=by, since_unix_ns=None if since is None else _unix_ns(since),
            until_unix_ns=None if until is None else _unix_ns(until), user=user))

    def set(self, gpu: Union[int, str] = "all", *, save: bool = False,
            **settings: Union[bool, str]) -> List[answers.ChangedGpu]:
        """Changes settings of one GPU, or of all: set(0, quantum="100ms"). docs/configuration.md has all of them."""
        body: Dict[str, Union[bool, str]] = {**settings, **({"save": True} if save else {})}
        changed = self.call("PATCH", f"/v1/gpus/{urllib.parse.quote(str(gpu), safe='')}", body)
        return cast(List[answers.ChangedGpu], changed["gpus"])

    def set_program(self, pid: int, **standing: Union[int, str]) -> answers.ChangedTenant:
        """Changes priority, share and max_share of a program on all its GPUs. "default": as it started."""
        for tenant in self.tenants():
            if tenant["pid"] == pid:
                return cast(answers.ChangedTenant, self.call("PATCH", f"/v1/tenants/{tenant['tenant']}", standing))
        raise Error("not_found", f"process {pid} has no seat: it has used no GPU under gpumux")

    # ---- jobs

    def submit(self, arguments: Sequence[Union[str, bytes, "os.PathLike[str]"]], *, gpus: Optional[int] = None,
               gpu_ids: Optional[Sequence[int]] = None, mem: Union[int, str, None] = None,
               time_limit: Optional[float] = None, on_time_limit: Optional[str] = None,
               priority: Optional[int] = None, name: Optional[str] = None, setup_command: Optional[str] = None,
               output: Optional[str] = None, error_output: Optional[str] = None, append: bool = False,
               exclusive: bool = False, after: Iterable[JobId] = (), after_any: Iterable[JobId] = (),
               array: Optional[str] = None, directory: Optional[str] = None,
               environment: Optional[Mapping[str, str]] = None, begin: Optional[datetime.datetime] = None,
               requeue: bool = False, held: bool = False) -> int:
        """Hands in a job, once, and returns its id: submit(["python", "train.py"], gpus=2, mem="20G").

        The options are those of `gpumux submit`. The job runs in `directory` (this process's) with `environment` (this
        process's). `time_limit` is in seconds. `after`: jobs that must have ended well; `after_any`: that must have
        ended. `array`: "0-9" submits ten jobs; the id is the array's, and of its first job.
        """
        if isinstance(arguments, (str, bytes)):
            raise TypeError("arguments is a list of words: no shell takes a line apart")
        if isinstance(time_limit, str):
            raise TypeError("time_limit is a number of seconds")
        self.daemon()  # a daemon that is not there at all is told at once
        here = os.getcwd()
        wishes: Dict[str, Any] = {
            "gpus": gpus, "gpu_ids": None if gpu_ids is None else list(gpu_ids),
            "memory_bytes": None if mem is None else parse_memory(mem),
            "time_limit_ns": None if time_limit is None else round(time_limit * 1e9), "on_time_limit": on_time_limit,
            "priority": priority, "array": array, "begin_unix_ns": None if begin is None else _unix_ns(begin)}
        texts = {"name": name, "setup_command": setup_command, "output": output, "error_output": error_output}
        body = {
            **{key: value for key, value in wishes.items() if value is not None},
            **{key: _encoded(value) for key, value in texts.items() if value is not None},
            "arguments": [_encoded(argument) for argument in arguments],
            "directory": _encoded(here if directory is None else os.path.join(here, directory)),
            "environment": [_encoded(f"{key}={value}")
                            for key, value in (os.environ if environment is None else environment).items()],
            "append": append, "exclusive": exclusive, "requeue": requeue, "held": held, "umask": _umask(),
            "nice": os.getpriority(os.PRIO_PROCESS, 0),
            "after": [{"job": self.job(job)["id"], "need": need}
                      for need, jobs in (("ok", after), ("any", after_any)) for job in jobs],
            # By it a submission that is sent again is the same.
            "token": secrets.token_hex(16)}
        submitted = self._until_answered(
            lambda: cast(answers.Submitted, self.call("POST", "/v1/jobs", body)), SUBMIT_PATIENCE_S)
        return submitted["id"]

    def jobs(self, state: str = "unfinished", *, user: Optional[str] = None, array: Optional[int] = None,
             outcome: Optional[str] = None, order: Optional[str] = None,
             ended_since: Optional[datetime.datetime] = None, limit: Optional[int] = None) -> List[answers.Job]:
        """All jobs that match, at most `limit`. `state`: unfinished, done or all."""
        def beyond(last: Any) -> Dict[str, Any]:
            return {"beyond": last["id"], **({"beyond_ended": last["ended_unix_ns"]} if order == "ended" else {})}

        since = None if ended_since is None else _unix_ns(ended_since)
        return list(self._pages("/v1/jobs", "jobs", beyond, limit, state=state, user=user, array=array,
                                outcome=outcome, order=order, ended_since_unix_ns=since))

    def job(self, job: JobId, *, environment: bool = False) -> answers.Job:
        """One job."""
        return cast(answers.Job, self.call("GET", f"/v1/jobs/{_check_id(job)}", environment=1 if environment else None))

    def wait(self, job: JobId, timeout: Optional[float] = None) -> answers.Job:
        """Returns the job when it is done. Error `timeout`: it is not done within `timeout` seconds.

        A daemon that restarts is waited for. An array's id names all of its jobs: wait_all() takes it.
        """
        return self._wait(self._one(job), None if timeout is None else time.monotonic() + timeout)

    def wait_all(self, *jobs: JobId, timeout: Optional[float] = None) -> List[answers.Job]:
        """As wait(), for several jobs. An array's id stands for all of its jobs."""
        deadline = None if timeout is None else time.monotonic() + timeout
        return [self._wait(job, deadline) for named in jobs for job in self._named(named)]

    def logs(self, job: JobId, *, follow: bool = False, tail: Optional[int] = None) -> Iterator[str]:
        """The lines that a job has printed, with their ends. `tail`: begins with the last so many.

        With `follow` it goes on until the job is done. The log is a file of the job's owner, which this process reads.
        """
        found = self._one(job)
        if not found.get("log"):
            if "arguments" not in found:
                raise Error("denied", f"job {job} is {found['user'] or 'another user'}'s: only that user and "
                                      "administrators may see its log")
            raise Error("not_found", f"job {job} has no log")
        if not follow and (not found["started_unix_ns"] or not os.path.lexists(found["log"])):
            raise Error("not_found", f"job {job} has no log yet: it is {found['state']}")
        return self._lines(found, follow, tail)

    def cancel(self, *jobs: JobId) -> List[answers.ChangedJob]:
        """Tells jobs to end. They are done a moment later: wait() tells."""
        return self.change(*jobs, cancel=True)

    def hold(self, *jobs: JobId) -> List[answers.ChangedJob]:
        """Jobs that wait do not start until they are released."""
        return self.change(*jobs, held=True)

    def release(self, *jobs: JobId) -> List[answers.ChangedJob]:
        """Lets held jobs start."""
        return self.change(*jobs, held=False)

    def suspend(self, *jobs: JobId) -> List[answers.ChangedJob]:
        """Running jobs leave their GPUs until they are resumed."""
        return self.change(*jobs, suspended=True)

    def resume(self, *jobs: JobId) -> List[answers.ChangedJob]:
        """Lets suspended jobs go on."""
        return self.change(*jobs, suspended=False)

    def change(self, *jobs: JobId, **changes: Any) -> List[answers.ChangedJob]:
        """Changes jobs as PATCH /v1/jobs does: change(17, priority=5).

        If the daemon refuses a job, its Error is raised after all jobs were tried.
        """
        ids = [_check_id(job) for job in jobs]
        changed: List[answers.ChangedJob] = []
        for begin in range(0, len(ids), CHANGED_AT_ONCE):
            which = ",".join(ids[begin:begin + CHANGED_AT_ONCE])
            changed += self.call("PATCH", f"/v1/jobs/{which}", changes)["jobs"]
        refused = [(each["id"], each["error"]) for each in changed if "error" in each]
        if refused:
            raise Error(refused[0][1]["code"], "; ".join(f"job {job}: {error['message']}" for job, error in refused))
        return changed

    def queue(self) -> answers.Queue:
        """The job queue as a whole."""
        return cast(answers.Queue, self.call("GET", "/v1/queue"))

    # ---- parts

    def _pages(self, path: str, key: str, beyond: Callable[[Any], Dict[str, Any]], limit: Optional[int] = None,
               **query: Any) -> Iterator[Any]:
        left = limit
        while left is None or left > 0:
            page = self.call("GET", path, limit=PAGE if left is None else min(left, PAGE), **query)
            yield from page[key]
            if not page["more"] or not page[key]:
                return
            left = None if left is None else left - len(page[key])
            query.update(beyond(page[key][-1]))

    def _until_answered(self, ask: Callable[[], Answer], patience: float) -> Answer:
        """Asks again while no daemon answers, for `patience` seconds."""
        deadline = time.monotonic() + patience
        while True:
            try:
                return ask()
            except Error as error:
                if error.code not in ("unavailable", "timeout") or time.monotonic() >= deadline:
                    raise
            time.sleep(LOOK_AGAIN_S)

    def _named(self, job: JobId) -> List[answers.Job]:
        """The jobs that an id names: one, or all elements of an array."""
        found = self.job(job)
        if "_" in str(job) or found.get("array") != found["id"]:
            return [found]
        # The daemon forgets jobs that are done: some elements may be gone.
        return self.jobs("all", array=found["id"]) or [found]

    def _one(self, job: JobId) -> answers.Job:
        named = self._named(job)
        if len(named) > 1:
            labels = ", ".join(f"{each['array']}_{each['array_index']}" for each in named[:3])
            raise Error("invalid", f"job {job} is an array of {len(named)} jobs: name one of them ({labels}, ...)")
        return named[0]

    def _look(self, job: answers.Job, seconds: float) -> answers.Job:
        """The job when it is done, or after so many seconds."""
        return self._until_answered(
            lambda: cast(answers.Job, self.call("GET", f"/v1/jobs/{job['id']}/wait", silence=seconds,
                                                timeout_ns=round(seconds * 1e9))), PATIENCE_S)

    def _wait(self, job: answers.Job, deadline: Optional[float]) -> answers.Job:
        while job["state"] != "done":
            left = LONGEST_WAIT_S if deadline is None else min(LONGEST_WAIT_S, deadline - time.monotonic())
            if left <= 0:
                raise Error("timeout", f"job {job['id']} is not done in time: it is {job['state']}")
            job = self._look(job, left)
        return job

    def _lines(self, job: answers.Job, follow: bool, tail: Optional[int]) -> Iterator[str]:
        log = LogFile(job["log"])
        try:
            if tail is not None and job["started_unix_ns"]:
                yield from log.last_lines(tail)
            while True:
                # Looked at before the log: what was written before the end is then shown for certain.
                is_last = job["state"] == "done" or not follow
                # A file in the place of the log of a job that has not begun is another job's.
                if job["started_unix_ns"]:
                    yield from log.new_lines()
                if is_last:
                    yield from log.rest()
                    return
                job = self._look(job, FOLLOW_S)
        finally:
            log.close()


def _exchange(connection: Connection, method: str, target: str, body: Any) -> Tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"User-Agent": f"gpumux-python/{VERSION}", "Connection": "close"}
    if data is not None:
        headers["Content-Type"] = "application/json"
    try:
        connection.request(method, target, body=data, headers=headers)
    except (BrokenPipeError, ConnectionResetError):
        # A daemon that turns a client away answers before it is asked, and closes.
        response = http.client.HTTPResponse(connection.sock, method=method)
        response.begin()
    else:
        response = connection.getresponse()
    return response.status, response.read().decode("utf-8", "surrogateescape")
