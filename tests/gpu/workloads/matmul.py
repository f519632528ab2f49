# SPDX-License-Identifier: Apache-2.0
"""Keeps the GPU busy without a gap: the next product is always submitted before the last one is done."""
import time

import common
from torch_common import prepare

import torch


def main():
    arguments = common.options(side=4096)
    device = prepare(arguments)
    a = torch.randn(arguments.side, arguments.side, device=device)
    b = torch.empty_like(a)
    torch.mm(a, a, out=b)
    torch.cuda.synchronize()
    common.meet(arguments)
    begin = time.monotonic_ns()
    pending = []
    products = 0
    first_done = None
    while time.monotonic_ns() - begin < arguments.seconds * 1e9:
        torch.mm(a, a, out=b)
        products += 1
        done = torch.cuda.Event()
        done.record()
        pending.append(done)
        if len(pending) > 4:
            pending.pop(0).synchronize()
            first_done = first_done or time.monotonic_ns()
    torch.cuda.synchronize()
    end = time.monotonic_ns()
    common.result(products=products, start_ns=begin, first_done_ns=first_done, end_ns=end, steady_s=(end - begin) / 1e9)


if __name__ == "__main__":
    main()
