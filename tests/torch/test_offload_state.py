"""Weights, gradients and the optimizer's state in files: bits, bytes, refusals."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn, optim
from torch_allocations import allocated_peak, rounded

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

F = nn.functional
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),
]
WORDS, WIDTH = 200, 128
ALL = ("optimizer_state", "gradients", "weights")


class Net(nn.Module):
    """Layers with an embedding that the output layer shares."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x):
        h = self.words(x)
        h = h + self.down(F.gelu(self.up(self.norm(h))))
        return F.linear(self.norm(h), self.words.weight)


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, WORDS, (2, 8), generator=generator) for _ in range(count)]


def train(model, optimizer, steps=3, clip=None):
    losses = []
    for x in batches(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x).flatten(0, 1), x.flatten())
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
    return losses


def same(first, second):
    pairs = zip(first.parameters(), second.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def budgeted(model, folder, offload, limit="1GiB", make=optim.AdamW, **options):
    optimizer = make(model.parameters(), 1e-2)
    options = {"times": "nominal", "spill_to": folder, **options}
    mt.budget(model, limit, optimizer=optimizer, offload=offload, **options)
    return optimizer


@pytest.mark.parametrize(
    "offload",
    [
        ("optimizer_state",),
        ("gradients",),
        ("weights",),
        ALL,
        ("optimizer_state", "step_in_backward"),
        ("optimizer_state", "weights", "step_in_backward"),
    ],
    ids="+".join,
)
def test_what_lies_in_files_has_the_bits_of_eager(offload, tmp_path):
    eager = Net()
    model = copy.deepcopy(eager)
    losses = train(eager, wanted := optim.AdamW(eager.parameters(), 1e-2))
    optimizer = budgeted(model, tmp_path, offload)
    assert train(model, optimizer) == losses
    assert same(eager, model)
    found, known = optimizer.state_dict()["state"], wanted.state_dict()["state"]
    assert found.keys() == known.keys()
    for at, state in known.items():
        assert state.keys() == found[at].keys()
        assert all(torch.equal(state[key], found[at][key]) for key in state)
    mt.budget(model, None)  # all comes back
    assert train(model, optimizer) == train(eager, wanted)
    assert same(eager, model)


def test_the_measured_peak_is_the_planned_one_and_state_is_not_in_it(tmp_path):
    sizes = {}
    for offload in (None, ("gradients",), ALL):
        torch._dynamo.reset()
        model = Net()
        optimizer = budgeted(model, tmp_path, offload, make=optim.SGD)
        train(model, optimizer, 2)
        optimizer.zero_grad()
        x = batches(1)[0]
        used = allocated_peak(
            lambda m=model, x=x: F.cross_entropy(
                m(x).flatten(0, 1), x.flatten()
            ).backward()
        )
        resident = [p for p in model.parameters() if offload != ALL or p.nbytes < 2**16]
        measured = used + sum(rounded(p.nbytes) for p in resident) + rounded(x.nbytes)
        predicted = mt.get_budget(model).predicted_peak_bytes
        assert measured <= predicted
        sizes[offload] = predicted
    assert sizes[ALL] < sizes[("gradients",)] < sizes[None]


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
        (optim.SGD, {}),
        (optim.Adam, {"amsgrad": True}),
        (optim.AdamW, {"foreach": True}),
        (optim.AdamW, {"fused": True}),
        (optim.Adagrad, {}),
        (optim.RMSprop, {"momentum": 0.9, "centered": True}),
        (optim.Adadelta, {}),
        (optim.Adamax, {}),
        (optim.NAdam, {}),
        (optim.RAdam, {}),
        (optim.Rprop, {}),
        (optim.ASGD, {}),
    ],
    ids=lambda each: getattr(each, "__name__", None) or "+".join(each) or "plain",
)
def test_steps_in_pieces_have_the_bits_of_whole_steps(make, options, tmp_path):
    """A weight of several pieces, the last of which fills no vector."""
    rows = 2**20 // 33 + 700

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(-1, 1, rows * 33).view(rows, 33))

        def forward(self, x):
            return self.weight[:: x.shape[0]] * self.weight[:: x.shape[0]].cos()

    eager, model = Wide(), Wide()
    wanted = make(eager.parameters(), 1e-2, **options)
    found = make(model.parameters(), 1e-2, **options)
    offload = ("optimizer_state", "gradients")
    mt.budget(
        model,
        "1GiB",
        optimizer=found,
        spill_to=tmp_path,
        offload=offload,
        times="nominal",
    )
    x = torch.zeros(2)
    for _ in range(2):
        for each, optimizer in ((eager, wanted), (model, found)):
            optimizer.zero_grad()
            each(x).square().sum().backward()
            optimizer.step()
    assert same(eager, model)


