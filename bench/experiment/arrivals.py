# SPDX-License-Identifier: Apache-2.0
"""When requests come: an open loop, so a slow answer keeps no later request from coming.

A client that asks again only after it has been answered would hide exactly the waiting that sharing causes.
"""

import random


def poisson(rate, seconds, seed):
    """Times in nanoseconds from 0 on, of a Poisson process of `rate` a second. The same seed gives the same times."""
    chance = random.Random(f"arrivals {seed}")
    times = []
    at = chance.expovariate(rate)
    while at < seconds:
        times.append(round(at * 1e9))
        at += chance.expovariate(rate)
    return times
