# SPDX-License-Identifier: Apache-2.0
"""Randomness that can be had again: every test that uses any says its seed, and GPUMUX_TEST_SEED sets it."""

import os
import random
import sys
import time


def seeded(name):
    """A generator, its seed printed with how to have the same again. Processes still interleave as they like."""
    text = os.environ.get("GPUMUX_TEST_SEED")
    seed = int(text) if text else time.time_ns() & 0xFFFFFFFF
    again = f"GPUMUX_TEST_SEED={seed} {' '.join([sys.executable] + sys.argv)}"
    print(f"{name}: seed {seed} ({again})", file=sys.stderr, flush=True)
    return random.Random(seed)


def amount(variable, default):
    """How much of something a campaign does: an environment variable, or the short run's default."""
    return int(os.environ.get(variable) or default)
