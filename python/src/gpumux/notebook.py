# SPDX-License-Identifier: Apache-2.0
"""The magic %gpumux of IPython and Jupyter: the seats of the kernel's process.

IPython is not imported. It calls load_ipython_extension, and everything else works without it.
"""

from __future__ import annotations

import os
from typing import Any, Callable

from .answers_gen import Gpu, Seat, Status


def has_library() -> bool:
    """Whether gpumux's library is in this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        return any(os.path.basename(line.rstrip("\n")) == "libgpumux.so" for line in maps)


def amount(size: float) -> str:
    """Bytes as the command writes them: 1.5 GiB."""
    units = ["B", "KiB", "MiB", "GiB", "TiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        del units[0]
    return f"{size:.0f} {units[0]}" if units[0] == "B" or size >= 100 else f"{size:.1f} {units[0]}"


def describe_seat(gpu: Gpu, seat: Seat) -> str:
    """One line: the lease, the holders that the seat waits for, the memory."""
    lease = f" ({seat['lease']})" if "lease" in seat else ""
    parts = [f"{seat['phase']}{lease} for {seat['since_ns'] / 1e9:.1f} s"]
    if seat["queue_place"]:
        holders = ", ".join(f"{other['program']} (process {other['pid']})"
                            for other in gpu["seats"] if "lease" in other)
        parts.append(f"place {seat['queue_place']}" + (f" behind {holders}" if holders else ""))
    if "memory" in seat:
        memory = seat["memory"]
        parts.append(f"{amount(memory['resident_bytes'])} on the GPU, {amount(memory['evicted_bytes'])} in host memory")
    if seat["note"]:
        parts.append(seat["note"])
    return f"GPU {gpu['index']}: {'; '.join(parts)}"


def describe(status: Status, pid: int, loaded: bool) -> str:
    """The text of the magic."""
    seats = [(gpu, seat) for gpu in status["gpus"] for seat in gpu["seats"] if seat["pid"] == pid]
    if seats:
        return "\n".join(describe_seat(gpu, seat) for gpu, seat in seats)
    if loaded:
        return f"This kernel (process {pid}) has no seat yet: it has not used a GPU."
    return (f"This kernel (process {pid}) is not under gpumux. Start it with `gpumux run`: docs/how-to/jupyter.md says "
            "how.")


def load(shell: Any, status: Callable[[], Status]) -> None:
    """`shell` is IPython's InteractiveShell."""

    def gpumux(line: str) -> None:
        """Shows the seats of this kernel: the state of its lease and its memory on each GPU."""
        del line  # the magic has no options
        print(describe(status(), os.getpid(), has_library()))

    shell.register_magic_function(gpumux, magic_kind="line", magic_name="gpumux")
