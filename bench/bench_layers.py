"""Time a training step of single layer families beside PyTorch on the CPU, in one run.

An LSTM, an attention block, a depthwise net and an MLP, of the same shapes, batch,
optimizer and number of threads on both sides; memcfg and PyTorch (eager) take turns, as
in ``bench_training.py``. Prints ratios (PyTorch's seconds over memcfg's: above 1,
memcfg is faster) and asserts nothing.
"""

from __future__ import annotations

import json
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from bench_training import environment, parameter_count, parse, seconds_of
from torch import nn as tn

import memcfg as mc
from memcfg._core import set_num_threads

if TYPE_CHECKING:
    from collections.abc import Callable

nn = mc.nn


class Contest(NamedTuple):
    """One network, in both libraries."""

    shape: tuple[int, ...]  # of a sample, channels last
    build: Callable[[Any], Any]  # from a symbolic tensor to logits
    torch_build: Callable[[], tn.Module]
    extra: int = 0  # parameters that PyTorch has and memcfg has not


def lstm(x):
    return nn.Dense(10)(nn.LSTM(64)(x))


class TorchLstm(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = tn.LSTM(64, 64, batch_first=True), tn.Linear(64, 10)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


def attention(x):
    h = nn.LayerNormalization()(x + nn.MultiHeadAttention(4, 32)(x, x))
    h = nn.LayerNormalization()(h + nn.Dense(128)(nn.Dense(256, "relu")(h)))
    return nn.Dense(10)(nn.Flatten()(h))


class TorchAttention(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = tn.MultiheadAttention(128, 4, batch_first=True)
        self.first, self.second = tn.LayerNorm(128, 1e-3), tn.LayerNorm(128, 1e-3)
        self.inner = tn.Sequential(tn.Linear(128, 256), tn.ReLU(), tn.Linear(256, 128))
        self.head = tn.Linear(64 * 128, 10)

    def forward(self, x):
        h = self.first(x + self.attention(x, x, x, need_weights=False)[0])
        return self.head(self.second(h + self.inner(h)).flatten(1))


def depthwise(x):
    h = nn.Conv2D(32, 3, 2, "same", activation="relu")(x)
    for filters in (64, 64):
        h = nn.DepthwiseConv2D(3, padding="same", activation="relu")(h)
        h = nn.Conv2D(filters, 1, activation="relu")(h)
    return nn.Dense(10)(nn.GlobalAveragePooling2D()(h))


def torch_depthwise() -> tn.Module:
    layers = [tn.Conv2d(3, 32, 3, 2, 1), tn.ReLU()]
    for inputs, filters in ((32, 64), (64, 64)):
        layers += [tn.Conv2d(inputs, inputs, 3, padding=1, groups=inputs), tn.ReLU()]
        layers += [tn.Conv2d(inputs, filters, 1), tn.ReLU()]
    pool = tn.AdaptiveAvgPool2d(1)
    return tn.Sequential(*layers, pool, tn.Flatten(), tn.Linear(64, 10))


def mlp(x):
    return nn.Dense(10)(nn.Dense(256, "relu")(nn.Dense(512, "relu")(x)))


def torch_mlp() -> tn.Module:
    return tn.Sequential(
        *(tn.Linear(784, 512), tn.ReLU(), tn.Linear(512, 256), tn.ReLU()),
        tn.Linear(256, 10),
    )


CONTESTS = {
    "lstm": Contest((50, 64), lstm, TorchLstm, 4 * 64),
    "attention": Contest((64, 128), attention, TorchAttention),
    "depthwise": Contest((32, 32, 3), depthwise, torch_depthwise),
    "mlp": Contest((784,), mlp, torch_mlp),
}


def measure(name: str, options: Any) -> dict:
    contest, batch = CONTESTS[name], options.batch_size
    rng = np.random.default_rng(0)
    x = rng.normal(size=(batch, *contest.shape)).astype(np.float32)
    y = rng.integers(0, 10, batch).astype(np.int32)
    inputs = nn.Input(contest.shape)
    model = nn.Model(inputs, contest.build(inputs))
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.01, momentum=0.9), loss, memory=mc.plan.auto())
    theirs = contest.torch_build()
    if model.count_params() + contest.extra != parameter_count(theirs):
        raise SystemExit(f"{name} is not the same network in both libraries")
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.01, momentum=0.9)
    loss_of = tn.CrossEntropyLoss()
    samples, labels = torch.from_numpy(x), torch.from_numpy(y).long()
    if samples.dim() == 4:  # PyTorch is faster channels last, too
        samples = samples.permute(0, 3, 1, 2)
        theirs = theirs.to(memory_format=torch.channels_last)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(theirs(samples), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    steps = {"memcfg": lambda: model.train_on_batch(x, y), "torch": step}
    turns = seconds_of(steps, options.repeats, options.seconds)
    ratios = [b / a for a, b in zip(turns["memcfg"], turns["torch"], strict=True)]
    return {
        "network": name,
        "batch_size": batch,
        "seconds": {each: statistics.median(found) for each, found in turns.items()},
        "seconds_by_turn": turns,
        "ratio": statistics.median(ratios),
        "ratio_range": [min(ratios), max(ratios)],
    }


def main() -> None:
    options = parse(batch_size=32)
    torch.set_num_threads(options.threads)
    set_num_threads(options.threads)
    results = [measure(name, options) for name in CONTESTS]
    for result in results:
        low, high = result["ratio_range"]
        milliseconds = {k: 1e3 * v for k, v in result["seconds"].items()}
        print(
            f"{result['network']}, batch {options.batch_size}: memcfg "
            f"{milliseconds['memcfg']:.2f} ms, torch {milliseconds['torch']:.2f} ms, "
            f"ratio {result['ratio']:.2f} ({low:.2f} to {high:.2f})"
        )
    if options.output is not None:
        document = {"environment": environment(options.threads), "results": results}
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
