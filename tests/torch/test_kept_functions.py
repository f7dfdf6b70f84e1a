"""Functions of autograd with side effects in planned steps: each runs as in eager."""

from __future__ import annotations

import copy
import gc
import math
import random
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch_allocations import allocated_peak, rounded
from torch_steps import last_step, same_bits

import memcfg.torch as mt

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]
seen = []


class Told:
    """What a context may hold beside tensors."""


class Logged(torch.autograd.Function):
    """Saves an input, an output, a view and something between, and tells of itself."""

    @staticmethod
    def forward(ctx, x, weight, power=2):
        between = x.sigmoid()
        out = (x * weight).tanh()
        part, rest = between[1:3], between[3:]
        ctx.save_for_backward(x, weight, out, x[1:3], part, between, rest)
        ctx.power, ctx.told = power, Told()
        seen.append(("forward", float(x.sum()), weakref.ref(ctx.told)))
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight, out, some, part, between, rest = ctx.saved_tensors
        told = float(some.sum()), float(part.sum()), float(rest.mean())
        seen.append(("backward", float(gradient.sum()), told))
        inner = gradient * (1 - out**ctx.power)
        return inner * weight + between * 1e-3, (inner * x).sum(0), None


class WithSetup(torch.autograd.Function):
    """As new functions are written; gives two outputs, one of them of integers."""

    @staticmethod
    def forward(x):
        return x.exp(), x.argmax(1)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[0])
        seen.append("setup")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, gradient, _):
        seen.append("down")
        return gradient * ctx.saved_tensors[0]


class Same(torch.autograd.Function):
    """Gives back its input, holds it as an attribute, and turns gradients round."""

    @staticmethod
    def forward(ctx, x, unused):
        ctx.x = x
        seen.append("same")
        return x.view_as(x)  # in the memory of its input

    @staticmethod
    def backward(ctx, gradient):
        seen.append(("turned", float(ctx.x.mean())))
        return gradient.neg(), None


class Network(nn.Module):
    """Layers with such functions between them, one of them at two places."""

    def __init__(self, width=64):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, width))
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)).sin() + x
        x = Logged.apply(x, self.scale)
        x = Same.apply(x, self.unused)
        x = Logged.apply(self.layers[0](x), self.scale, 3)
        out, at = WithSetup.apply(x * 0.1)
        return out.mean(1) + at


def problem():
    return Network(), torch.randn(256, 64)


def trained(module, run, x, steps=2):
    """Losses and what the functions told."""
    del seen[:]
    losses = []
    for _ in range(steps):
        for each in module.parameters():
            each.grad = None
        loss = run(x).square().mean()
        loss.backward()
        losses.append(loss.detach())
    told = [e[:2] if isinstance(e, tuple) else e for e in seen]
    return torch.stack(losses), told


def test_each_runs_once_in_its_place_to_eagers_bits_within_the_limit():
    original, x = problem()
    eager = copy.deepcopy(original)
    wanted, told = trained(eager, eager, x)
    estimate = mt.estimate(copy.deepcopy(original), (x,))
    assert estimate.floor_bytes < 0.8 * estimate.peak_bytes
    for limit in (estimate.peak_bytes, estimate.floor_bytes):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, example=(x,))
        losses, found = trained(module, run, x)
        assert torch.equal(losses, wanted)
        assert found == told
        assert module.unused.grad is None
        module.unused.grad = eager.unused.grad = torch.zeros(1)
        assert same_bits(eager, module)
        del losses, found
        for each in module.parameters():
            each.grad = None
        used = allocated_peak(lambda r=run: r(x).square().mean().backward())
        there = [*module.parameters(), x]
        measured = used + sum(rounded(each.nbytes) for each in there)
        assert measured <= limit
        assert 0.98 <= mt.get_budget(run).predicted_peak_bytes / measured <= 1.02


def test_estimates_of_eager_have_their_bytes():
    module, x = problem()
    mt.budget(copy.deepcopy(module), math.inf, example=(x,))
    del seen[:]
    told = mt.estimate(module, (x,), loss=lambda out: out.square().mean()).eager_bytes
    assert not seen  # these functions were tried before
    used = allocated_peak(lambda: module(x).square().mean().backward())
    there = [*module.parameters(), x]
    measured = used + sum(rounded(each.nbytes) for each in there)
    # What `Same` gives back, as large as `x`, is copied here.
    assert 0 <= told - measured <= x.nbytes + 2048


