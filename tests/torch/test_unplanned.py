"""What cannot be traced as one graph runs in eager mode, within the limit."""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import random
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
X = torch.linspace(-1, 1, 64).reshape(8, 8)


class Layers(nn.Module):
    """Some layers, between which a test does something."""

    def __init__(self, width=8, depth=1):
        super().__init__()
        each = (nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(depth))
        self.first, self.last = nn.Sequential(*each), nn.Linear(width, width)

    def forward(self, x):
        return self.last(self.first(x)).tanh()


class Branches(Layers):
    def forward(self, x):
        x = self.first(x)
        if x.sum() > 1000:  # the line that breaks the graph
            x = x * 2
        return self.last(x).tanh()


class Items(Layers):
    def forward(self, x):
        x = self.first(x)
        return self.last(x / x.abs().max().item())


class Masks(Layers):
    def forward(self, x):
        x = self.first(x)
        return self.last(x[x[:, 0] > 0]).tanh()


class Drops(Layers):
    def forward(self, x):
        x = self.first(x)
        return self.last(x) if random.random() < 0.5 else x.tanh()


class Captures(Layers):
    def forward(self, x):
        with contextlib.redirect_stdout(io.StringIO()):
            print("half way")
        return self.last(self.first(x))


class Packs(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells, self.last = nn.GRU(8, 8, batch_first=True), nn.Linear(8, 4)

    def forward(self, x):
        lengths = torch.tensor([4, 3])
        packed = pack_padded_sequence(x.view(2, 4, 8), lengths, batch_first=True)
        return self.last(pad_packed_sequence(self.cells(packed)[0])[0])


def step(model, *args, seed=0):
    """Forward and backward; the output and the gradients."""
    for each in (random.seed, np.random.seed, torch.manual_seed):
        each(seed)
    made = model(*args)
    made.square().sum().backward()
    gradients = [each.grad for each in model.parameters()]
    model.zero_grad()
    return [made.detach(), *(each for each in gradients if each is not None)]


def same(some, others):
    return len(some) == len(others) and all(map(torch.equal, some, others))


def budgeted(model, limit="1MiB", **options):
    """A model with a budget, and the same without one."""
    plain = copy.deepcopy(model)
    return mt.budget(model, limit, **{"times": "nominal", **options}), plain


@pytest.mark.parametrize("kind", [Branches, Items, Masks, Drops, Captures, Packs])
def test_a_model_that_breaks_has_the_bits_of_eager_and_one_warning(kind):
    model, plain = budgeted(kind())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for seed in range(3):
            assert same(step(model, X, seed=seed), step(plain, X, seed=seed))
    told = [e for e in caught if "is not planned as a whole" in str(e.message)]
    assert len(told) == 1
    assert "Not planned: " in mt.get_budget(model).memory_report()
    with torch.no_grad():
        assert model(X).shape[-1] == plain(X).shape[-1]


def test_the_warning_and_the_report_name_the_line():
    with pytest.warns(RuntimeWarning, match="the rest runs in eager mode") as caught:
        model, _ = budgeted(Branches(), example=(X,))
    line = Branches.forward.__code__.co_firstlineno + 2
    where = f"test_unplanned.py:{line}, in forward"
    assert any(where in str(each.message) for each in caught)
    assert where in mt.get_budget(model).memory_report()


def peak_of(model, x):
    """The bytes of a step at its peak, with those of parameters and inputs."""
    before = mt.get_memory_info()["current"]
    mt.reset_memory_stats()
    made = step(model, x)
    held = sum(each.nbytes for each in (*model.parameters(), x))
    return mt.get_memory_info()["peak"] - before + held, made


class Flat(nn.Module):
    """Layers of PyTorch, none of which is planned by itself."""

    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x):
        for each in self.layers:
            x = each(x).tanh()
            if x.sum() > 1e6:
                x = x * 2
        return x


@pytest.mark.parametrize("part", [0.7, 0.8, 1.3])
def test_a_model_that_breaks_stays_within_the_limit(pool, tmp_path, part):
    x = torch.randn(256, 64)
    model = Flat(64, depth=12)
    eager, _ = peak_of(copy.deepcopy(model), x)
    limit = int(part * eager)
    model, plain = budgeted(model, limit, spill_to=tmp_path)
    for _ in range(4):
        used, made = peak_of(model, x)
        assert used <= limit
        assert same(made, step(plain, x))
    report = mt.get_budget(model)._unplanned.saved.memory_report()
    assert (report.spilled_bytes > 0) == (part < 1)


