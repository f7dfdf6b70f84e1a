"""What is found once: the trace of an example, and plans in files."""

from __future__ import annotations

import copy
import random
from hashlib import sha256

import pytest
import torch
from torch import nn

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

pytestmark = pytest.mark.usefixtures("fresh_torch")
X = torch.ones(8, 16)


class Counting(nn.Module):
    """A network that counts how often its Python code runs, and is traced."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(16, 16) for _ in range(4)))
        self.drop = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        for each in self.layers:
            x = self.drop(each(x)).tanh()
        return x


class Drawing(Counting):
    def forward(self, x):
        return super().forward(x) * random.random()


def trained(model, steps=3):
    torch.manual_seed(1)
    random.seed(1)
    losses = []
    for _ in range(steps):
        model.zero_grad()
        made = model(X).square().sum()
        made.backward()
        losses.append(made.detach())
    return [*losses, *(each.grad for each in model.parameters())]


@pytest.fixture
def traces(monkeypatch):
    """The number of graphs that PyTorch has traced."""
    found = []
    real = torch._dynamo.convert_frame.trace_frame

    def counted(*args, **kwargs):
        found.append(args)
        return real(*args, **kwargs)

    monkeypatch.setattr(torch._dynamo.convert_frame, "trace_frame", counted)
    return found


@pytest.mark.parametrize("kind", [nn.Sequential, Drawing])
def test_planning_for_an_example_runs_nothing(kind):
    model = kind() if kind is Drawing else nn.Sequential(nn.Linear(16, 4), nn.Dropout())
    state = copy.deepcopy(model.state_dict())
    drawn, python = torch.get_rng_state(), random.getstate()
    mt.budget(model, "1MiB", example=(X,), times="nominal")
    assert torch.equal(torch.get_rng_state(), drawn)
    assert random.getstate() == python
    assert all(torch.equal(state[k], v) for k, v in model.state_dict().items())
    assert mt.get_budget(model).predicted_peak_bytes > 0


def test_the_trace_of_an_example_is_that_of_the_first_step(traces):
    plain = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Dropout(), nn.Linear(64, 16))
    model = copy.deepcopy(plain)
    mt.budget(model, "1MiB", example=(X,), times="nominal")
    assert len(traces) == 1
    found = trained(model)
    assert len(traces) == 1
    assert all(map(torch.equal, found, trained(plain)))


def test_a_step_of_another_shape_than_the_example_is_traced(traces):
    model = mt.budget(nn.Linear(16, 4), "1MiB", example=(X[:4],), times="nominal")
    trained(model, 1)
    assert len(traces) == 2


def planned(limit=1, folder=None):
    """The plan and the peak of a step, or the refusal of a limit."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(5)]
    model = nn.Sequential(*blocks, nn.Linear(16, 1))
    told = {"example": (torch.ones(64, 16),), "times": "nominal", "spill_to": folder}
    try:
        mt.budget(model, limit, **told)
    except InfeasiblePlanError as error:
        return str(error), planned(error.smallest_limit_bytes) if limit == 1 else None
    budget = mt.get_budget(model)
    return budget.memory_plan, budget.predicted_peak_bytes


def test_plans_are_found_in_files_and_judged_again(tmp_path, monkeypatch):
    without = planned()
    folder = tmp_path / "plans"
    monkeypatch.setenv("MEMCFG_TORCH_PLANS", str(folder))
    assert planned() == without
    files = sorted(folder.iterdir())
    assert len(files) >= 2  # of a refusal and of a plan
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    made = [each.stat().st_ino for each in files]
    assert planned() == without
    assert [each.stat().st_ino for each in files] == made
    plans = [each for each in files if b'"actions"' in each.read_bytes()]
    head, data = plans[0].read_bytes().split(b'{"format"', 1)
    magic = head[: head.index(b"\n") + 1]
    wrong = b'{"format"' + data.replace(b'"limit_bytes": ', b'"limit_bytes": 9', 1)
    for each in plans:  # intact files, of plans for other limits
        each.write_bytes(magic + sha256(wrong).digest() + wrong)
    assert planned() == without
    assert not any(wrong in each.read_bytes() for each in files)


def test_a_plan_that_moves_tensors_is_not_one_that_cannot(tmp_path, monkeypatch):
    _, (plan, _) = planned()
    monkeypatch.setenv("MEMCFG_TORCH_PLANS", str(tmp_path / "plans"))
    planned(plan.limit_bytes - 2**12, tmp_path)  # with a place to leave for
    again, _ = planned(plan.limit_bytes - 2**12)
    assert isinstance(again, str)


def test_a_bag_of_embeddings_stays_within_the_smallest_limit(pool):
    bags = nn.EmbeddingBag(50, 8, mode="mean")
    words = torch.randint(50, (64, 4))
    floor = mt.estimate(bags, (words,), loss=torch.sum).floor_bytes
    mt.budget(bags, floor, loss=torch.sum)
    inputs = 64 * 4 * 8
    for _ in range(2):
        bags.zero_grad()
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        bags(words).sum().backward()
        added = mt.get_memory_info()["peak"] - before
    assert added + 50 * 8 * 4 + inputs <= floor
