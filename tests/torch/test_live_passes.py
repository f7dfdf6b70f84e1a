"""What lives beside a pass of a budgeted model: within the limit, or refused."""

from __future__ import annotations

import gc

import pytest
import torch
from torch_allocations import rounded

import memcfg.torch as mt
from memcfg.errors import InfeasiblePlanError

nn, F = torch.nn, torch.nn.functional
pytestmark = [
    pytest.mark.usefixtures("pool"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


def network(outputs=64):
    layers = [each for _ in range(4) for each in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers, nn.Linear(64, outputs))


def linear():
    return nn.Linear(64, 64)


def embedding():
    return nn.Embedding(64, 16)


def siamese(run, x, y):
    (run(x) - run(y)).square().mean().backward()


def first_then_second(run, x, y):
    losses = [run(each).square().mean() for each in (x, y)]
    for each in losses:
        each.backward()


def second_then_first(run, x, y):
    losses = [run(each).square().mean() for each in (x, y)]
    for each in reversed(losses):
        each.backward()


def triplet(run, x, y):
    F.triplet_margin_loss(run(x), run(y), run(x)).backward()


def targets_without_gradients(run, x, y):
    out = run(x)
    with torch.no_grad():
        target = run(y)
    (out - target).square().mean().backward()


def dropped(run, x, y):
    out = run(x)
    out = run(y)
    out.square().mean().backward()


def accumulated(run, x, y):
    run(x).square().mean().backward()
    run(y).square().mean().backward()


def skipped(run, x, _):
    for is_bad in (True, True, False):
        loss = run(x).square().mean()
        if is_bad:
            del loss
            continue
        loss.backward()


def deleted(run, x, _):
    for _ in range(2):
        out = run(x)
        del out
    run(x).square().mean().backward()


def evaluated(run, x, _):
    for _ in range(2):
        run(x).square().mean().item()
    run(x).square().mean().backward()


def kept(run, x, _):
    """Collect the predictions of some steps."""
    outputs = []
    for _ in range(5):
        run.zero_grad()
        out = run(x)
        out.square().mean().backward()
        outputs.append(out.detach())


def kept_before(run, x, _):
    outputs = [run(x).detach() for _ in range(3)]
    run(x).square().mean().backward()
    del outputs


def retained(run, x, _):
    first = run(x).square().mean()
    first.backward(retain_graph=True)
    (first + run(x).square().mean()).backward()


def retained_by_grad(run, x, _):
    first = run(x).square().mean()
    torch.autograd.grad(first, [*run.parameters()], retain_graph=True)
    run(x).square().mean().backward()
    first.backward()


def run_again(run, x, _):
    loss = run(x).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def run_again_by_grad(run, x, _):
    loss = run(x).square().mean()
    found = torch.autograd.grad(loss, [*run.parameters()], retain_graph=True)
    loss.backward()
    del found


def retained_and_left(run, x, _):
    run(x).square().mean().backward(retain_graph=True)


def held_bytes(module, x, y):
    return sum(rounded(each.nbytes) for each in (*module.parameters(), x, y))


def peaks_of(step, limit, module, x, y, count=2):
    """The most bytes in use in each of some steps; and the gradients of the last."""
    run = mt.budget(module, limit, times="nominal")
    peaks = []
    for _ in range(count):
        for each in module.parameters():
            each.grad = None
        gc.collect()
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        step(run, x, y)
        added = mt.get_memory_info()["peak"] - before
        peaks.append(added + held_bytes(module, x, y))
    return peaks


def smallest_limit(step, module, x, y):
    """The limit from which on a step runs, as refusals name them; and its peaks."""
    limits = [mt.estimate(module, (x,), times="nominal").floor_bytes]
    for _ in range(12):
        torch._dynamo.reset()
        try:
            return limits, peaks_of(step, limits[-1], module, x, y)
        except InfeasiblePlanError as error:
            limits.append(error.smallest_limit_bytes)
    raise AssertionError("each limit that a refusal names is refused again")


@pytest.mark.parametrize(
    ("step", "times"),
    [
        (siamese, 2.0),
        (first_then_second, 2.0),
        (second_then_first, 2.0),
        (triplet, 3.0),
        (targets_without_gradients, 1.6),
        (dropped, 2.0),
        (accumulated, 1.0),
    ],
)
def test_passes_that_live_at_a_time_are_within_the_limit(step, times):
    module, x, y = network(), torch.randn(256, 64), torch.randn(256, 64)
    told = mt.estimate(module, (x,), times="nominal")
    limit = int(times * told.peak_bytes)
    beside = rounded(y.nbytes) if step is accumulated else 0  # the user's, of no pass
    peaks = peaks_of(step, limit, module, x, y)
    assert max(peaks) - beside <= limit
    wanted = [each.grad for each in module.parameters()]
    for each in module.parameters():
        each.grad = None
    step(module, x, y)
    assert all(map(torch.equal, wanted, (each.grad for each in module.parameters())))


@pytest.mark.parametrize(
    ("step", "make"),
    [(siamese, network), (targets_without_gradients, network), (siamese, linear)],
)
def test_passes_without_room_are_refused_and_the_refusal_says_from_where_on(step, make):
    module, x, y = make(), torch.randn(256, 64), torch.randn(256, 64)
    limits, peaks = smallest_limit(step, module, x, y)
    assert len(limits) > 1
    assert limits == sorted(set(limits))
    assert max(peaks) <= limits[-1]


@pytest.mark.parametrize("step", [skipped, deleted, evaluated])
@pytest.mark.parametrize("make", [network, linear, embedding])
def test_a_pass_whose_graph_is_gone_takes_no_room(step, make):
    """Its input lives on, and the limit is the smallest of a single pass."""
    module, x = make(), torch.randn(256, 64)
    if make is embedding:
        x = torch.randint(64, (256,))
    limit = mt.estimate(module, (x,), times="nominal").floor_bytes
    assert max(peaks_of(step, limit, module, x, x[:0])) <= limit


@pytest.mark.parametrize("step", [run_again, run_again_by_grad, retained_and_left])
@pytest.mark.parametrize("rows", [16, 512])
def test_a_backward_phase_that_may_run_again_is_within_the_limit_or_refused(step, rows):
    module, x = network(), torch.randn(rows, 64)
    told = mt.estimate(module, (x,), times="nominal")
    span = told.peak_bytes - told.floor_bytes
    refused = []
    for limit in (told.floor_bytes, told.floor_bytes + span // 3, 3 * told.peak_bytes):
        torch._dynamo.reset()
        try:
            peaks = peaks_of(step, limit, module, x, x[:0])
        except InfeasiblePlanError as error:
            refused.append(limit)
            assert "retain_graph" in str(error)  # noqa: PT017
            assert error.smallest_limit_bytes > limit  # noqa: PT017
        else:
            assert max(peaks) <= limit
    assert told.floor_bytes in refused
    assert 3 * told.peak_bytes not in refused


@pytest.mark.parametrize("step", [kept, kept_before, retained, retained_by_grad])
def test_what_is_held_of_earlier_passes_is_within_the_limit_or_refused(step):
    module, x = network(), torch.randn(256, 64)
    told = mt.estimate(module, (x,), times="nominal")
    refused = []
    peak = told.peak_bytes
    for limit in (told.floor_bytes, peak, peak * 8 // 7, peak * 8 // 5, 5 * peak):
        torch._dynamo.reset()
        run = mt.budget(module, limit, times="nominal")
        refused.append(False)
        for number in range(2):
            module.zero_grad()
            gc.collect()
            before = mt.get_memory_info()["current"]
            mt.reset_memory_stats()
            try:
                step(run, x, x[:0])
            except InfeasiblePlanError:
                refused[-1] = True
            added = mt.get_memory_info()["peak"] - before
            # The first loss may have the outputs beside it that are kept from then on.
            beside = rounded(x.nbytes) if step is kept and number == 0 else 0
            assert added + held_bytes(module, x, x[:0]) <= limit + beside
    assert refused[0]
    assert not refused[-1]


def test_a_pass_that_was_refused_leaves_the_one_before_as_it_was():
    module, x, y = network(), torch.randn(256, 64), torch.randn(256, 64)
    told = mt.estimate(module, (x,), times="nominal")
    run = mt.budget(module, told.peak_bytes, times="nominal")
    out = run(x)
    with pytest.raises(InfeasiblePlanError, match="each backward before the next"):
        run(y)
    out.square().mean().backward()
    assert all(each.grad is not None for each in module.parameters())
    module.zero_grad()
    del out
    run(y).square().mean().backward()


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_outputs_of_the_step_before_have_room_until_forward_ends(part):
    """A loop holds them in a variable, which it sets when the next forward has run."""

    def loss(out):
        return out.square().mean()

    module, x = network(256), torch.randn(256, 64)
    told = mt.estimate(module, (x,), loss=loss, times="nominal")
    limit = int(told.floor_bytes + part * (told.peak_bytes - told.floor_bytes))
    run = mt.budget(module, limit, loss=loss, times="nominal")
    gc.collect()
    before = mt.get_memory_info()["current"] - held_bytes(module, x, x[:0])
    for _ in range(3):
        module.zero_grad()
        mt.reset_memory_stats()
        out = run(x)
        found = loss(out)
        found.backward()
        peak = mt.get_memory_info()["peak"] - before
    assert peak <= limit
    assert out.requires_grad


class Beside(nn.Module):
    """A layer, and something else that its forward does not read."""

    def __init__(self, kind):
        super().__init__()
        self.layer = nn.Linear(64, 64)
        if kind in ("parameter", "frozen"):
            self.other = nn.Linear(300, 300).requires_grad_(kind == "parameter")
        if kind == "buffer":
            self.register_buffer("other", torch.zeros(300, 300))
        if kind == "tied":
            self.other = nn.Linear(64, 64, bias=False)
            self.other.weight = self.layer.weight

    def forward(self, x, y=None):
        return self.layer(x).sum() * (1 if y is None else len(y))


@pytest.mark.parametrize(
    "kind", ["none", "parameter", "frozen", "buffer", "tied", "input", "keyword"]
)
def test_what_a_step_does_not_read_is_counted(pool, kind):
    module, x, y = Beside(kind), torch.randn(128, 64), torch.zeros(300, 300)
    args = (x, y) if kind == "input" else (x,)
    kwargs = {"y": y} if kind == "keyword" else {}
    told = mt.estimate(module, args, example_kwargs=kwargs)
    run = mt.budget(module, told.floor_bytes)
    held = {each.untyped_storage()._cdata: each for each in module.parameters()}
    held = [*held.values(), *module.buffers(), *args, *kwargs.values()]
    for _ in range(2):
        module.zero_grad()
        gc.collect()
        before = mt.get_memory_info()["current"]
        mt.reset_memory_stats()
        run(*args, **kwargs).backward()
        added = mt.get_memory_info()["peak"] - before
        peak = added + sum(rounded(each.nbytes) for each in held)
        assert peak <= told.floor_bytes
    assert ("not read" in mt.get_budget(run).memory_report()) == (
        kind not in ("none", "tied")
    )
    with pytest.raises(InfeasiblePlanError):
        mt.budget(
            module,
            told.floor_bytes - 64,
            example=args,
            example_kwargs=kwargs,
        )
