"""Train a network of PyTorch below what computing again reaches: tensors leave."""

import copy
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError
from memcfg.units import format_bytes


class Block(nn.Module):
    """Two convolutions beside a path that skips them."""

    def __init__(self, width):
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x):
        return functional.relu(
            x + self.second(functional.relu(self.norm(self.first(x))))
        )


def network():
    """A small ResNet for images of 32 by 32."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        *(Block(16) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    )


def train(model, x, y):
    """Three steps; the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


torch.manual_seed(0)
model = network()
x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
floor = mt.estimate(model, (x,)).floor_bytes
plain = train(copy.deepcopy(model), x, y)

with tempfile.TemporaryDirectory() as folder:  # or "host", of a model on a GPU
    try:
        mt.budget(model, 1, example=(x,), spill_to=folder)
    except InfeasiblePlanError as error:
        limit = error.smallest_limit_bytes
    run = mt.budget(model, limit, spill_to=folder)
    found = train(run, x, y)
    print(mt.get_budget(run).memory_report())

print(f"computing again needs {format_bytes(floor)}, with copies {format_bytes(limit)}")
print(f"losses: {plain:.6f} without a limit, {found:.6f} with one")
assert plain == found
assert limit < floor
