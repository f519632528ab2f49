# SPDX-License-Identifier: Apache-2.0
"""Captures a whole training step in a CUDA graph and replays it with new data in place."""
import common
from torch_common import Laden, prepare, state_bytes

import torch


class Replayed:
    def __init__(self, device, seed):
        self.model = torch.nn.Sequential(torch.nn.Linear(1024, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 2048),
                                         torch.nn.ReLU(), torch.nn.Linear(2048, 10)).to(device)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)
        generator = torch.Generator().manual_seed(seed)
        self.inputs = [torch.randn(512, 1024, generator=generator).to(device) for _ in range(4)]
        self.targets = [torch.randn(512, 10, generator=generator).to(device) for _ in range(4)]
        self.input = self.inputs[0].clone()
        self.target = self.targets[0].clone()

        def step():
            loss = torch.nn.functional.mse_loss(self.model(self.input), self.target)
            loss.backward()
            optimizer.step()
            return loss

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                optimizer.zero_grad(set_to_none=True)
                step()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        optimizer.zero_grad(set_to_none=True)
        with torch.cuda.graph(self.graph):
            self.loss = step()

    def step(self, i):
        self.input.copy_(self.inputs[i % 4])
        self.target.copy_(self.targets[i % 4])
        self.graph.replay()

    def wait(self):
        self.loss.item()

    def digest(self):
        torch.cuda.synchronize()
        return state_bytes(list(self.model.state_dict().values()) + [self.loss])

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated()


def main():
    arguments = common.options(ballast=0.0)
    device = prepare(arguments)
    common.run(Laden(Replayed(device, arguments.seed), arguments.ballast, arguments.seed, [device]), arguments)


if __name__ == "__main__":
    main()
