"""The largest batch that a budget can train, and `memcfg torch estimate`."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import memcfg.torch as mt
from memcfg.cli import main

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 14 * 14, 10)),
    )


class Pairs(nn.Module):
    """Its similarities of all pairs grow with the square of the batch."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(16, 16)

    def forward(self, x):
        y = self.inner(x)
        return (y @ y.T).softmax(1)


def images(batch):
    return (torch.ones(batch, 3, 16, 16),)


def rows(batch):
    return {"x": torch.ones(batch, 16)}


CASES = {  # the model, its inputs, the limit, and how many batches may be traced
    "affine": (convolutions, images, "3MiB", 4),
    "fewer than are traced first": (convolutions, images, "250KiB", 5),
    "square": (Pairs, rows, "1MiB", 24),
    "not one": (convolutions, images, "20KiB", 4),
}


@pytest.mark.parametrize("case", CASES)
def test_it_fits_and_one_sample_more_does_not(case):
    make, inputs, limit, traces = CASES[case]
    model, sizes = make(), []

    def make_inputs(batch):
        sizes.append(batch)
        return inputs(batch)

    options = {"times": "nominal", "loss": lambda out: out.square().mean()}
    batch = mt.largest_batch(model, make_inputs, limit, **options)
    assert len(sizes) <= traces
    assert (batch == 0) == (case == "not one")

    def budgeted(count):
        made = inputs(count)
        named = {"example_kwargs" if isinstance(made, dict) else "example": made}
        mt.budget(make(), limit, **named, **options)

    if batch:
        budgeted(batch)
    with pytest.raises(mt.InfeasibleStepError):
        budgeted(batch + 1)


def test_the_optimizer_counts():
    model = convolutions()
    adam = torch.optim.Adam(model.parameters())
    without, with_state = (
        mt.largest_batch(model, images, "2MiB", times="nominal", optimizer=each)
        for each in (None, adam)
    )
    assert 0 < with_state < without


@pytest.mark.parametrize(
    ("make_inputs", "limit", "error", "text"),
    [
        (3, "1MiB", TypeError, "make_inputs is a function of the batch size"),
        (lambda n: torch.ones(n, 16), "1MiB", TypeError, "a sequence of inputs"),
        (lambda n: (1, 2, 3), "1MiB", TypeError, "not what Pairs takes"),
        (rows, float("inf"), ValueError, "without a limit"),
        (lambda _: rows(4), "1MiB", ValueError, "do not depend on the batch"),
    ],
)
def test_arguments_are_checked(make_inputs, limit, error, text):
    with pytest.raises(error, match=text):
        mt.largest_batch(Pairs(), make_inputs, limit, times="nominal")


TRAIN = """
import torch

def make():
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    return {"model": model, "make_inputs": lambda n: (torch.ones(n, 64),)}

def empty():
    return {"model": torch.nn.Linear(2, 2)}

def wrong():
    return {"model": torch.nn.Linear(2, 2), "inputs": ()}

def nothing():
    return None
"""


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(TRAIN)
    return path


def test_the_command_prints_what_fits(train, capsys):
    options = ["--times", "nominal", "--batch", "64"]
    assert main(["torch", "estimate", f"{train}:make", *options]) == 0
    assert "Smallest limit" in capsys.readouterr().out
    assert main(["torch", "estimate", f"{train}:make", *options, "--limit=1MiB"]) == 0
    told = capsys.readouterr().out
    model = nn.Sequential(nn.Linear(64, 64), nn.Tanh())
    inputs = (torch.ones(64, 64),)
    estimate = mt.estimate(model, inputs, times="nominal")
    for each in (estimate.eager_bytes, estimate.floor_bytes):
        assert f"{each / 1024:.2f} KiB" in told
    batch = mt.largest_batch(
        model, lambda n: (torch.ones(n, 64),), "1MiB", times="nominal"
    )
    assert f" {batch}\n" in told
    assert "Fastest plan within 1.00 MiB" in told
    assert main(["torch", "estimate", f"{train}:make", *options, "--limit=60KiB"]) == 1
    assert "there is none" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("train.py:empty", "lacks 'make_inputs'"),
        ("train.py:wrong", "unknown key 'inputs'"),
        ("train.py:nothing", "returns a dict"),
        ("train.py:other", "has no function 'other'"),
        ("absent.py:make", "No such file"),
    ],
)
def test_the_command_says_what_is_wrong(train, monkeypatch, capsys, source, text):
    monkeypatch.chdir(train.parent)
    assert main(["torch", "estimate", source]) == 2
    assert text in capsys.readouterr().err


def test_a_source_names_a_function(capsys):
    with pytest.raises(SystemExit):
        main(["torch", "estimate", "train.py"])
    assert "such as train.py:make" in capsys.readouterr().err
