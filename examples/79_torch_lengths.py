"""Train a PyTorch model on texts of any length, then one that cannot be traced."""

import copy
import random
import sys
import tempfile

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional

import memcfg.torch as mt
from memcfg.units import format_bytes


class Reader(nn.Module):
    """Reads words of any number, with dropout that ends after some steps."""

    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(100, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.Tanh())
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4 * width, 2)

    def forward(self, x):
        return self.last(self.drop(self.inner(self.words(x))).mean(1))


class Doubter(Reader):
    """Reads again what it has read, if a value says so: tracing ends there."""

    def forward(self, x):
        hidden = self.inner(self.words(x))
        if hidden.mean() > 0:
            hidden = hidden * 0.5
        return self.last(self.drop(hidden).tanh().mean(1))


def train(model, lengths):
    """A step for each length, each with less dropout; the losses."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for at, length in enumerate(lengths):
        model.drop.p = 0.5 - 0.4 * at / len(lengths)
        x = torch.randint(0, 100, (8, length))
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), x[:, 0] % 2)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


draw = random.Random(0)
lengths = [draw.randint(20, 90) for _ in range(30)]
example = (torch.zeros(8, 90, dtype=torch.long),)
limit = "1280KiB"
for model, most in ((Reader(), limit), (Doubter(), "1536KiB")):
    eager = train(copy.deepcopy(model), lengths)
    with tempfile.TemporaryDirectory() as folder:
        mt.budget(model, most, spill_to=folder, times="nominal")
        losses = train(model, lengths)
    print(mt.get_budget(model).memory_report(), "\n")
    assert losses == eager
needed = mt.estimate(Reader(), example, times="nominal").peak_bytes
print(f"{len(set(lengths))} lengths within {limit}; without it, the longest one would")
print(f"need {format_bytes(needed)}. All losses are eager's.")
