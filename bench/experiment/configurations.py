# SPDX-License-Identifier: Apache-2.0
"""The configurations that the experiment compares, and the order in which they run."""

import fnmatch
from dataclasses import dataclass, field

# So the latency task was made the more important one where there were no priorities: it never gives the GPU up.
KEEPS = {"CUDA_OVERRIDE_SYNC_LOCK_SKIPS": "1000000"}
PRIORITY = ["--priority", "10"]

BALLAST = {"latency": 0.5, "batch": 0.7}


@dataclass
class Configuration:
    name: str
    title: str
    group: str                  # alone, native, gpumux, wrapper, memory
    roles: tuple = ("latency", "batch")
    under_gpumux: bool = False
    environment: dict = field(default_factory=dict)          # of both
    latency_environment: dict = field(default_factory=dict)  # and of the latency task
    latency_run: list = field(default_factory=list)          # its options of gpumux run
    ballast: dict = field(default_factory=dict)              # role: its part of the GPU's memory


def wrapper(name, title, environment):
    """A mode of the wrapper, for equals and with the latency task as the one that never gives the GPU up."""
    return [Configuration(name, title, "wrapper", under_gpumux=True, environment=environment),
            Configuration(name + "+keeps", title + ", latency task keeps it", "wrapper", under_gpumux=True,
                          environment=environment, latency_environment=KEEPS)]


def n_sync(count):
    return wrapper(f"n-sync-{count}", f"KERNEL_N_SYNC={count}", {"CUDA_OVERRIDE_KERNEL_N_SYNC": str(count)})


def max_ms(milliseconds):
    return wrapper(f"max-ms-{milliseconds:g}", f"MAX_SYNC_MS={milliseconds:g}",
                   {"CUDA_OVERRIDE_MAX_SYNC_MS": f"{milliseconds:g}"})


def always_lock():
    return wrapper("always-lock", "ALWAYS_LOCK=1", {"CUDA_OVERRIDE_ALWAYS_LOCK": "1"})


def every(ballast=None):
    """All of them, as the table has them."""
    ballast = dict(BALLAST, **(ballast or {}))
    return [
        Configuration("alone-latency", "latency task alone", "alone", roles=("latency",)),
        Configuration("alone-batch", "batch task alone", "alone", roles=("batch",)),
        Configuration("native", "both, plain driver", "native"),
        Configuration("default", "gpumux", "gpumux", under_gpumux=True),
        Configuration("priority", "gpumux, priority 10", "gpumux", under_gpumux=True, latency_run=PRIORITY),
        *n_sync(1), *n_sync(10), *n_sync(100), *max_ms(0.5), *max_ms(2), *max_ms(10), *always_lock(),
        Configuration("memory-default", "does not fit: gpumux", "memory", under_gpumux=True, ballast=ballast),
        Configuration("memory-priority", "does not fit: gpumux, priority 10", "memory", under_gpumux=True,
                      latency_run=PRIORITY, ballast=ballast),
    ]


def in_running_order(chosen):
    """The ends of the sweeps come last. If time runs out, they are left out, not what they are compared with."""
    last = ("n-sync-1", "n-sync-100", "max-ms-0.5", "max-ms-10")
    return sorted(chosen, key=lambda configuration: configuration.name.removesuffix("+keeps") in last)


def choose(wanted, ballast=None):
    """Those whose name or group one of the patterns matches, and what they are compared with; none: all."""
    all_of_them = every(ballast)
    unknown = [pattern for pattern in wanted
               if not any(matches(pattern, configuration) for configuration in all_of_them)]
    if unknown:
        raise ValueError(f"no configuration is called {', '.join(unknown)}; there are "
                         + ", ".join(configuration.name for configuration in all_of_them)
                         + " and the groups alone, native, gpumux, wrapper, memory; * stands for anything")
    return [configuration for configuration in all_of_them
            if not wanted or configuration.group == "alone"
            or any(matches(pattern, configuration) for pattern in wanted)]


def matches(pattern, configuration):
    return fnmatch.fnmatch(configuration.name, pattern) or pattern == configuration.group
