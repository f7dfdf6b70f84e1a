"""Keep what PyTorch saves for its backward phase within a limit.

The same network three times, from the same weights: with plain PyTorch; with half of
the bytes that this saves, where what has zeros is encoded and the rest goes to a file,
which loses no bit; and in memory alone, in 8 bits a number where zeros are not enough.
"""

import sys
import tempfile

try:
    import torch

    import memcfg.torch as mt
except ImportError as error:
    print(f"left out, for want of PyTorch: {error}")
    sys.exit()

nn, functional = torch.nn, torch.nn.functional
BATCH, STEPS = 8, 3
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
images = torch.randn(STEPS, BATCH, 3, 32, 32, generator=generator)
labels = torch.randint(10, (STEPS, BATCH), generator=generator)


def network():
    torch.manual_seed(0)
    layers, channels = [], 3
    for filters in (16, 16, 32, 32):
        convolution = nn.Conv2d(channels, filters, 3, padding=1)
        layers += [convolution, nn.BatchNorm2d(filters), nn.ReLU()]
        channels = filters
    ends = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)]
    return nn.Sequential(*layers, *ends)


def train(saved):
    """Train a few steps inside a context; return losses and gradients."""
    model, losses = network(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with saved:  # one for all steps: from the second one on, it knows the order
        for x, y in zip(images, labels, strict=True):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, [each.grad for each in model.parameters()]


everything = mt.saved_tensors("1GiB", [])
losses, gradients = train(everything)
nbytes = everything.memory_report().saved_bytes

with tempfile.TemporaryDirectory() as folder:
    half = mt.saved_tensors(nbytes // 2, ["zvc"], spill_to=folder)
    found, others = train(half)
print(half.memory_report())
assert half.peak_bytes <= nbytes // 2
assert found == losses
assert all(map(torch.equal, others, gradients))
print("the same bits")

rounded = mt.saved_tensors(nbytes // 2, ["zvc", "fp8"])
found, _ = train(rounded)
print(rounded.memory_report())
print("losses", [f"{a:.4f} ({b:.4f})" for a, b in zip(found, losses, strict=True)])
