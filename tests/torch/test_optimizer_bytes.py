"""What the step of an optimizer has in use for a while, beside what is predicted."""

from __future__ import annotations

import copy
import gc
import math
import warnings
from functools import partial

import pytest
import torch
from internals import optimizer_bytes, update_bytes
from torch_allocations import allocated_peak, rounded

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

optim = torch.optim
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Complex modules"),
]


def network():
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.Tanh(), torch.nn.Linear(512, 300)
    )


KINDS = {
    "SGD": partial(optim.SGD, lr=0.1),
    "momentum": partial(optim.SGD, lr=0.1, momentum=0.9),
    "nesterov": partial(
        optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
    ),
    "Adam": optim.Adam,
    "amsgrad": partial(optim.Adam, amsgrad=True, weight_decay=0.1),
    "AdamW": optim.AdamW,
    "RMSprop": partial(optim.RMSprop, centered=True, momentum=0.9),
    "Adagrad": optim.Adagrad,
    "Adadelta": optim.Adadelta,
    "Adamax": optim.Adamax,
    "NAdam": optim.NAdam,
    "RAdam": optim.RAdam,
    "Rprop": optim.Rprop,
    "Adafactor": optim.Adafactor,
}
WAYS = [
    *((name, {"foreach": each}) for name in KINDS for each in (False, True, None)),
    *((name, {"fused": True}) for name in ("momentum", "Adam", "AdamW", "Adagrad")),
]


def warm(module, optimizer, steps=6):
    """Steps after which counters are those of any other step."""
    for each in module.parameters():
        each.grad = torch.randn_like(each)
    for _ in range(steps):
        optimizer.step()


@pytest.mark.parametrize(("name", "how"), WAYS)
def test_temporaries_are_those_that_the_allocator_gives(name, how):
    module = network()
    optimizer = KINDS[name](module.parameters(), **how)
    before = [each.detach().clone() for each in module.parameters()]
    state = str(optimizer.state_dict())
    told = update_bytes(optimizer)
    assert str(optimizer.state_dict()) == state
    assert all(map(torch.equal, before, module.parameters()))
    assert all(each.grad is None for each in module.parameters())
    warm(module, optimizer)
    assert told - 128 <= allocated_peak(optimizer.step) <= told
    assert update_bytes(optimizer) == told  # as well when it has stepped


def test_groups_and_frozen_parameters_are_counted_as_they_are():
    module = network()
    first, last = module[0], module[2]
    first.bias.requires_grad_(False)
    groups = [
        {"params": list(first.parameters())},
        {"params": list(last.parameters()), "foreach": True},
    ]
    optimizer = optim.Adam(groups, foreach=False)
    told = update_bytes(optimizer)
    for each in module.parameters():
        each.grad = torch.randn_like(each) if each.requires_grad else None
    for _ in range(3):
        optimizer.step()
    assert told - 128 <= allocated_peak(optimizer.step) <= told


def loop(run, optimizer, x):
    """A step as people write it: outputs and loss live until it ends."""
    optimizer.zero_grad()
    out = run(x)
    loss = out.square().mean()
    loss.backward()
    optimizer.step()


STEPPED = [
    ("momentum", {}),
    *(
        (name, {"foreach": each})
        for name in ("Adam", "AdamW")
        for each in (True, False)
    ),
]


@pytest.mark.parametrize(("name", "how"), STEPPED)
@pytest.mark.parametrize("rows", [8, 4096])
def test_a_predicted_peak_covers_the_step_of_the_optimizer(name, how, rows):
    module, x = network(), torch.randn(rows, 256)
    optimizer = KINDS[name](module.parameters(), **how)
    told = mt.estimate(
        module, (x,), optimizer=optimizer, loss=lambda out: out.square().mean()
    )
    run = mt.budget(
        module,
        told.peak_bytes,
        example=(x,),
        optimizer=optimizer,
        loss=lambda out: out.square().mean(),
    )
    assert mt.get_budget(run).predicted_peak_bytes == told.peak_bytes
    loop(run, optimizer, x)
    gc.collect()
    mt.limit_cpu("1GiB", tag_modules=False)
    before = mt.get_memory_info()["current"]
    try:
        twin = copy.deepcopy(module)  # in the pool, and all that it needs
        optimizer = KINDS[name](twin.parameters(), **how)
        x = x.clone()
        run = mt.budget(
            twin, math.inf, optimizer=optimizer, loss=lambda out: out.square().mean()
        )
        for _ in range(2):
            loop(run, optimizer, x)
        optimizer.zero_grad()
        mt.reset_memory_stats()
        loop(run, optimizer, x)
        measured = mt.get_memory_info()["peak"] - before
    finally:
        mt.limit_cpu(None)
    assert 0.99 <= told.peak_bytes / measured <= 1.01
    at_update = (
        "step of the optimizer" in mt.get_budget(run).memory_report().splitlines()[0]
    )
    assert at_update == (rows == 8 and name != "momentum")


