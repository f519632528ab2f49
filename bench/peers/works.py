# SPDX-License-Identifier: Apache-2.0
"""The works of the comparison: programs that share one GPU.

A program is bench/experiment/task.py with a model of PyTorch's. On the simulated GPU a program of the driver API takes
its place.
"""

from dataclasses import dataclass

# Each of three programs has so much of the GPU's memory: 120 % together.
MEMORY_PART = 0.4
REQUEST_RATE = 20.0


@dataclass(frozen=True)
class Task:
    """One program of a work. `matters`: it is the one to which a way gives a higher priority, where it has any."""
    role: str  # latency or batch, as task.py has them
    model: str
    simulated: str
    ballast: float = 0.0
    matters: bool = False


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    tasks: tuple
    seconds: float  # of each measurement, before --seconds changes it

    def is_of_memory(self):
        return any(task.ballast for task in self.tasks)

    def alone(self):
        """One program of each kind, for which the plain driver shows what it does alone."""
        return tuple(dict.fromkeys(self.tasks))


def small(count):
    return Work(f"small-{count}", f"{count} programs of small kernels, steps of one alone",
                (Task("batch", "matmul-1024", "spin-small"),) * count, 8)


def large(count):
    return Work(f"large-{count}", f"{count} programs of large kernels, steps of one alone",
                (Task("batch", "matmul", "spin"),) * count, 8)


def requests(name, training, model, simulated):
    return Work(name, f"answers to {REQUEST_RATE:g} requests a second beside {training}",
                (Task("latency", "vit", "spin", matters=True), Task("batch", model, simulated)), 20)


WORKS = (
    small(2), small(4), small(8), large(2), large(4),
    requests("requests", "a training", "matmul", "spin"),
    requests("requests-20ms", "kernels of 20 ms", "matmul-20ms", "spin-20ms"),
    requests("requests-graph", "graphs of 100 ms", "matmul-graph", "spin-graph"),
    Work("memory", f"three programs that need {300 * MEMORY_PART:.0f} % of the memory together, steps of one alone",
         (Task("batch", "matmul", "spin", ballast=MEMORY_PART),) * 3, 90),
)
# A program of its own measures what a launch costs its thread.
LAUNCH = "launch"
LAUNCH_TITLE = "host time of an empty launch"

NAMES = (LAUNCH, *(work.name for work in WORKS))
