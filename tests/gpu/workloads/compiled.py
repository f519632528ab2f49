# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT through torch.compile: Triton kernels, compiled by worker processes."""
import common
from torch_common import Laden, Training, prepare

import small_gpt
import torch
import torch._inductor.config


def main():
    arguments = common.options(ballast=0.0)
    # No choice of kernels by timing them.
    if hasattr(torch._inductor.config, "deterministic"):
        torch._inductor.config.deterministic = True
    device = prepare(arguments)
    model = small_gpt.SmallGpt(layers=2, width=256).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = small_gpt.batches(4, 16, 2048, 128, device, arguments.seed)
    compiled = torch.compile(small_gpt.loss)
    training = Training(model, data, compiled, optimizer)
    common.run(Laden(training, arguments.ballast, arguments.seed, [device]), arguments)


if __name__ == "__main__":
    main()