def test_a_limit_below_the_step_of_the_optimizer_is_refused():
    module, x = network(), torch.randn(8, 256)
    adam = optim.Adam(module.parameters(), foreach=True)
    told = mt.estimate(module, (x,), optimizer=adam, times="nominal")
    own = sum(rounded(each.nbytes) for each in module.parameters())
    assert told.floor_bytes >= 5 * own  # with gradients, two moments, one list of roots
    below = partial(mt.budget, module, told.floor_bytes - 64, times="nominal")
    with pytest.raises(InfeasiblePlanError, match=r"(?s)the optimizer\..*fused=True"):
        below(example=(x,), optimizer=adam)
    fused = optim.Adam(module.parameters(), fused=True)
    lower = mt.estimate(module, (x,), optimizer=fused, times="nominal")
    assert lower.floor_bytes < told.floor_bytes
    below(example=(x,), optimizer=fused)


def test_gradients_that_are_there_are_not_counted_twice_in_an_update():
    module, x = network(), torch.randn(8, 256)
    adam = optim.Adam(module.parameters(), foreach=True)
    told = mt.estimate(module, (x,), optimizer=adam, times="nominal")
    warm(module, adam, 1)
    again = mt.estimate(module, (x,), optimizer=adam, times="nominal")
    own = sum(rounded(each.nbytes) for each in module.parameters())
    assert again.by_role["gradients so far"] == own
    # An update has one set of gradients: what is there has room for its roots.
    assert again.peak_bytes - told.peak_bytes <= rounded(own)
    run = mt.budget(module, again.peak_bytes, optimizer=adam, times="nominal")
    run(x).square().mean().backward()
    assert mt.get_budget(run).predicted_peak_bytes <= again.peak_bytes


class Strange(optim.SGD):
    def step(self, closure=None):
        raise RuntimeError("only on Sundays")


def test_an_optimizer_that_cannot_be_traced_is_said_and_not_counted():
    module = torch.nn.Linear(256, 8, bias=False)
    optimizer = Strange(module.parameters(), lr=0.1)
    with pytest.warns(RuntimeWarning, match="step of Strange .* only on Sundays"):
        assert update_bytes(optimizer) is None


def test_what_a_step_of_lbfgs_has_in_use_is_counted_as_its_state():
    module, x = torch.nn.Linear(256, 8, bias=False), torch.randn(8, 256)
    lbfgs = optim.LBFGS(module.parameters(), max_iter=1, history_size=3)

    def closure():
        lbfgs.zero_grad()
        loss = module(x).square().mean()
        loss.backward()
        return loss

    lbfgs.step(closure)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="what a step of LBFGS has in use")
        assert update_bytes(lbfgs) is None
        told = mt.estimate(module, (x,), optimizer=lbfgs, times="nominal")
    own = module.weight.nbytes
    # two vectors for each step that it remembers, and six of its direction
    assert 12 * own <= told.by_role["optimizer state"] <= 12 * own + 2**10


STATES = {**KINDS, "Muon": partial(optim.Muon, lr=0.1)}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.complex64]


