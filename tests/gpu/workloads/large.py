# SPDX-License-Identifier: Apache-2.0
"""Fills a part of the GPU and works on all of it: --share of its memory (or --gib), of which --dirty is written to in
turns and the rest only read, as weights are. Every step reads or writes another GiB and multiplies matrices; the digest
depends on every word."""
import common
from torch_common import prepare

import torch

PIECE = 1 << 28  # 32-bit words of one tensor: a GiB


class Large:
    def __init__(self, arguments, device):
        total = torch.cuda.get_device_properties(device).total_memory
        count = max(2, int(arguments.gib or arguments.share * total / 2**30))
        generator = torch.Generator(device).manual_seed(arguments.seed)
        self.pieces = [torch.randint(-2**31, 2**31 - 1, (PIECE,), dtype=torch.int32, device=device, generator=generator)
                       for _ in range(count)]
        self.written = max(1, round(arguments.dirty * count))
        self.a = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16, generator=generator)
        self.b = torch.randn(4096, 4096, device=device, dtype=torch.bfloat16, generator=generator) / 64
        self.sum = torch.zeros((), dtype=torch.int64, device=device)

    def step(self, i):
        self.pieces[i % self.written].mul_(5).add_(i)
        self.sum += self.pieces[i % len(self.pieces)][::16].sum(dtype=torch.int64)
        for _ in range(20):
            self.a = torch.tanh(self.a @ self.b)

    def wait(self):
        torch.cuda.synchronize()

    def digest(self):
        sums = [self.sum.item()]
        for piece in self.pieces:
            # Sensitive to order as well: each word is weighed by its place.
            for half in piece.view(8, -1):
                weights = torch.arange(half.numel(), device=half.device, dtype=torch.int32).mul_(2).add_(1)
                sums.append((half * weights).sum(dtype=torch.int64).item())
        data = torch.tensor(sums, dtype=torch.int64).numpy().tobytes()
        return data + self.a.view(torch.int16).cpu().numpy().tobytes()

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated()


def main():
    arguments = common.options(share=0.6, gib=0, dirty=0.3)
    common.run(Large(arguments, prepare(arguments)), arguments)


if __name__ == "__main__":
    main()
