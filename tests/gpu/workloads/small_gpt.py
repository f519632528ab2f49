# SPDX-License-Identifier: Apache-2.0
"""A decoder-only transformer small enough to read: what the transformer workloads train."""
import torch


class Attention(torch.nn.Module):
    """Written out, so that it is deterministic whichever kernels a library would choose."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.mix = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x, mask):
        batch, length, width = x.shape
        query, key, value = self.mix(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / (width // self.heads) ** 0.5 + mask
        mixed = torch.softmax(scores, dim=-1) @ value
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before_attention = torch.nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.before_network = torch.nn.LayerNorm(width)
        self.network = torch.nn.Sequential(torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                                           torch.nn.Linear(4 * width, width))

    def forward(self, x, mask):
        x = x + self.attention(self.before_attention(x), mask)
        return x + self.network(self.before_network(x))


class SmallGpt(torch.nn.Module):
    def __init__(self, words=2048, width=512, heads=8, layers=6, length=128):
        super().__init__()
        self.words = words
        self.embed = torch.nn.Linear(words, width, bias=False)
        self.place = torch.nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, words, bias=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, one_hot):
        # A product instead of a look-up: the gradient of a look-up is a scatter, which adds in no fixed order.
        x = self.embed(one_hot) + self.place
        for block in self.blocks:
            x = block(x, self.mask)
        return self.head(self.norm(x))


def batches(count, size, words, length, device, seed):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        tokens = torch.randint(0, words, (size, length + 1), generator=generator)
        one_hot = torch.nn.functional.one_hot(tokens[:, :-1], words).float()
        made.append((one_hot.to(device), tokens[:, 1:].contiguous().to(device)))
    return made


def loss(model, batch):
    logits = model(batch[0])
    return torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), batch[1].view(-1))