class Third(optim.Optimizer):
    """One of another library's, whose step no fake tensor takes."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure=None):
        for each in self.param_groups[0]["params"]:
            assert not each.detach().cpu().resolve_conj().isnan().any()
            own = self.state[each]
            own["nested"] = [torch.zeros_like(each), torch.zeros(3)]


STATES["Third"] = Third


@pytest.mark.parametrize("name", STATES)
def test_state_is_that_of_each_parameters_own_dtype(name):
    """Beside one another: for one optimizer of all, state as it is after a step."""
    module = torch.nn.Linear(33, 9, bias=name != "Muon")
    twins = {each: copy.deepcopy(module).to(each) for each in DTYPES}
    if name in ("Muon", "Rprop", "Adafactor", "NAdam"):  # which refuse complex numbers
        del twins[torch.complex64]
    own = [each for twin in twins.values() for each in twin.parameters()]
    optimizer = STATES[name](own)
    before = str(optimizer.state)
    told = optimizer_bytes(optimizer)
    assert str(optimizer.state) == before
    for each in own:
        each.grad = torch.ones_like(each)
    optimizer.step()
    made = torch.utils._pytree.tree_leaves(list(map(dict, optimizer.state.values())))
    made = [each for each in made if isinstance(each, torch.Tensor)]
    assert told == sum(rounded(each.untyped_storage().nbytes()) for each in made)
    assert optimizer_bytes(optimizer) == told


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_a_limit_holds_with_the_state_of_another_dtype(dtype):
    def loss(out):
        return out.abs().square().mean()

    layers = torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 32)
    mt.limit_cpu("1GiB", tag_modules=False)
    before = mt.get_memory_info()["current"]
    try:
        module = torch.nn.Sequential(*layers).to(dtype)
        x = torch.randn(16, 64, dtype=dtype)
        optimizer = optim.AdamW(module.parameters())
        told = mt.estimate(module, (x,), loss=loss, optimizer=optimizer)
        limit = told.floor_bytes
        run = mt.budget(module, limit, loss=loss, optimizer=optimizer)
        peaks = []
        for _ in range(3):
            gc.collect()  # a state of the generator, from planning
            mt.reset_memory_stats()
            optimizer.zero_grad()
            found = loss(run(x))
            found.backward()
            optimizer.step()
            del found
            peaks.append(mt.get_memory_info()["peak"] - before)
    finally:
        mt.limit_cpu(None)
    assert 0.97 * limit <= peaks[-1] <= limit


def test_parameters_that_an_optimizer_gets_later_are_counted():
    module, x = network(), torch.randn(8, 256)
    module[0].requires_grad_(False)
    adam = optim.Adam(module[2].parameters(), foreach=False)
    run = mt.budget(module, math.inf, optimizer=adam, times="nominal")
    run(x).sum().backward()
    first = mt.get_budget(run).predicted_peak_bytes
    module[0].requires_grad_(True)
    adam.add_param_group({"params": list(module[0].parameters())})
    run(x).sum().backward()
    added = sum(rounded(each.nbytes) for each in module[0].parameters())
    assert mt.get_budget(run).predicted_peak_bytes >= first + 3 * added
    tight = mt.budget(module, first + added, optimizer=adam, times="nominal")
    with pytest.raises(InfeasiblePlanError):
        tight(x)


def to_double(module, _, x):
    module.double()
    return x.double()


def replaced(module, optimizer, x):
    """Swap a parameter for a larger one, whose number is the same."""
    module[2] = torch.nn.Linear(512, 2000)
    optimizer.param_groups[0]["params"][2:] = list(module[2].parameters())
    return x


def another_one_frozen(module, optimizer, x):
    """Train a large layer in place of a small one; the state of both stays."""
    module[0].requires_grad_(True)
    module[2].requires_grad_(False)
    return x


def with_amsgrad(_module, optimizer, x):
    optimizer.param_groups[0]["amsgrad"] = True
    return x


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize(
    "change", [to_double, replaced, another_one_frozen, with_amsgrad]
)
def test_parameters_that_change_after_a_budget_are_counted(change, foreach):
    """The peak as the pool sees it is within the limit that is named then."""

    def loss(out):
        return out.square().mean()

    def made():
        module = network()
        module[0].requires_grad_(change is not another_one_frozen)
        optimizer = optim.AdamW(module.parameters(), foreach=foreach)
        return module, optimizer, torch.randn(8, 256)

    def budgeted(limit, module, optimizer, x):
        options = {"optimizer": optimizer, "loss": loss, "times": "nominal"}
        run = mt.budget(module, limit, example=(x,), **options)
        if change is another_one_frozen:
            loop(run, optimizer, x)  # so that there is state
        return run

    module, optimizer, x = made()
    limit = mt.estimate(
        module, (x,), optimizer=optimizer, loss=loss, times="nominal"
    ).peak_bytes
    run = budgeted(limit, module, optimizer, x)
    x = change(module, optimizer, x)
    optimizer.zero_grad()
    with pytest.raises(InfeasiblePlanError) as refused:
        run(x)
    limit = refused.value.smallest_limit_bytes
    del run, module, optimizer, x
    gc.collect()
    torch._dynamo.reset()
    mt.limit_cpu("1GiB", tag_modules=False)
    before = mt.get_memory_info()["current"]
    try:
        module, optimizer, x = made()
        run = budgeted(limit, module, optimizer, x)
        x = change(module, optimizer, x)
        peaks = []
        for _ in range(2):
            gc.collect()
            mt.reset_memory_stats()
            optimizer.zero_grad()
            out = run(x)  # held until the next one is assigned
            loss(out).backward()
            optimizer.step()
            peaks.append(mt.get_memory_info()["peak"] - before)
    finally:
        mt.limit_cpu(None)
    assert 0.95 * limit <= peaks[-1] <= limit
