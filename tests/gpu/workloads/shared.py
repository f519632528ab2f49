# SPDX-License-Identifier: Apache-2.0
"""Two processes that work on one tensor in turns: the parent makes it and shares it by CUDA IPC."""
import common
from torch_common import Laden, prepare, state_bytes

import torch
import torch.multiprocessing as multiprocessing


def child_main(arguments, pipe):
    device = prepare(arguments)
    generator = torch.Generator().manual_seed(arguments.seed + 1)
    mix = (torch.randn(2048, 2048, generator=generator) / 45).to(device)
    data = pipe.recv()
    while pipe.recv():
        data.copy_(torch.tanh(data @ mix))
        torch.cuda.synchronize()
        pipe.send(True)
    # The tensor goes before its owner does.
    del data
    torch.cuda.synchronize()
    pipe.send(True)


class Shared:
    def __init__(self, arguments, device):
        generator = torch.Generator().manual_seed(arguments.seed)
        self.mix = (torch.randn(2048, 2048, generator=generator) / 45).to(device)
        self.data = torch.randn(8192, 2048, generator=generator).to(device)
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self.child = context.Process(target=child_main, args=(arguments, other))
        self.child.start()
        self.pipe.send(self.data)

    def step(self, _):
        self.data.copy_(torch.tanh(self.data @ self.mix))
        torch.cuda.synchronize()
        self.pipe.send(True)
        self.pipe.recv()

    def wait(self):
        pass  # each step has waited

    def digest(self):
        return state_bytes([self.data])

    def end(self):
        self.pipe.send(False)
        self.pipe.recv()
        self.child.join()
        if self.child.exitcode != 0:
            raise SystemExit(f"the child ended with {self.child.exitcode}")


def main():
    arguments = common.options(ballast=0.0)
    device = prepare(arguments)
    work = Shared(arguments, device)
    common.run(Laden(work, arguments.ballast, arguments.seed, [device]), arguments)
    work.end()


if __name__ == "__main__":
    main()
