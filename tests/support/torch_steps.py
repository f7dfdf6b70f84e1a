"""Small networks of the kinds that people train, with their inputs.

Planning takes most of the time of tests, so they have no more layers than it takes to
plan limits apart: two blocks, one layer.
"""

from __future__ import annotations

import torch
from torch import nn

F = nn.functional


class _Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        inner = F.relu(self.norm(self.first(x)))
        return F.relu(x + self.norm2(self.second(inner)))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.blocks = nn.Sequential(*(_Residual(16) for _ in range(2)))
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.stem(x)).mean((2, 3)))


class VGG(nn.Module):
    def __init__(self):
        super().__init__()
        layers, width = [], 3
        for wider, less in ((16, 2), (32, 4)):
            layers += [nn.Conv2d(width, wider, 3, padding=1), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.ReLU(inplace=True)]
            layers.append(nn.MaxPool2d(less))
            width = wider
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.5))
        self.last = nn.Linear(64, 10)

    def forward(self, x):
        return self.last(self.head(self.features(x).flatten(1)))


class DenseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8 + 8 * at) for at in range(3))
        self.convs = nn.ModuleList(
            nn.Conv2d(8 + 8 * at, 8, 3, padding=1) for at in range(3)
        )
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        found = [self.stem(x)]
        for norm, conv in zip(self.norms, self.convs, strict=True):
            found.append(conv(F.relu(norm(torch.cat(found, 1)))))
        return self.head(torch.cat(found, 1).mean((2, 3)))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 16, 3, padding=1)
        self.low = nn.Conv2d(16, 32, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.last = nn.Conv2d(32, 16, 3, padding=1)
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, x):
        high = F.relu(self.down(x))
        low = F.relu(self.low(F.max_pool2d(high, 2)))
        both = torch.cat([high, self.up(low)], 1)
        return self.head(F.relu(self.last(both))).mean((2, 3))


class _Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 256), nn.Linear(256, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            each.view(b, t, 4, c // 4).transpose(1, 2)
            for each in self.qkv(self.norm(x)).split(c, 2)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(b, t, c)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(100, 64), nn.Embedding(64, 64)
        self.layers = nn.Sequential(_Layer(64))
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        return self.head(self.norm(self.layers(x)).mean(1))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.inner(x)[0][:, -1])


def image():
    return torch.randn(8, 3, 32, 32)


def inputs_of(kind):
    if kind is GPT:
        return torch.randint(0, 100, (8, 64))
    if kind is LSTM:
        return torch.randn(16, 6, 32)
    return image()


NETWORKS = (ResNet, VGG, DenseNet, UNet, GPT, LSTM)


def step(module, run, x, y):
    """One step without the update: the loss; gradients are in the module."""
    torch.manual_seed(1)
    for each in module.parameters():
        each.grad = None
    loss = F.cross_entropy(run(x), y)
    loss.backward()
    return loss.detach()


def same_bits(one, other):
    gradients = zip(one.parameters(), other.parameters(), strict=True)
    buffers = zip(one.buffers(), other.buffers(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in gradients) and all(
        torch.equal(a, b) for a, b in buffers
    )


def problem(kind):
    module, x = kind(), inputs_of(kind)
    return module, x, torch.randint(0, 10, (x.shape[0],))


def last_step(run):
    """The step of a budgeted model that was planned, or ran, last, with its plan."""
    return run.forward._shared.last
