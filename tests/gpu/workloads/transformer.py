# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT with AdamW."""
import common
from torch_common import Laden, Training, prepare

import small_gpt
import torch


def main():
    arguments = common.options(width=512, layers=6, length=128, ballast=0.0)
    device = prepare(arguments)
    model = small_gpt.SmallGpt(width=arguments.width, heads=arguments.width // 64, layers=arguments.layers,
                               length=arguments.length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = small_gpt.batches(4, 16, 2048, arguments.length, device, arguments.seed)
    training = Training(model, data, small_gpt.loss, optimizer)
    common.run(Laden(training, arguments.ballast, arguments.seed, [device]), arguments)


if __name__ == "__main__":
    main()