def test_auto_takes_what_it_needs_and_no_more(tmp_path):
    x = batches(1)[0]
    model = Net()
    with pytest.raises(InfeasiblePlanError) as caught:
        budgeted(model, tmp_path, None, 1, example=(x,))
    floor = caught.value.smallest_limit_bytes
    eager = Net()
    model = copy.deepcopy(eager)
    optimizer = budgeted(model, tmp_path, "auto", floor - 2**16, example=(x,))
    report = mt.get_budget(model).memory_report()
    assert "In files: optimizer state" in report
    assert "gradients" not in report.partition("\n")[0]
    assert mt.get_budget(model).predicted_peak_bytes <= floor - 2**16
    losses = train(eager, optim.AdamW(eager.parameters(), 1e-2))
    assert train(model, optimizer) == losses
    assert "Copied in each of 3 steps" in mt.get_budget(model).memory_report()
    assert same(eager, model)


def test_auto_takes_nothing_where_the_step_fits(tmp_path):
    model = Net()
    optimizer = budgeted(model, tmp_path, "auto", example=(batches(1)[0],))
    assert "In files" not in mt.get_budget(model).memory_report()
    assert "step" not in vars(optimizer)


def test_gradients_in_a_file_are_clipped_and_added_to(tmp_path):
    eager = Net()
    model = copy.deepcopy(eager)
    wanted = optim.AdamW(eager.parameters(), 1e-2)
    optimizer = budgeted(model, tmp_path, ALL)
    assert train(model, optimizer, 2, clip=0.1) == train(eager, wanted, 2, clip=0.1)
    for each in (eager, model):
        each.zero_grad()
        for x in batches(2):  # accumulated
            F.cross_entropy(each(x).flatten(0, 1), x.flatten()).backward()
    pairs = zip(eager.parameters(), model.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_state_is_loaded_into_the_file(tmp_path):
    eager = Net()
    wanted = optim.AdamW(eager.parameters(), 1e-2)
    train(eager, wanted)
    model = copy.deepcopy(eager)
    optimizer = budgeted(model, tmp_path, ("optimizer_state",))
    optimizer.load_state_dict(copy.deepcopy(wanted.state_dict()))
    assert train(model, optimizer) == train(eager, wanted)
    assert same(eager, model)


def test_a_scheduler_sees_the_steps(tmp_path):
    model = Net()
    optimizer = budgeted(model, tmp_path, ("optimizer_state",))
    scheduler = optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    eager = copy.deepcopy(model)
    wanted = optim.AdamW(eager.parameters(), 1e-2)
    other = optim.lr_scheduler.StepLR(wanted, 1, 0.5)
    for _ in range(2):
        assert train(model, optimizer, 1) == train(eager, wanted, 1)
        scheduler.step()
        other.step()
    assert same(eager, model)


def test_steps_in_backward_refuse_what_needs_gradients(tmp_path):
    model = Net()
    optimizer = budgeted(model, tmp_path, ("optimizer_state", "step_in_backward"))
    x = batches(1)[0]
    with pytest.raises(RuntimeError, match="can be neither clipped"):
        train(model, optimizer, 1, clip=1.0)
    optimizer.step()
    with pytest.raises(RuntimeError, match=r"call zero_grad\(\) before each backward"):
        model(x).sum().backward()
    optimizer.zero_grad()
    with pytest.raises(RuntimeError, match="retain_graph=True"):
        model(x).sum().backward(retain_graph=True)


def test_what_cannot_lie_in_files_is_refused(tmp_path):
    model = Net()

    def refused(match, kind=ValueError, **given):
        options = {"offload": "optimizer_state", "spill_to": tmp_path, **given}
        with pytest.raises(kind, match=match):
            mt.budget(model, "1GiB", **options)

    adam = optim.AdamW(model.parameters())
    refused("knows optimizer_state, frozen_weights", offload="state", optimizer=adam)
    refused("offload is 'auto', None or names", TypeError, offload=3, optimizer=adam)
    refused(r"pass budget\(\.\.\., optimizer=", offload="gradients")
    refused("say where, by spill_to=", optimizer=adam, spill_to=None)
    refused("Adafactor", optimizer=optim.Adafactor(model.parameters()))
    capturable = optim.Adam(model.parameters(), differentiable=True)
    refused("differentiable=True", optimizer=capturable)
    with pytest.raises(TypeError, match="limit=None takes the budget off"):
        mt.budget(model, None, offload="gradients")
    assert vars(model).get("forward") is None
    assert math.isfinite(train(model, adam, 1)[0])
