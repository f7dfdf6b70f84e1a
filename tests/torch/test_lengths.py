"""Numbers and lengths that change from step to step: few traces, and eager's bits."""

from __future__ import annotations

import copy
import math
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Layers(nn.Module):
    """Two layers, and a place for numbers."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(8, 16), nn.Linear(16, 4)
        self.count, self.heat, self.drop = 0, 1.0, nn.Dropout(0.1)


class Counted(Layers):
    def forward(self, x):
        self.count += 1
        return self.other(self.one(x).tanh() / self.count)


class Annealed(Layers):
    def forward(self, x):
        return self.other(self.one(x).tanh() * self.heat).div(self.heat**2)


class Dropped(Layers):
    def forward(self, x):
        return self.other(self.drop(self.one(x)))


class Timed(Layers):
    """An int picks a row, as the step of a diffusion process does."""

    def __init__(self):
        super().__init__()
        self.register_buffer("rows", torch.linspace(0, 1, 160).reshape(10, 16))

    def forward(self, x, step):
        return self.other(self.one(x).tanh() + self.rows[step] * (step + 1))


def step(model, *args, seed=0):
    """Forward and backward; the output and the gradients."""
    torch.manual_seed(seed)
    made = model(*args)
    made.square().sum().backward()
    gradients = [each.grad for each in model.parameters()]
    model.zero_grad()
    return [made.detach(), *gradients]


def same(some, others):
    return all(map(torch.equal, some, others))


def planned(model):
    """The number of steps that were traced and planned."""
    planners = mt.get_budget(model)._planners.values()
    return sum(each.planned.total() for each in planners)


@pytest.mark.parametrize("kind", [Counted, Annealed, Dropped, Timed])
def test_a_number_that_changes_is_traced_twice_and_has_the_bits_of_eager(kind):
    model = kind()
    plain = copy.deepcopy(model)
    mt.budget(model, "1MiB", times="nominal")
    for at in range(8):
        for each in (model, plain):
            each.heat, each.drop.p = 1 - 0.11 * at, 0.1 + 0.07 * at
        given = (X, at) if kind is Timed else (X,)
        assert same(step(model, *given, seed=at), step(plain, *given, seed=at))
    assert planned(model) <= 3  # 0 and 1 are no symbols
    assert model.count == plain.count


class Mixed(nn.Module):
    """Tokens of any number, which are mixed with each other."""

    def __init__(self, width=16):
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, 4)

    def forward(self, tokens):
        x = self.embedding(tokens)
        query, key, value = self.mix(x).chunk(3, -1)
        x = x + (query @ key.mT / 4).softmax(-1) @ value
        places = torch.arange(tokens.shape[1]).float() / tokens.shape[1]
        return self.out(x.tanh() * places[:, None])[:, : tokens.shape[1] // 2 + 1]


def tokens(length, rows=4):
    return torch.arange(rows * length).reshape(rows, length).remainder(32)


def entropy(out):
    return functional.cross_entropy(
        out.flatten(0, 1), out.new_zeros(out[..., 0].numel()).long()
    )


class Rows(nn.Module):
    """Rows of any number, in few ops, whose plans are found at once."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(8, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.other(self.one(x).tanh().sin()).tanh()


def rows(length):
    return torch.linspace(-1, 1, 8 * length).reshape(length, 8)


def trained(model, make, lengths, limit, bound):
    """Train on lengths, and check bits, bytes and the number of plans."""
    plain = copy.deepcopy(model)
    mt.budget(model, limit, times="nominal")
    held = sum(each.nbytes for each in model.parameters())
    for length in lengths:
        given = make(length)
        wanted = step(plain, given)
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        made = model(given)
        made.square().sum().backward()
        used = mt.get_memory_info()["peak"] - before + given.nbytes + held
        assert used <= limit
        assert same([made, *(p.grad for p in model.parameters())], wanted)
        del made, wanted
        model.zero_grad()
    assert planned(model) <= bound


def limit_of(model, make, length):
    """A limit between the least and what a step needs that recomputes nothing."""
    told = mt.estimate(model, (make(length),), times="nominal")
    return (told.floor_bytes + told.peak_bytes) // 2


def test_forty_lengths_have_few_plans_within_the_limit_and_the_bits_of_eager(pool):
    draw, model = random.Random(3), Rows()
    lengths = [draw.randint(13, 48) for _ in range(40)]
    trained(model, rows, lengths, limit_of(model, rows, 48), bound=5)


@pytest.mark.slow
def test_a_thousand_lengths_have_few_plans_and_use_no_more_and_more_memory(pool):
    draw, model = random.Random(4), Mixed()
    lengths = [draw.randint(2, 100) for _ in range(1000)]
    trained(model, tokens, lengths, limit_of(model, tokens, 100), bound=16)
    left = pool.stats().current_bytes
    for length in lengths[:50]:
        step(model, tokens(length))
    assert pool.stats().current_bytes <= left


def test_a_range_of_lengths_has_the_plan_of_its_longest():
    told = {"times": "nominal", "loss": entropy}
    longest = mt.budget(Mixed(), math.inf, example=(tokens(12),), **told)
    wanted = mt.get_budget(longest).memory_plan.peak_bytes
    model = mt.budget(Mixed(), math.inf, **told)
    for length in (5, 9, 10, 12):
        step(model, tokens(length))
    assert mt.get_budget(model).memory_plan.peak_bytes == wanted
    assert planned(model) == 2


def test_a_length_fits_where_the_longest_of_its_range_does_not():
    model = Rows()
    plain = copy.deepcopy(model)
    floor = mt.estimate(model, (rows(34),), times="nominal").floor_bytes
    mt.budget(model, floor, times="nominal")
    for length in (20, 33, 34, 30, 34):  # plans for 48 do not fit
        given = rows(length)
        assert same(step(model, given), step(plain, given))
    with pytest.raises(InfeasiblePlanError, match="does not fit"):
        model(rows(48))
    assert same(step(model, rows(33)), step(plain, rows(33)))


def test_replan_plans_each_shape_as_it_is():
    model = mt.budget(Mixed(), math.inf, times="nominal", on_new_shape="replan")
    for length in (5, 9, 10, 9):
        step(model, tokens(length))
    assert planned(model) == 3


def test_raise_refuses_another_shape_and_changes_nothing():
    model = Mixed()
    plain = copy.deepcopy(model)
    mt.budget(model, "1MiB", times="nominal", on_new_shape="raise")
    assert same(step(model, tokens(5)), step(plain, tokens(5)))
    with pytest.raises(ValueError, match=r"shape \(4, 6\) are new.*for \(4, 5\)"):
        model(tokens(6))
    with torch.no_grad():  # to evaluate is another step
        assert torch.equal(model(tokens(6)), plain(tokens(6)))
    assert same(step(model, tokens(5)), step(plain, tokens(5)))
    with pytest.raises(ValueError, match="unknown on_new_shape 'pad'"):
        mt.budget(model, "1MiB", on_new_shape="pad")


def test_saved_tensors_runs_another_shape_in_eager_mode():
    model = Mixed()
    plain = copy.deepcopy(model)
    mt.budget(
        model,
        "1MiB",
        example=(tokens(5),),
        times="nominal",
        on_new_shape="saved_tensors",
    )
    for length in (5, 6, 7, 5):
        assert same(step(model, tokens(length)), step(plain, tokens(length)))
    assert planned(model) == 1
    assert "steps with inputs of other shapes" in mt.get_budget(model).memory_report()
