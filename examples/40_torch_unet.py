"""Train a U-Net of PyTorch at the smallest limit that there is a plan for."""

import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn
from torch.nn import functional

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError


class UNet(nn.Module):
    """Two levels down, two up, and what was there before beside it."""

    def __init__(self, width=16):
        super().__init__()
        self.high = nn.Conv2d(1, width, 3, padding=1)
        self.middle = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.low = nn.Conv2d(2 * width, 4 * width, 3, padding=1)
        self.up = nn.ConvTranspose2d(4 * width, 2 * width, 2, stride=2)
        self.joined = nn.Conv2d(4 * width, 2 * width, 3, padding=1)
        self.last_up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.last = nn.Conv2d(2 * width, 1, 3, padding=1)

    def forward(self, x):
        high = functional.relu(self.high(x))
        middle = functional.relu(self.middle(functional.max_pool2d(high, 2)))
        low = functional.relu(self.low(functional.max_pool2d(middle, 2)))
        both = torch.cat([middle, self.up(low)], 1)
        up = self.last_up(functional.relu(self.joined(both)))
        return self.last(torch.cat([high, up], 1))


torch.manual_seed(0)
model = UNet()
x = torch.randn(4, 1, 64, 64)
told = mt.estimate(model, (x,))

try:
    mt.budget(model, told.floor_bytes // 2, example=(x,))
except InfeasiblePlanError as error:
    print(error)

mt.budget(model, told.floor_bytes, example=(x,))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = functional.mse_loss(model(x), x)
    loss.backward()
    optimizer.step()
    print(f"loss {loss.item():.4f}")
print(mt.get_budget(model).memory_plan)
