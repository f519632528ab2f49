# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition: asked again and again until a deadline, never a sleep that hopes.

Deadlines are generous, for the machine may be slow and shared: they bound how long a failure takes, and say nothing
of how fast things are.
"""

import time

POLL = 0.004
# The deadline of a wait that only ends a test that hangs: far more than a machine with a load of ten for each processor
# takes, and far less than ctest's own net.
HANG = 180


class Timeout(AssertionError):
    """A condition did not come true in time."""


def wait_until(condition, timeout, what, poll=POLL):
    """The condition's first true value. `what` says in words what was waited for; a callable is asked when it fails."""
    deadline = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Timeout(f"not within {timeout} s: {what() if callable(what) else what}")
        time.sleep(poll)