def test_a_limit_without_room_is_an_error_and_the_next_step_goes_on(pool):
    x = torch.randn(256, 64)
    model = Flat(64, depth=12)
    eager, _ = peak_of(copy.deepcopy(model), x)
    model, plain = budgeted(model, eager // 2)
    with pytest.raises(mt.OutOfMemoryError, match=r"budget\(\.\.\., spill_to="):
        model(x)
    assert same(step(model, x[:32]), step(plain, x[:32]))
    model, _ = budgeted(Flat(64, depth=12), 2**16)
    with pytest.raises(InfeasiblePlanError, match="alone need more"):
        model(x)


class Asks(Flat):
    """Computes something else while it is traced, which does not fit its inputs."""

    def forward(self, x):
        if torch.compiler.is_compiling():
            x = x + torch.zeros(7, 3)
        return super().forward(x)


def test_a_limit_without_room_is_no_error_of_inputs_that_cannot_be_traced():
    x = torch.randn(256, 64)
    model, plain = budgeted(Asks(64, depth=12), "600KiB")
    with pytest.raises(mt.OutOfMemoryError, match=r"budget\(\.\.\., spill_to="):
        model(x)
    assert same(step(model, x[:32]), step(plain, x[:32]))


def test_numbers_of_python_and_numpy_are_those_of_eager_and_are_planned():
    class Noisy(Layers):
        def forward(self, x):
            x = self.first(x) * random.random() + random.uniform(1, 2)
            drawn = np.random.uniform(1, 2), np.random.randint(3)  # noqa: NPY002
            x = x * drawn[0] + drawn[1]
            return self.last(x) * random.randint(1, 5)

    model, plain = budgeted(Noisy())
    for seed in range(3):
        assert same(step(model, X, seed=seed), step(plain, X, seed=seed))
    assert mt.get_budget(model).predicted_peak_bytes > 0


def test_a_backward_phase_that_is_differentiated_runs_in_eager_mode():
    model, plain = budgeted(Layers())
    x = X.clone().requires_grad_()

    def penalty(each):
        out = each(x)
        (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (slope.square().sum() + out.sum()).backward()
        gradients = [p.grad for p in each.parameters()]
        each.zero_grad()
        return gradients

    with pytest.raises(RuntimeError, match="run the step again"):
        penalty(model)
    for _ in range(2):
        assert same(penalty(model), penalty(plain))
    assert "create_graph=True" in mt.get_budget(model).memory_report()


def test_gradients_of_examples_are_those_of_eager_and_warn_once():
    model, plain = budgeted(Layers())
    weights = {name: each.detach() for name, each in plain.named_parameters()}

    def gradients(each):
        def loss(given, x):
            return torch.func.functional_call(each, given, (x[None],)).sum()

        made = torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)
        return list(made.values())

    with pytest.warns(RuntimeWarning, match="without its plan and its limit"):
        made = gradients(model)
    assert same(made, gradients(plain))
    assert same(step(model, X), step(plain, X))


def losses_of(model, make):
    """Three steps of an optimizer that takes a closure; their losses."""
    optimizer = make(model.parameters())

    def closure():
        optimizer.zero_grad()
        loss = model(X).square().sum()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(3)]


@pytest.mark.parametrize("search", [None, "strong_wolfe"])
def test_the_closures_of_lbfgs_are_planned_with_all_that_it_holds(pool, search):
    def make(parameters):
        return torch.optim.LBFGS(parameters, history_size=3, line_search_fn=search)

    model, plain = Layers(), Layers()
    plain.load_state_dict(model.state_dict())
    optimizer = make(model.parameters())
    told = mt.estimate(model, (X,), optimizer=optimizer, times="nominal")
    mt.budget(model, "1MiB", times="nominal", optimizer=optimizer)
    held = []
    model.register_forward_pre_hook(
        lambda *_: held.append(mt.get_memory_info()["current"])
    )
    gc.collect()  # the estimate's trace leaves tensors in cycles
    made = losses_of(model, make)
    assert same(made, losses_of(plain, make))
    gradients = sum(each.nbytes for each in model.parameters())
    state = told.by_role["optimizer state"]
    assert 0.5 * state <= max(held) - held[0] <= state + gradients + 2**12


def test_muon_and_steps_in_backward_train_as_in_eager():
    def muon(model):
        own = [each for each in model.parameters() if each.ndim == 2]
        optimizer = torch.optim.Muon(own, lr=0.01)
        model(X).square().sum().backward()
        optimizer.step()
        model.zero_grad()

    def in_backward(model):
        def update(each):
            optimizers[each].step()
            each.grad = None

        optimizers = {
            each: torch.optim.Adam([each], foreach=False) for each in model.parameters()
        }
        hooks = [each.register_post_accumulate_grad_hook(update) for each in optimizers]
        model(X).square().sum().backward()
        for each in hooks:
            each.remove()

    model, plain = budgeted(Layers())
    for run in (muon, in_backward):
        run(model), run(plain)
        assert same([*model.parameters()], [*plain.parameters()])
