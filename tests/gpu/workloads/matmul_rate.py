# SPDX-License-Identifier: Apache-2.0
"""How many matrix products a second: as many as can be, waited for after every --sync-every. The products of the first
--lead seconds do not count. With --window it works in each --turns-th window of so many seconds only, of the clock
that all programs share: what some of them get done can then be compared with what others do, although the machine's
speed changes from one second to the next."""
import math
import time

import common
from torch_common import prepare

import torch


def main():
    arguments = common.options(side=1024, sync_every=10, lead=0.0, window=0.0, turn=0, turns=1)
    device = prepare(arguments)
    a = torch.randn(arguments.side, arguments.side, device=device, dtype=torch.bfloat16)
    b = torch.empty_like(a)

    def step():
        for _ in range(arguments.sync_every):
            torch.mm(a, a, out=b)
        torch.cuda.synchronize()

    for _ in range(10):
        step()
    common.meet(arguments)
    started = time.monotonic()
    while time.monotonic() - started < arguments.lead:
        step()
    begin = time.monotonic()
    worked, steps = [], 0  # [its number, products a second] of each window
    while time.monotonic() - begin < arguments.seconds:
        window = int(time.monotonic() / arguments.window) if arguments.window else 0
        if window % arguments.turns != arguments.turn:
            time.sleep(max(0, (window + 1) * arguments.window - time.monotonic()))
            continue
        since, done = time.monotonic(), 0
        until = min(begin + arguments.seconds, (window + 1) * arguments.window if arguments.window else math.inf)
        while time.monotonic() < until:
            step()
            done += 1
        worked.append([window, done * arguments.sync_every / (time.monotonic() - since)])
        steps += done
    per_s = sum(rate for _, rate in worked) / max(1, len(worked))
    common.result(per_s=per_s, steps=steps, windows=worked, steady_s=time.monotonic() - begin)


if __name__ == "__main__":
    main()