def test_evaluation_between_steps_and_gradients_that_add_up():
    original, x = problem()
    results = []
    for budgeted in (False, True):
        module = copy.deepcopy(original)
        run = mt.budget(module, "64MiB", example=(x,)) if budgeted else module
        del seen[:]
        run(x).sum().backward()
        with torch.no_grad():
            found = run(x)
        run(x).square().sum().backward(retain_graph=True)
        told = [e if isinstance(e, str) else e[0] for e in seen]
        results.append((found, module.layers[0].weight.grad, told))
    (one, gradient, told), (other, planned, planned_told) = results
    assert torch.equal(one, other)
    assert torch.equal(gradient, planned)
    assert planned_told.count("forward") >= told.count("forward")
    assert planned_told.count("backward") == told.count("backward")


@pytest.mark.parametrize("backward", [True, False])
def test_contexts_end_with_the_step(backward):
    module, x = problem()
    run = mt.budget(module, "64MiB", example=(x,))
    del seen[:]
    loss = run(x).sum()
    refs = [each[2] for each in seen if each[0] == "forward"]
    assert all(each() is not None for each in refs)
    if backward:
        loss.backward()
    del loss
    gc.collect()
    assert len(refs) == 2
    assert all(each() is None for each in refs)


class Failing(torch.autograd.Function):
    broken = False

    @staticmethod
    def forward(ctx, x):
        seen.append("failing")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        seen.append("fails")
        if Failing.broken:
            raise KeyError("of the user's own")
        return gradient * 2


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner, self.function = nn.Linear(8, 8), function

    def forward(self, x):
        return self.function.apply(self.inner(x))


def test_an_error_in_backward_is_the_users_and_the_next_step_works():
    module, x = Calls(Failing), torch.ones(4, 8)
    run = mt.budget(module, "1MiB", example=(x,))
    Failing.broken = True
    try:
        with pytest.raises(KeyError, match="of the user's own"):
            run(x).sum().backward()
    finally:
        Failing.broken = False
    module.zero_grad()
    run(x).sum().backward()
    wanted = module.inner.weight.grad.clone()
    module.zero_grad()
    module(x).sum().backward()
    assert torch.equal(module.inner.weight.grad, wanted)


class InPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        seen.append("in place")
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        seen.append("back")
        return gradient * 2


class Picky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        seen.append("picky")
        if float(x.sum()) > 0:
            raise LookupError("only what is negative")
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        seen.append("back")
        return gradient * 2


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (InPlace, "InPlace, an autograd.Function with side effects.*writes to its"),
        (Picky, "Picky, an autograd.Function.*made-up numbers: only what is negative"),
    ],
)
def test_what_cannot_be_tried_is_refused_in_a_sentence(function, words):
    module, x = Calls(function), torch.ones(4, 8)
    with pytest.warns(RuntimeWarning, match=words):
        mt.budget(module, "1MiB", example=(x,))
    with pytest.raises(ValueError, match=words):
        mt.estimate(module, (x,), times="nominal")


class Parts(torch.autograd.Function):
    """Gives a part of what it makes, and saves bits and complex numbers."""

    @staticmethod
    def forward(ctx, x):
        seen.append("parts")
        made = torch.cat([x.exp(), x])
        spun = torch.view_as_complex(x.reshape(len(x), -1, 2).contiguous())
        ctx.save_for_backward(made[2:3], x.view(torch.int32), spun.conj())
        return made[: len(x)]

    @staticmethod
    def backward(ctx, gradient):
        row, bits, spun = ctx.saved_tensors
        x = torch.view_as_real(spun.resolve_conj()).reshape(gradient.shape)
        seen.append(int(bits.long().sum()))
        return gradient * row + x


def test_what_is_saved_may_be_views_of_anything():
    original, x = Calls(Parts), torch.randn(4, 8)
    for rows in (slice(None), slice(1, 5)):  # an input that begins within a storage
        given = torch.randn(6, 8)[rows][:4] if rows.start else x
        torch._dynamo.reset()
        eager, module = copy.deepcopy(original), copy.deepcopy(original)
        wanted, told = trained(eager, eager, given)
        run = mt.budget(module, "1MiB", example=(given,))
        found, planned = trained(module, run, given)
        assert torch.equal(found, wanted)
        assert planned == told
        assert same_bits(eager, module)


