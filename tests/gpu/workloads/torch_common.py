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
