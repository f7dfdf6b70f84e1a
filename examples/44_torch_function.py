"""Train within a limit through a function of autograd that writes a log."""

import sys

try:
    import torch
except ImportError:
    sys.exit("This example needs PyTorch: pip install torch")

from torch import nn

import memcfg.torch as mt

log = []


class Watched(torch.autograd.Function):
    """The identity; notes how large gradients are on their way back."""

    @staticmethod
    def forward(ctx, x, name):
        ctx.name = name
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        log.append((ctx.name, float(gradient.norm())))
        return gradient, None


class Network(nn.Module):
    """Ten layers, the gradients of two of which are watched."""

    def __init__(self, width=128):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(10))

    def forward(self, x):
        for place, layer in enumerate(self.layers):
            x = nn.functional.gelu(layer(x)) + x
            if place in (0, 9):
                x = Watched.apply(x, f"layer {place}")
        return x


torch.manual_seed(0)
model, x = Network(), torch.randn(512, 128)
told = mt.estimate(model, (x,))
print(told)

mt.budget(model, told.floor_bytes, example=(x,))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
log.clear()  # of the one run on made-up numbers that tells what a function makes
for step in range(2):
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    print(f"step {step}: loss {loss.item():.4f}")
for name, norm in log:
    print(f"gradient behind {name}: {norm:.6f}")
