# SPDX-License-Identifier: Apache-2.0
"""The one exception of this package."""

from __future__ import annotations

from typing import Any, Tuple


class Error(Exception):
    """A call has failed. `str(error)` says what happened, why, and what to do.

    `code` is one of the codes of docs/api.md, "Errors". This package uses the same codes for what it finds out itself:
    `unavailable` (no daemon answers), `denied`, `timeout`, `invalid`, and `internal` (an answer makes no sense).
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> Tuple[Any, ...]:
        # pickle needs it: concurrent.futures passes exceptions from process to process.
        return Error, (self.code, str(self))
