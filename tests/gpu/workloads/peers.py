# SPDX-License-Identifier: Apache-2.0
"""One process with two GPUs: each computes, then they change results by peer copies, again and again."""
import common
from torch_common import Laden, prepare, state_bytes

import torch


class Exchange:
    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.mix = [(torch.randn(1024, 1024, generator=generator) / 32).to(f"cuda:{i}") for i in range(2)]
        self.data = [torch.randn(2048, 1024, generator=generator).to(f"cuda:{i}") for i in range(2)]

    def step(self, _):
        mixed = [torch.tanh(self.data[i] @ self.mix[i]) for i in range(2)]
        self.data = [mixed[1].to("cuda:0", non_blocking=True), mixed[0].to("cuda:1", non_blocking=True)]

    def wait(self):
        torch.cuda.synchronize(0)
        torch.cuda.synchronize(1)

    def digest(self):
        self.wait()
        return state_bytes(self.data)

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated(0) + torch.cuda.max_memory_allocated(1)


if __name__ == "__main__":
    parsed = common.options(ballast=0.0)
    prepare(parsed)
    common.run(Laden(Exchange(parsed.seed), parsed.ballast, parsed.seed, ["cuda:0", "cuda:1"]), parsed)
