# SPDX-License-Identifier: Apache-2.0
"""The host's time for each kind of thing that PyTorch asks the driver for, in microseconds: the least and the
median of many short windows, by the clock and in processor time of all threads. Bound by the host, not by the GPU."""
import time

import common
from torch_common import prepare

import small_gpt
import torch


def kinds_of_work(device):
    """name: (what is done, how often in a window)."""
    x = torch.zeros(256, device=device)
    many = [torch.zeros(64, device=device) for _ in range(200)]
    square = torch.randn(64, 64, device=device)
    pinned = torch.zeros(1024).pin_memory()
    pageable = torch.zeros(1024)
    target = torch.zeros(1024, device=device)
    event = torch.cuda.Event()
    layer = torch.nn.Linear(64, 64).to(device)
    norm = torch.nn.LayerNorm(64).to(device)
    parameters = [torch.nn.Parameter(torch.zeros(64, 64, device=device)) for _ in range(50)]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    side = torch.cuda.Stream()
    model = small_gpt.SmallGpt().to(device)
    data = small_gpt.batches(1, 16, 2048, 128, device, 1)
    training = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def forward():
        return small_gpt.loss(model, data[0])

    def backward():
        norm(layer(square)).sum().backward()

    def on_side():
        with torch.cuda.stream(side):
            x.add_(1)

    def step():
        training.zero_grad(set_to_none=True)
        forward().backward()
        training.step()

    return {
        "launch": (lambda: x.add_(1), 400),
        "matmul": (lambda: square @ square, 400),
        "foreach 200": (lambda: torch._foreach_add_(many, 1.0), 40),
        "backward": (backward, 40),
        "AdamW 50": (optimizer.step, 20),
        "pinned copy in": (lambda: target.copy_(pinned, non_blocking=True), 100),
        "pageable copy in": (lambda: target.copy_(pageable), 100),
        "item": (lambda: x[0].item(), 100),
        "event record": (event.record, 200),
        "event query": (event.query, 200),
        "synchronize": (torch.cuda.synchronize, 200),
        "empty": (lambda: torch.empty(1 << 20, device=device), 200),
        "another stream": (on_side, 100),
        "model forward": (forward, 1),
        "model step": (step, 1),
    }


def main():
    arguments = common.options(windows=15)
    device = prepare(arguments)
    torch.use_deterministic_algorithms(False)
    work = kinds_of_work(device)
    for call, count in work.values():
        for _ in range(min(count, 10)):
            call()
    torch.cuda.synchronize()
    common.meet(arguments)
    seen = {name: ([], []) for name in work}
    for _ in range(arguments.windows):
        for name, (call, count) in work.items():
            cpu, wall = time.process_time_ns(), time.perf_counter_ns()
            for _ in range(count):
                call()
            wall, cpu = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
            torch.cuda.synchronize()
            seen[name][0].append(wall / count / 1000)
            seen[name][1].append(cpu / count / 1000)
    common.result(kinds={name: {"least_us": min(wall), "median_us": sorted(wall)[len(wall) // 2],
                                "cpu_us": sorted(cpu)[len(cpu) // 2]} for name, (wall, cpu) in seen.items()})


if __name__ == "__main__":
    main()
