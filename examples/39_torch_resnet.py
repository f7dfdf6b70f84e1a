"""Train a ResNet of PyTorch in two thirds of the memory, to the same bits."""

import copy
import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional

import memcfg.torch as mt
from memcfg.units import format_bytes


class Block(nn.Module):
    """Two convolutions beside a path that skips them."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.last_norm = nn.BatchNorm2d(width)

    def forward(self, x):
        inner = functional.relu(self.norm(self.first(x)))
        return functional.relu(x + self.last_norm(self.second(inner)))


def network():
    """A small ResNet for images of 32 by 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *(Block(16) for _ in range(4)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def train(model, x, y):
    """Three steps; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = network()
x, y = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))

told = mt.estimate(model, (x,))
print(told)
limit = max(told.floor_bytes, told.peak_bytes * 2 // 3)

plain = train(copy.deepcopy(model), x, y)
budgeted = mt.budget(model, limit, example=(x,))
planned = train(budgeted, x, y)

print(f"limit {format_bytes(limit)}, of {format_bytes(told.peak_bytes)} without one")
print(f"losses: {plain:.6f} without a limit, {planned:.6f} with one")
print(mt.get_budget(budgeted).memory_report())
assert plain == planned
