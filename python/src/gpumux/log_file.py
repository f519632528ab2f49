# SPDX-License-Identifier: Apache-2.0
"""The log of a job: a file of the job's owner, which grows while the job runs."""

from __future__ import annotations

import collections
import os
import stat
from typing import BinaryIO, Iterator, Optional

from .error import Error

BLOCK = 64 << 10


def _open(path: str) -> Optional[BinaryIO]:
    """None: there is no file yet."""
    try:
        # A pipe with the log's name must not make the reader wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Error("denied" if isinstance(error, PermissionError) else "internal",
                    f"cannot read the log {path}: {error.strerror}") from None
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Error("unsupported", f"{path} is not a regular file, so the job's output cannot be read from it")
    return file


class LogFile:
    """A log, read from a place to its present end again and again. Lines are text with their ends."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: Optional[BinaryIO] = None
        self._unfinished = b""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = None

    def is_there(self) -> bool:
        if self._file is None:
            self._file = _open(self._path)
        return self._file is not None

    def last_lines(self, count: int) -> Iterator[str]:
        """The last lines that there are. The log goes on from here."""
        if self.is_there():
            assert self._file is not None
            lines = collections.deque(self._file, maxlen=count)
            if lines and not lines[-1].endswith(b"\n"):
                self._unfinished = lines.pop()
            yield from map(_text, lines)

    def new_lines(self) -> Iterator[str]:
        """The lines that have come since the last call. A log that was emptied or replaced is read from its start."""
        if self._has_begun_anew():
            self.close()
            yield from self.rest()
        if not self.is_there():
            return
        assert self._file is not None
        while True:
            block = self._file.read(BLOCK)
            if not block:
                return
            *lines, self._unfinished = (self._unfinished + block).split(b"\n")
            for line in lines:
                yield _text(line + b"\n")

    def rest(self) -> Iterator[str]:
        """The last line, if it has no end."""
        unfinished, self._unfinished = self._unfinished, b""
        if unfinished:
            yield _text(unfinished)

    def _has_begun_anew(self) -> bool:
        if self._file is None:
            return False
        opened = os.fstat(self._file.fileno())
        try:
            named = os.stat(self._path)
        except OSError:
            return False
        is_other = (named.st_dev, named.st_ino) != (opened.st_dev, opened.st_ino)
        return is_other or opened.st_size < self._file.tell()


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
