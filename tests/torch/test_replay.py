"""Random ops of PyTorch that are computed again: to the bit, and masks are gone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch_allocations import allocated_peak, rounded
from torch_steps import last_step

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

F = torch.nn.functional
pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
ROWS, WIDTH, LAYERS = 1024, 64, 12
MASK = ROWS * WIDTH * 4  # bytes of what a dropout layer keeps for backward


class Layers(torch.nn.Module):
    """Dense layers, each followed by something that draws numbers."""

    def __init__(self, draw=F.dropout, count=LAYERS):
        super().__init__()
        self.draw = draw
        self.inner = torch.nn.ModuleList(
            torch.nn.Linear(WIDTH, WIDTH) for _ in range(count)
        )

    def forward(self, x):
        for each in self.inner:
            x = self.draw(torch.tanh(each(x)))
        return x.mean(1)


def state_bytes(module, x):
    return sum(rounded(each.nbytes) for each in (*module.parameters(), x))


def trained(module, run, x, *, steps=4, passes=1, reseeded=False):
    """Losses, gradients, weights, and the generator's state after some steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(1)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        for _ in range(passes):
            loss = run(x).square().sum()
            if reseeded:
                torch.manual_seed(number)
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
    gradients = [each.grad for each in module.parameters()]
    return [*losses, *gradients, *module.parameters(), torch.get_rng_state()]


def floor_of(module, x):
    with pytest.raises(InfeasiblePlanError) as caught:
        mt.budget(copy.deepcopy(module), 64, example=(x,))
    return caught.value.smallest_limit_bytes


@pytest.mark.parametrize(("passes", "reseeded"), [(1, False), (1, True), (3, False)])
def test_steps_with_dropout_have_eagers_bits_at_low_limits(passes, reseeded):
    original, x = Layers(), torch.randn(ROWS, WIDTH)
    how = {"passes": passes, "reseeded": reseeded}
    eager = copy.deepcopy(original)
    wanted = trained(eager, eager, x, **how)
    floor = floor_of(original, x)
    grads = sum(rounded(each.nbytes) for each in original.parameters())
    for limit in (None, 2 * floor, floor + (grads if passes > 1 else 0)):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit)
        assert all(map(torch.equal, trained(module, run, x, **how), wanted))


def test_a_limit_below_what_all_masks_have_is_kept():
    original, x = Layers(), torch.randn(ROWS, WIDTH)
    floor = floor_of(original, x)
    assert floor < LAYERS * MASK  # which keeping them needs, beside all else
    run = mt.budget(original, floor, example=(x,))
    graph, plan = last_step(run).traced, mt.get_budget(run).memory_plan
    replayed = graph.states.keys() & {
        op
        for op, state in graph.states.items()
        if graph.storage_of[state] not in graph.unused_states(plan)
    }
    assert len(replayed) > LAYERS // 2
    run(x).square().sum().backward()
    for each in original.parameters():
        each.grad = None
    used = allocated_peak(lambda: run(x).square().sum().backward())
    measured = used + state_bytes(original, x)
    assert measured <= floor
    assert 0.98 <= floor / measured <= 1.02


def test_states_are_counted():
    """At the floor, each state that is held is a tensor of the plan."""
    original, x = Layers(), torch.randn(ROWS, WIDTH)
    run = mt.budget(original, floor_of(original, x), example=(x,))
    traced = last_step(run).traced
    unused = traced.unused_states(mt.get_budget(run).memory_plan)
    held = [traced.storage_of[each] for each in traced.states.values()]
    nbytes = rounded(torch.get_rng_state().nbytes)
    assert {traced.graph.tensors[each].nbytes for each in held} == {nbytes}
    assert len(unused) < len(held)
    roomy = mt.budget(original, math.inf, example=(x,))
    traced = last_step(roomy).traced
    assert len(traced.unused_states(mt.get_budget(roomy).memory_plan)) == len(
        traced.states
    )


def scaled_attention(x):
    q, k, v = (each.view(8, -1, WIDTH) for each in (x, x.sin(), x.cos()))
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).view(x.shape)


