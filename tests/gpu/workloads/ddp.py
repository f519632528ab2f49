# SPDX-License-Identifier: Apache-2.0
"""DistributedDataParallel on two GPUs, one process each, started with the variables that torchrun sets.

Called without RANK it starts the two; the line it prints has both ranks' digests, which must be the same.
"""
import hashlib
import json
import os
import socket
import subprocess
import sys
import time

import common

WORLD = 2


def rank_main(arguments):
    import datetime

    from torch_common import Laden, prepare, state_bytes
    import small_gpt
    import torch
    import torch.distributed as distributed

    rank = int(os.environ["RANK"])
    arguments.device = int(os.environ["LOCAL_RANK"])
    device = prepare(arguments)
    distributed.init_process_group("nccl", timeout=datetime.timedelta(seconds=200))
    model = small_gpt.SmallGpt(layers=3).to(device)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, device_ids=[arguments.device])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    data = small_gpt.batches(4, 8, 2048, 128, device, arguments.seed * 100 + rank)

    class Job:
        def step(self, i):
            optimizer.zero_grad(set_to_none=True)
            self.loss = small_gpt.loss(wrapped, data[i % 4])
            self.loss.backward()
            optimizer.step()

        def wait(self):
            self.loss.item()

        def digest(self):
            return state_bytes(list(model.state_dict().values()))

    work = Laden(Job(), arguments.ballast, arguments.seed, [device])
    for i in range(5):
        work.step(i)
    work.wait()
    torch.cuda.synchronize()
    # The ranks meet on the host, with nothing on the GPUs: a collective that one rank has begun would hold both jobs'
    # GPUs until the other rank joins, and that one waits for the other job.
    store = distributed.distributed_c10d._get_default_store()
    if rank == 0:
        common.meet(arguments)
        store.set("go", "1")
    store.wait(["go"])
    begin = time.monotonic_ns()
    for i in range(arguments.steps or 200):
        work.step(i)
        if i % 5 == 0:
            work.wait()
    torch.cuda.synchronize()
    end = time.monotonic_ns()
    digest = hashlib.sha256(work.digest()).hexdigest()
    common.result(rank=rank, digest=digest, steady_s=(end - begin) / 1e9, start_ns=begin, end_ns=end)
    distributed.barrier()
    distributed.destroy_process_group()


def launch():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(WORLD):
        environment = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD),
                           LOCAL_WORLD_SIZE=str(WORLD),
                           MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="2", NCCL_NVLS_ENABLE="0",
                           TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
        ranks.append(subprocess.Popen([sys.executable] + sys.argv, env=environment, stdout=subprocess.PIPE, text=True))
    results = []
    failed = False
    for process in ranks:
        text, _ = process.communicate()
        failed |= process.returncode != 0
        results += [json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")]
    if failed or len(results) != WORLD:
        sys.exit("a rank failed")
    digests = {entry["digest"] for entry in results}
    if len(digests) != 1:
        sys.exit("the ranks disagree")
    common.result(digest=digests.pop(), steady_s=max(entry["steady_s"] for entry in results),
                  start_ns=min(entry["start_ns"] for entry in results),
                  end_ns=max(entry["end_ns"] for entry in results))


if __name__ == "__main__":
    parsed = common.options(ballast=0.0)
    if "RANK" in os.environ:
        rank_main(parsed)
    else:
        launch()
