# SPDX-License-Identifier: Apache-2.0
"""How many small PyTorch operations a second: bound by what the host does for each launch."""
import time

import common
from torch_common import prepare

import torch


def main():
    arguments = common.options(windows=12, operations=20000)
    device = prepare(arguments)
    x = torch.zeros(256, device=device)
    for _ in range(arguments.operations // 2):
        x.add_(1)
    torch.cuda.synchronize()
    common.meet(arguments)
    rates = []
    for _ in range(arguments.windows):
        begin = time.perf_counter()
        for _ in range(arguments.operations):
            x.add_(1)
        torch.cuda.synchronize()
        rates.append(arguments.operations / (time.perf_counter() - begin))
    rates.sort()
    common.result(median_per_s=rates[len(rates) // 2], best_per_s=rates[-1], rates=rates)


if __name__ == "__main__":
    main()
