# SPDX-License-Identifier: Apache-2.0
"""large.py's work, counted from `go` on: what is done --seconds later, the time for filling its memory included. Before
`go` it has a context and nothing else, so programs that begin together find everything cold."""
import time

import common
from large import Large
from torch_common import prepare

import torch


def main():
    arguments = common.options(share=0.4, gib=0, dirty=0.3)
    device = prepare(arguments)
    # The driver and cuBLAS start here, before the time that is measured.
    warm = torch.ones(512, 512, device=device, dtype=torch.bfloat16)
    (warm @ warm).sum().item()
    del warm
    common.meet(arguments)
    begin_ns = time.monotonic_ns()
    work = Large(arguments, device)
    work.wait()
    filled_ns = time.monotonic_ns()
    end_ns = begin_ns + round(arguments.seconds * 1e9)
    done, in_time, pace = 0, 0, []
    while time.monotonic_ns() < end_ns:
        for _ in range(common.WAIT_EVERY):
            work.step(done)
            done += 1
        work.wait()
        now = time.monotonic_ns()
        if now > end_ns:
            break
        in_time = done
        if not pace or now - pace[-1][0] >= common.PACE_NS:
            pace.append([now, done])
    common.result(steps=in_time, start_ns=begin_ns, filled_s=(filled_ns - begin_ns) / 1e9,
                  end_ns=time.monotonic_ns(), peak_bytes=work.peak_bytes(), pace=pace)


if __name__ == "__main__":
    main()
