# SPDX-License-Identifier: Apache-2.0
"""Where the daemon's socket is, and a connection to it. The rule is the command's (src/os/runtime_dir.h)."""

from __future__ import annotations

import http.client
import os
import socket
import stat
from typing import Optional

from .error import Error

SYSTEM_RUNTIME_DIR = "/run/gpumux"
TENANT_SOCKET = "tenants/tenants.sock"


def _look(path: str, follow: bool = False) -> Optional[os.stat_result]:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (OSError, ValueError):
        return None


def _has_socket(runtime_dir: str) -> bool:
    found = _look(os.path.join(runtime_dir, TENANT_SOCKET), follow=True)
    return found is not None and stat.S_ISSOCK(found.st_mode)


def _variable(name: str) -> str:
    """Empty in a process that has more rights than its caller."""
    privileged = os.getuid() != os.geteuid() or os.getgid() != os.getegid()
    return "" if privileged else os.environ.get(name, "")


def _is_own(runtime_dir: str) -> bool:
    there = _look(runtime_dir)
    return (there is not None and stat.S_ISDIR(there.st_mode) and there.st_uid == os.geteuid()
            and not there.st_mode & 0o077)


def find_runtime_dir() -> str:
    """The folder of the daemon's sockets. The user's own folder must be the user's alone."""
    named = _variable("GPUMUX_RUNTIME_DIR")
    if named:
        return named
    if _has_socket(SYSTEM_RUNTIME_DIR):
        return SYSTEM_RUNTIME_DIR
    user = os.geteuid()
    tmp = f"/tmp/gpumux-{user}"
    xdg = _variable("XDG_RUNTIME_DIR")
    found = _look(xdg) if xdg.startswith("/") else None
    is_own = found is not None and stat.S_ISDIR(found.st_mode) and found.st_uid == user
    runtime_dir = f"{xdg}/gpumux" if is_own else tmp
    if _look(runtime_dir) is not None and not _is_own(runtime_dir):
        raise Error("denied", f"{runtime_dir} is not a directory that only user {user} can use; remove it, or name "
                              "another in GPUMUX_RUNTIME_DIR")
    for place in (runtime_dir, tmp):
        if not _is_own(place):
            continue
        if _has_socket(place):
            return place
        try:
            other = os.readlink(f"{place}/elsewhere")
        except OSError:
            continue
        if (other == SYSTEM_RUNTIME_DIR or _is_own(other)) and _has_socket(other):
            return other
    return runtime_dir


def api_socket(runtime_dir: str) -> str:
    """Root's own socket if the caller is root and there is one."""
    roots = os.path.join(runtime_dir, "root/api.sock")
    return roots if os.geteuid() == 0 and _look(roots) else f"{runtime_dir}/api.sock"


def _starts_by_itself(runtime_dir: str) -> bool:
    """Whether `gpumux run` and `gpumux submit` start a daemon there: they do nowhere else."""
    try:
        return runtime_dir == find_runtime_dir()
    except Error:
        return False


def _no_daemon(runtime_dir: str, path: str, error: OSError) -> Error:
    if _has_socket(runtime_dir) and not _look(f"{runtime_dir}/api.sock"):
        return Error("unavailable", "the gpumux daemon is the host's, and its API is not in this container "
                                    f"({runtime_dir} has the tenants' socket alone): programs here use GPUs; ask for "
                                    "status and jobs on the host")
    seen = "no daemon answers at" if isinstance(error, ConnectionRefusedError) else "there is no socket"
    todo = ("the commands `run` and `submit` start one for you" if _starts_by_itself(runtime_dir) else
            "start gpumuxd, or name the folder of one that runs")
    return Error("unavailable", f"no gpumux daemon is running ({seen} {path}): {todo}")


class Connection(http.client.HTTPConnection):
    """A connection to the daemon in `runtime_dir`. The time limit is for each wait for bytes."""

    def __init__(self, runtime_dir: str, timeout: float) -> None:
        super().__init__("gpumux", timeout=timeout)
        self.runtime_dir = runtime_dir
        self.path = api_socket(runtime_dir)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(self.path)
        except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError) as error:
            raise _no_daemon(self.runtime_dir, self.path, error) from None
        except PermissionError:
            raise Error("denied", f"you (user {os.geteuid()}) may not connect to the gpumux daemon at {self.path}: ask "
                                  "its owner to let you in (allow_users or allow_groups in its configuration)"
                        ) from None
        except (BlockingIOError, socket.timeout):
            raise Error("timeout", f"the gpumux daemon at {self.path} accepts no connections: it hangs or is "
                                   "overloaded") from None
        except OSError as error:
            raise Error("invalid", f"cannot connect to the gpumux daemon at {self.path}: {error}; name another folder "
                                   "in GPUMUX_RUNTIME_DIR") from None
