"""Small networks of PyTorch's, of the kinds that save tensors in different ways."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

__all__ = ["NETWORKS", "batches"]


class Residual(nn.Module):
    def __init__(self, filters: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu_(x + self.branch(x))


def resnet(filters: int = 16, blocks: int = 1) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, filters, 3, padding=1, bias=False),
        nn.BatchNorm2d(filters),
        nn.ReLU(inplace=True),
        *(Residual(filters) for _ in range(blocks)),
        nn.MaxPool2d(2),
        *(Residual(filters) for _ in range(blocks)),
        nn.Dropout(0.2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(filters, 10),
    )


def convolutions(inputs: int, filters: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, filters, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(filters, filters, 3, padding=1),
        nn.ReLU(),
    )


class UNet(nn.Module):
    def __init__(self, filters: int = 12) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            [convolutions(3, filters), convolutions(filters, 2 * filters)]
        )
        self.middle = convolutions(2 * filters, 4 * filters)
        self.ups = nn.ModuleList(
            [
                nn.ConvTranspose2d(4 * filters, 2 * filters, 2, 2),
                nn.ConvTranspose2d(2 * filters, filters, 2, 2),
            ]
        )
        self.joined = nn.ModuleList(
            [convolutions(4 * filters, 2 * filters), convolutions(2 * filters, filters)]
        )
        self.head = nn.Conv2d(filters, 10, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, block in zip(self.ups, self.joined, strict=True):
            x = block(torch.cat([up(x), skips.pop()], 1))
        return self.head(x).mean((2, 3))


class Recurrent(nn.Module):
    def __init__(self, vocabulary: int = 60, width: int = 48) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, 2, batch_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embedding(x))
        return self.head(hidden[:, -1])


class Unrolled(nn.Module):
    """Steps of an LSTM's cell, one after another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell, self.head = nn.LSTMCell(width, width), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = c = x.new_zeros(x.shape[0], x.shape[2])
        for step in x.unbind(1):
            h, c = self.cell(step, (h, c))
        return self.head(h)


class Block(nn.Module):
    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool))
        self.register_buffer("mask", mask)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = self.qkv(self.norms[0](x)).split(width, 2)
        q, k, v = (each.view(shape).transpose(1, 2) for each in (q, k, v))
        scores = q @ k.transpose(2, 3) / shape[-1] ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(x.shape)
        x = x + functional.dropout(self.out(mixed), 0.1)
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(
        self, vocabulary: int = 60, width: int = 32, length: int = 24, layers: int = 3
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, 4, length) for _ in range(layers)))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1])
        x = self.blocks(self.embedding(x) + self.positions(places))
        return self.head(x[:, -1])


NETWORKS = {"resnet": resnet, "unet": UNet, "lstm": Recurrent, "gpt": GPT}


def batches(name: str, count: int = 3):
    """Batches of inputs and classes for a network."""
    random = torch.Generator().manual_seed(3)
    for _ in range(count):
        if name in ("resnet", "unet"):
            x = torch.randn(4, 3, 32, 32, generator=random)
        else:
            x = torch.randint(60, (8, 24), generator=random)
        yield x, torch.randint(10, (len(x),), generator=random)
