# SPDX-License-Identifier: Apache-2.0
"""Fills a part of the GPU and works on all of it: --share of its memory (or --gib), of which --dirty is written to in
turns and the rest only read, as weights are. Every step reads or writes another GiB and multiplies matrices; the digest
depends on every word."""
import common
from torch_common import Pieces, prepare

import torch


class Large:
    def __init__(self, arguments, device):
        total = torch.cuda.get_device_properties(device).total_memory
        count = max(2, int(arguments.gib or arguments.share * total / 2**30))
        self.pieces = Pieces(device, count, arguments.seed)
        self.written = max(1, round(arguments.dirty * count))
        generator = torch.Generator(device).manual_seed(arguments.seed)
        self.a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16, generator=generator)
        self.b = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16, generator=generator) / 64
        self.sum = torch.zeros((), dtype=torch.int64, device=device)

    def step(self, i):
        self.pieces.write(i % self.written, i)
        self.sum += self.pieces.all[i % len(self.pieces.all)][::16].sum(dtype=torch.int64)
        for _ in range(20):
            self.a = torch.tanh(self.a @ self.b)

    def wait(self):
        torch.cuda.synchronize()

    def digest(self):
        sums = [self.sum.item()] + self.pieces.sums()
        data = torch.tensor(sums, dtype=torch.int64).numpy().tobytes()
        return data + self.a.view(torch.int16).cpu().numpy().tobytes()

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated()


def main():
    arguments = common.options(share=0.6, gib=0, dirty=0.3)
    common.run(Large(arguments, prepare(arguments)), arguments)


if __name__ == "__main__":
    main()