def gumbel(x):
    return F.gumbel_softmax(x, hard=True)


DRAWS = {
    "dropout": F.dropout,
    "native_dropout": lambda x: torch.native_dropout(x, 0.3, True)[0],
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.3, True),
    "feature_dropout": lambda x: F.dropout2d(x.view(ROWS, -1, 2, 2)).view(x.shape),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel": gumbel,
    "attention": scaled_attention,
    "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    "rand": lambda x: x * torch.rand(ROWS, WIDTH),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(x.shape),
    "randn_like": lambda x: x * torch.randn_like(x),
    "normal": lambda x: x * torch.normal(x.detach(), 0.2),
    "randint": lambda x: x * torch.randint(0, 9, x.shape),
    "randint_like": lambda x: x * torch.randint_like(x, 9),
    "randperm": lambda x: x.flatten()[torch.randperm(x.numel())].view(x.shape),
    "exponential": lambda x: x * torch.empty_like(x).exponential_(2.0),
    "geometric": lambda x: x * torch.empty_like(x).geometric_(0.4),
    "cauchy": lambda x: x * torch.empty_like(x).cauchy_().clamp(-2, 2),
    "log_normal": lambda x: x * torch.empty_like(x).log_normal_().clamp(max=3),
    "uniform": lambda x: x * torch.empty_like(x).uniform_(-1, 1),
    "poisson": lambda x: x * torch.poisson(x.detach().exp()),
    "binomial": lambda x: (
        x * torch.binomial(torch.full_like(x, 9), x.detach().sigmoid())
    ),
    "multinomial": lambda x: x * torch.multinomial(x.detach().exp(), WIDTH, True),
}


@pytest.mark.parametrize("name", DRAWS)
def test_each_random_op_is_replayed_to_the_bit(name):
    original, x = Layers(DRAWS[name], 3), torch.randn(ROWS, WIDTH)
    traced = copy.deepcopy(original)  # the graph as it is, which decomposes some ops
    backend = torch.compile(traced, backend="aot_eager", fullgraph=True, dynamic=False)
    wanted = trained(traced, backend, x, steps=2)
    torch._dynamo.reset()
    floor = floor_of(original, x)
    run = mt.budget(original, floor)
    assert all(map(torch.equal, trained(original, run, x, steps=2), wanted))
    step = last_step(run)
    assert len(step.traced.states) >= 3
    assert len(step.traced.unused_states(step.plan)) < len(step.traced.states)


def test_a_pass_without_gradients_draws_as_eager():
    original, x = Layers(), torch.randn(ROWS, WIDTH)
    run = mt.budget(original, floor_of(original, x))
    with torch.no_grad():
        torch.manual_seed(1)
        wanted, state = original(x), torch.get_rng_state()
        torch.manual_seed(1)
        assert torch.equal(run(x), wanted)
    assert torch.equal(torch.get_rng_state(), state)


@torch.library.custom_op("memcfg_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    noise.runs += 1
    return torch.rand(x.shape)


noise.runs = 0
noise.register_fake(torch.empty_like)


def test_an_op_of_others_draws_once_and_is_kept():
    original = Layers(lambda x: x * noise(x.detach()), 4)
    x = torch.randn(ROWS, WIDTH)
    eager = copy.deepcopy(original)
    wanted = trained(eager, eager, x, steps=2)
    run = mt.budget(original, floor_of(original, x))
    noise.runs = 0
    assert all(map(torch.equal, trained(original, run, x, steps=2), wanted))
    assert noise.runs == 2 * 4
    assert not last_step(run).traced.states


def test_inductor_replays_too():
    original, x = Layers(DRAWS["rand_like"], 6), torch.randn(ROWS, WIDTH)
    results = []
    with pytest.raises(InfeasiblePlanError) as caught:
        mt.budget(
            copy.deepcopy(original), 64, example=(x,), times="nominal", inductor=True
        )
    for limit in (None, caught.value.smallest_limit_bytes):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, times="nominal", inductor=True)
        results.append(trained(module, run, x, steps=2))
    step = last_step(run)
    assert len(step.traced.unused_states(step.plan)) < len(step.traced.states)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