class Pure(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0].exp()


class Both(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return Failing.apply(Pure.apply(self.inner(x)))


def test_a_function_without_side_effects_is_traced():
    step = last_step(mt.budget(Both(), "1MiB", example=(torch.ones(4, 8),)))
    types = [op.type for op in step.traced.graph.ops]
    assert types.count("memcfg_kept.forward") == 1
    assert types.count("aten.exp") == 2


class Scaled(torch.autograd.Function):
    """Reads numbers of its input forward, which a tensor without data has not."""

    @staticmethod
    def forward(ctx, x):
        ctx.factor = 1 + abs(float(x.mean()))
        seen.append(ctx.factor)
        return x * ctx.factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor


def test_the_loss_is_measured_though_a_function_reads_numbers():
    original, x = Calls(Scaled), torch.randn(4, 8)
    eager, module = copy.deepcopy(original), copy.deepcopy(original)
    wanted, told = trained(eager, eager, x)
    run = mt.budget(module, "1MiB", example=(x,), loss=lambda out: out.square().mean())
    found, planned = trained(module, run, x)
    assert torch.equal(found, wanted)
    assert planned == told
    estimate = mt.estimate(module, (x,), loss=lambda out: out.square().mean())
    assert estimate.eager_bytes is not None


class Halved(torch.autograd.Function):
    """Tells the type in which its product is."""

    @staticmethod
    def forward(ctx, x, weight):
        out = x @ weight
        seen.append(out.dtype)
        ctx.save_for_backward(x, weight)
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        seen.append(gradient.dtype)
        return gradient.float() @ weight.t(), x.t() @ gradient.float()


class Cast(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            out = Halved.apply(x, self.weight)
        return out.float()


def test_autocast_is_as_where_it_is_called():
    original, x = Cast(), torch.randn(8, 16)
    eager = copy.deepcopy(original)
    wanted, told = trained(eager, eager, x)
    assert torch.bfloat16 in told
    module = copy.deepcopy(original)
    found, planned = trained(module, mt.budget(module, "1MiB", example=(x,)), x)
    assert torch.equal(found, wanted)
    assert planned == told
    assert same_bits(eager, module)


def test_inductor_runs_them_as_they_are():
    module, x = Calls(Failing), torch.randn(4, 8)
    run = mt.budget(module, "1MiB", example=(x,), inductor=True)
    del seen[:]
    run(x).sum().backward()
    assert seen == ["failing", "fails"]


class Drawn(torch.autograd.Function):
    """Draws from PyTorch's generator forward and backward."""

    @staticmethod
    def forward(ctx, x):
        mask = torch.rand_like(x) > 0.3
        seen.append(int(mask.sum()))
        ctx.save_for_backward(mask)
        return x * mask

    @staticmethod
    def backward(ctx, gradient):
        seen.append(float(torch.rand(())))
        return gradient * ctx.saved_tensors[0]


class Branches(nn.Module):
    """What backward reads makes the inputs of random ops, which are not drawn again."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        drop = nn.functional.dropout
        one = Drawn.apply(drop(self.inner(x), 0.3))
        return self.outer(one) * Drawn.apply(drop(self.inner(x).tanh(), 0.3))


def test_random_numbers_within_and_around_are_eagers():
    original, x = Branches(), torch.randn(32, 16)
    eager, module = copy.deepcopy(original), copy.deepcopy(original)
    torch.manual_seed(5)
    wanted, told = trained(eager, eager, x)
    run = mt.budget(module, "1MiB", example=(x,))
    torch.manual_seed(5)
    found, planned = trained(module, run, x)
    assert torch.equal(found, wanted)
    assert planned == told
    assert same_bits(eager, module)


class Named(torch.autograd.Function):
    """Takes arguments by name, and gives None beside its tensors."""

    @staticmethod
    def forward(x, scale=2.0, shift=1.0):
        return x * scale + shift, None

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        seen.append(inputs[1:])

    @staticmethod
    def backward(ctx, gradient, nothing):
        seen.append(nothing)
        return gradient * ctx.scale, None, None


class ByName(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        out, nothing = Named.apply(self.inner(x), scale=3.0)
        assert nothing is None
        return Named.apply(out)[0]


def test_arguments_by_name_and_outputs_of_none():
    original, x = ByName(), torch.randn(4, 8)
    eager, module = copy.deepcopy(original), copy.deepcopy(original)
    wanted, told = trained(eager, eager, x)
    found, planned = trained(module, mt.budget(module, "1MiB", example=(x,)), x)
    assert torch.equal(found, wanted)
    assert planned == told
    assert same_bits(eager, module)


class Lucky(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        seen.append((random.random(), float(np.random.rand())))  # noqa: NPY002
        return x * seen[-1][0]

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def test_trials_leave_pythons_and_numpys_numbers_as_they_were():
    module, x = Calls(Lucky), torch.randn(4, 8)
    del seen[:]
    for run in (module, None):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        run = run or mt.budget(module, "1MiB", example=(x,))
        run(x)
    assert seen[0] == seen[-1]


class Later(torch.autograd.Function):
    """Writes to its input, though not to made-up numbers."""

    @staticmethod
    def forward(ctx, x):
        seen.append("later")
        return x.mul_(2) if float(x.min()) < 0 else x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_writing_to_inputs_is_an_error_when_it_happens():
    module, x = Calls(Later), torch.randn(4, 8)
    run = mt.budget(module, "1MiB", example=(x,))
    with pytest.raises(RuntimeError, match="Later writes to its inputs"):
        run(x)


def test_threads_that_trace_functions_do_not_meet():
    original, x = Calls(Scaled), torch.randn(4, 8)
    before = torch.autograd.Function.__dict__["apply"].__func__
    found = {}

    def work(at):
        module = copy.deepcopy(original)
        told = mt.estimate(module, (x,), loss=torch.sum, times="nominal")
        run = mt.budget(module, "1MiB", example=(x,), loss=torch.sum, times="nominal")
        run(x).sum().backward()
        found[at] = told.eager_bytes, module.inner.weight.grad

    threads = [threading.Thread(target=work, args=(at,)) for at in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    original(x).sum().backward()
    assert len(found) == len(threads)
    assert len({nbytes for nbytes, _ in found.values()}) == 1
    assert all(
        torch.equal(gradient, original.inner.weight.grad)
        for _, gradient in found.values()
    )
    assert torch.autograd.Function.__dict__["apply"].__func__ is before


class Holding(torch.autograd.Function):
    """Keeps what it makes as attributes, of which autograd knows nothing."""

    @staticmethod
    def forward(ctx, x):
        seen.append("holds")
        ctx.large = x.exp()
        ctx.save_for_backward(x.sin())
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        seen.append("gives")
        return gradient * ctx.large * ctx.saved_tensors[0]


class Holders(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        for _ in range(4):
            x = nn.functional.gelu(self.outer(Holding.apply(self.inner(x))))
        return x


def test_what_functions_hold_beside_what_they_save_is_counted():
    original, x = Holders(), torch.randn(2048, 16)

    def step(run):
        return lambda: run(x).square().mean().backward()

    def measured(module, run):
        step(run)()
        module.zero_grad()
        there = sum(rounded(each.nbytes) for each in (*module.parameters(), x))
        return there + allocated_peak(step(run))

    told = mt.estimate(original, (x,), loss=lambda out: out.square().mean())
    assert 1 <= told.eager_bytes / measured(original, original) <= 1.01
    assert told.by_role["held by functions"] == 4 * x.nbytes
    for limit in (told.peak_bytes, told.floor_bytes):
        torch._dynamo.reset()
        module = copy.deepcopy(original)
        run = mt.budget(module, limit, example=(x,))
        found = measured(module, run)
        assert found <= limit
        assert 1 <= mt.get_budget(run).predicted_peak_bytes / found <= 1.01


class Note(torch.autograd.Function):
    """Gives nothing at all."""

    @staticmethod
    def forward(ctx, x):
        seen.append(float(x.sum()))

    @staticmethod
    def backward(ctx, gradient):
        raise AssertionError("nothing comes back")


class Noted(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        x = self.inner(x)
        Note.apply(x)
        return x.tanh()


def test_functions_that_give_nothing_run():
    original, x = Noted(), torch.randn(4, 8)
    eager, module = copy.deepcopy(original), copy.deepcopy(original)
    wanted, told = trained(eager, eager, x)
    found, planned = trained(module, mt.budget(module, "1MiB", example=(x,)), x)
    assert torch.equal(found, wanted)
    assert planned == told
    assert same_bits(eager, module)
