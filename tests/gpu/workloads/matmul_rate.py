# SPDX-License-Identifier: Apache-2.0
"""How many matrix products a second: as many as can be, waited for after every --sync-every. What is done in the first
--lead seconds does not count."""
import time

import common
from torch_common import prepare

import torch


def main():
    arguments = common.options(side=1024, sync_every=10, lead=0.0)
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
    steps = 0
    while time.monotonic() - begin < arguments.seconds:
        step()
        steps += 1
    end = time.monotonic()
    common.result(per_s=steps * arguments.sync_every / (end - begin), steps=steps, steady_s=end - begin)


if __name__ == "__main__":
    main()
