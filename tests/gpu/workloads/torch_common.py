# SPDX-License-Identifier: Apache-2.0
"""PyTorch set up so that the same steps give the same bits."""
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402


def prepare(arguments):
    # An operation that has no deterministic form shows as a difference between two native runs, which run.py looks for.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    torch.manual_seed(arguments.seed)
    torch.cuda.set_device(arguments.device)
    return torch.device("cuda", arguments.device)


def state_bytes(tensors):
    return b"".join(tensor.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes()
                    for tensor in tensors)


PIECE = 1 << 28  # 32-bit words of one tensor: a GiB


class Pieces:
    """Tensors of a GiB with random words. `write` gives one new content; the sums depend on every word of all."""

    def __init__(self, device, count, seed):
        generator = torch.Generator(device).manual_seed(seed)
        self.all = [torch.randint(-2**31, 2**31 - 1, (PIECE,), dtype=torch.int32, device=device, generator=generator)
                    for _ in range(count)]

    def write(self, piece, i):
        self.all[piece].mul_(5).add_(i)

    def sums(self):
        sums = []
        for piece in self.all:
            # Sensitive to order as well: each word is weighed by its place.
            for half in piece.view(8, -1):
                weights = torch.arange(half.numel(), device=half.device, dtype=torch.int32).mul_(2).add_(1)
                sums.append((half * weights).sum(dtype=torch.int64).item())
        return sums


class Laden:
    """A workload beside memory that fills `share` of each of its devices; every tenth step writes a GiB of it."""

    def __init__(self, work, share, seed, devices):
        self.work = work
        self.pieces = []
        for device in devices:
            total = torch.cuda.get_device_properties(device).total_memory
            self.pieces.append(Pieces(device, round(share * total / 2**30), seed))

    def step(self, i):
        self.work.step(i)
        if i % 10 == 0:
            for pieces in self.pieces:
                if pieces.all:
                    pieces.write(i // 10 % len(pieces.all), i)

    def wait(self):
        self.work.wait()

    def digest(self):
        sums = [value for pieces in self.pieces for value in pieces.sums()]
        return self.work.digest() + torch.tensor(sums, dtype=torch.int64).numpy().tobytes()

    def peak_bytes(self):
        return sum(torch.cuda.max_memory_allocated(device) for device in range(torch.cuda.device_count()))


class Training:
    """Trains `model` on a few batches that were drawn once, with `loss(model, batch)`."""

    def __init__(self, model, batches, loss, optimizer):
        self.model = model
        self.batches = batches
        self.loss = loss
        self.optimizer = optimizer
        self.last = None

    def step(self, i):
        self.optimizer.zero_grad(set_to_none=True)
        self.last = self.loss(self.model, self.batches[i % len(self.batches)])
        self.last.backward()
        self.optimizer.step()

    def wait(self):
        # As training loops do: by reading the loss.
        value = self.last.item()
        if value != value:
            raise SystemExit("the loss is not a number")

    def digest(self):
        torch.cuda.synchronize()
        return state_bytes(list(self.model.state_dict().values()))

    def peak_bytes(self):
        return torch.cuda.max_memory_allocated()
