"""PyTorch under a hard limit: what does not fit is an error that names the holders.

A training loop of PyTorch, unchanged, in a pool of 48 MiB. A batch that is too large is
an error, not a killed process; the loop goes on with a smaller one.
"""

import sys

try:
    import memcfg.torch as mt
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit()

import torch
from torch import nn

LIMIT = "48MiB"
mt.limit_cpu(LIMIT)  # before the model is made, for its weights to be in it
torch.manual_seed(0)
with mt.tag("weights"):
    model = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
    )
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def step(batch: int) -> float:
    """One step of training, and its loss."""
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss.item()


batch = 256
while True:
    try:
        losses = [step(batch) for _ in range(5)]
        break
    except mt.OutOfMemoryError as error:  # MemoryError and torch.OutOfMemoryError, too
        print(f"batch {batch} does not fit:")
        print("  " + str(error).replace("\n", "\n  "))
        batch //= 2

info = mt.get_memory_info()
print(f"batch {batch}: loss {losses[0]:.3f} to {losses[-1]:.3f}")
print(f"peak {info['peak'] / 2**20:.1f} MiB of {LIMIT}")
print(f"in use now: {mt.cpu_pool().owners()}")
print(f"given back to the system: {mt.trim() / 2**20:.1f} MiB")
mt.limit_cpu(None)
