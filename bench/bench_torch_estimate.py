"""Estimate the peaks of fifty random networks of PyTorch, and measure them.

Networks are multilayer perceptrons, chains of convolutions, residual networks,
U-Nets, transformers and unrolled LSTMs, of widths, depths and batches that a seed
draws. `estimate` is told the loss and runs no step. It tells two peaks: of a step of
eager PyTorch, and of one of `budget` without a limit. Both are measured in the pool of
`limit_cpu`: the state, and what the step adds at most. Times play no role.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import random
import statistics
import sys
import warnings
from functools import partial
from pathlib import Path

import torch
from bench_codecs import environment
from torch import nn

import memcfg.torch as mt

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from torch_allocations import pool_peak
from torch_networks import Unrolled

functional = nn.functional


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.branch(x))


class UNet(nn.Module):
    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.downs = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)
        self.ups = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs)
        )
        self.joins = nn.ModuleList(
            nn.Conv2d(2 * a, a, 3, padding=1) for a, _ in reversed(pairs)
        )
        self.head = nn.Conv2d(width, 10, 1)

    def forward(self, x):
        x, skips = torch.relu(self.first(x)), []
        for down in self.downs:
            skips.append(x)
            x = torch.relu(down(functional.max_pool2d(x, 2)))
        for up, join in zip(self.ups, self.joins, strict=True):
            x = torch.relu(join(torch.cat([up(x), skips.pop()], 1)))
        return self.head(x).mean((2, 3))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, causal: bool) -> None:
        super().__init__()
        self.words = nn.Embedding(200, width)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(width),
                    "norm2": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "wide": nn.Linear(width, 4 * width),
                    "narrow": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.causal = causal
        self.head = nn.Linear(width, 10)

    def forward(self, tokens):
        x = self.words(tokens)
        for each in self.layers:
            b, t, c = x.shape
            q, k, v = (
                part.view(b, t, 4, c // 4).transpose(1, 2)
                for part in each["qkv"](each["norm"](x)).split(c, 2)
            )
            mixed = functional.scaled_dot_product_attention(
                q, k, v, is_causal=self.causal
            )
            x = x + each["out"](mixed.transpose(1, 2).reshape(b, t, c))
            hidden = functional.gelu(each["wide"](each["norm2"](x)))
            x = x + each["narrow"](functional.dropout(hidden, 0.1))
        return self.head(x.mean(1))


def perceptron(draw: random.Random):
    widths = [draw.randrange(16, 512) for _ in range(draw.randint(2, 6))]
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), draw.choice([nn.ReLU, nn.GELU, nn.Tanh])()]
        if draw.random() < 0.3:
            layers.append(nn.Dropout(0.2))
    made = nn.Sequential(*layers, nn.Linear(widths[-1], 10))
    return made, torch.randn(draw.randrange(16, 512), widths[0])


def image(draw: random.Random):
    return torch.randn(draw.randrange(2, 9), 3, *[draw.choice([16, 32, 48])] * 2)


def convolutions(draw: random.Random):
    layers, before = [], 3
    for _ in range(draw.randint(2, 4)):
        width = draw.randrange(8, 48)
        layers.append(nn.Conv2d(before, width, draw.choice([1, 3, 5]), padding="same"))
        if draw.random() < 0.5:
            layers.append(nn.BatchNorm2d(width))
        layers += [nn.ReLU(inplace=draw.random() < 0.5), nn.MaxPool2d(2)]
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 10)]
    return nn.Sequential(*layers), image(draw)


def residual(draw: random.Random):
    width = draw.randrange(8, 48)
    blocks = [Residual(width) for _ in range(draw.randint(1, 5))]
    stem = nn.Conv2d(3, width, 3, padding=1)
    tail = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
    return nn.Sequential(stem, *blocks, *tail), image(draw)


def unet(draw: random.Random):
    return UNet(draw.randrange(4, 20), draw.randint(1, 3)), image(draw)


def transformer(draw: random.Random):
    made = Transformer(
        16 * draw.randint(2, 12), draw.randint(1, 4), draw.random() < 0.5
    )
    shape = (draw.randrange(2, 12), draw.randrange(16, 128))
    return made, torch.randint(0, 200, shape)


def unrolled(draw: random.Random):
    width = draw.randrange(16, 160)
    return Unrolled(width), torch.randn(
        draw.randrange(8, 64), draw.randint(3, 10), width
    )


STEPS = ("graph_bytes", "eager_bytes")
KINDS = (perceptron, convolutions, residual, unet, transformer, unrolled)


def peak_of(module: nn.Module, run, x, loss) -> int:
    """The bytes of a second step."""
    for _ in range(2):
        found = pool_peak(module, x, lambda: loss(run(x)).backward())
    return found


def measure(index: int, seed: int) -> dict:
    draw = random.Random(1000 * seed + index)
    torch.manual_seed(index)
    torch._dynamo.reset()
    kind = KINDS[index % len(KINDS)]
    module, x = kind(draw)
    y = torch.randint(0, 10, (len(x),))
    loss = partial(functional.cross_entropy, target=y)
    told = mt.estimate(copy.deepcopy(module), (x,), loss=loss)
    eager = copy.deepcopy(module)
    return {
        "kind": kind.__name__,
        "estimated_eager_bytes": told.eager_bytes,
        "estimated_graph_bytes": told.peak_bytes,
        "eager_bytes": peak_of(eager, eager, x, loss),
        "graph_bytes": peak_of(module, mt.budget(module, math.inf), x, loss),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--networks", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="write the results as JSON")
    options = parser.parse_args()
    options.clock, options.repeats = "none", 1
    torch.set_num_threads(1)
    mt.limit_cpu("16GiB", tag_modules=False)
    warnings.simplefilter("ignore")
    results = []
    for index in range(options.networks):
        result = measure(index, options.seed)
        results.append(result)
        graph, eager = (result[f"estimated_{name}"] / result[name] for name in STEPS)
        print(
            f"{index:3} {result['kind']:<13} {result['eager_bytes'] / 2**20:8.2f} MiB, "
            f"estimates: eager {eager:.4f} of it, the graph's {graph:.4f} of its own",
            flush=True,
        )
    for name in STEPS:
        ratios = sorted(each[f"estimated_{name}"] / each[name] for each in results)
        print(f"{name}: {ratios[0]:.4f} to {ratios[-1]:.4f}, median", end=" ")
        print(f"{statistics.median(ratios):.4f}")
    if options.output is not None:
        place = environment(options) | {"torch": torch.__version__}
        document = {"environment": place, "results": results}
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
