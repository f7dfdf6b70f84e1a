"""Ctrl-C inside planned steps of PyTorch: the next step is right, and nothing stays."""

from __future__ import annotations

import copy
import signal

import pytest
import torch
from calls import traced
from interrupted_lines import Ends
from torch_bits import bytes_left

import memcfg.torch as mt
from memcfg.plan import auto

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")

ROWS, WIDTH = 256, 64
_armed: list[str] = []  # the phase that is interrupted next


def _interrupt(phase):
    if _armed == [phase]:
        _armed.clear()
        signal.raise_signal(signal.SIGINT)


@torch.library.custom_op("memcfg_interrupts::stop", mutates_args=())
def stop(x: torch.Tensor, phase: str) -> torch.Tensor:
    """A copy; whoever is at the keyboard ends it when its phase is armed."""
    _interrupt(phase)
    return x.clone()


stop.register_fake(lambda x, phase: torch.empty_like(x))
stop.register_autograd(
    lambda ctx, gradient: (stop(gradient, "backward"), None),
    setup_context=lambda ctx, inputs, output: None,
)


class _Stops(torch.nn.Module):
    def forward(self, x):
        return stop(x, "forward")


def network():
    torch.manual_seed(3)
    layers = [[torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()] for _ in range(6)]
    flat = [each for pair in layers for each in pair]
    return torch.nn.Sequential(*flat[:6], torch.nn.Dropout(), _Stops(), *flat[6:])


def step(module, run, x):
    """One step without the update: the loss; gradients are in the module."""
    torch.manual_seed(1)
    module.zero_grad()
    loss = run(x).square().mean()
    loss.backward()
    return loss.detach()


def same_bits(one, other):
    both = zip(one.parameters(), other.parameters(), strict=True)
    return all(torch.equal(a.grad, b.grad) for a, b in both)


@pytest.fixture
def case(tmp_path, request):
    """A network in the pool, its budgeted step, its input, and eager's bits."""
    _armed.clear()
    torch._dynamo.reset()
    mt.limit_cpu("64MiB")
    module, x = network(), torch.randn(ROWS, WIDTH)
    eager = copy.deepcopy(module)
    wanted = step(eager, eager, x)
    told = mt.estimate(module, (x,), times="nominal")
    where = {"spill_to": tmp_path} if request.param else {}
    limit = (told.floor_bytes * 3 + told.peak_bytes) // 4
    run = mt.budget(module, limit, times="nominal", **where)
    yield module, run, x, eager, wanted
    mt.limit_cpu(None)


def held(module):
    """The bytes in the pool without gradients and garbage."""
    module.zero_grad()
    return bytes_left()


def interrupted(module, run, x):
    """Whether a step was."""
    try:
        step(module, run, x)
    except KeyboardInterrupt:
        return True
    return False


spilled = pytest.mark.parametrize("case", [False, True], indirect=True)


@spilled
@pytest.mark.parametrize("phase", ["forward", "backward"])
def test_after_a_signal_inside_of_an_op_the_next_step_is_right(case, phase):
    module, run, x, eager, wanted = case
    for _ in range(2):
        assert torch.equal(step(module, run, x), wanted)
    before, elsewhere = held(module), mt.get_budget(run).spill_bytes
    for _ in range(3):
        _armed.append(phase)
        assert interrupted(module, run, x)
        assert held(module) == before
        assert mt.get_budget(run).spill_bytes == elsewhere
        assert torch.equal(step(module, run, x), wanted)
        assert same_bits(module, eager)
    assert held(module) == before
    assert mt.get_budget(run).spill_bytes == elsewhere


@spilled
def test_after_a_hook_that_is_interrupted_the_next_step_is_right(case):
    module, run, x, eager, wanted = case
    step(module, run, x)
    before = held(module)

    def ends(_gradient):
        raise KeyboardInterrupt

    for each in (module[0].weight, module[-2].weight):
        hook = each.register_hook(ends)
        assert interrupted(module, run, x)
        hook.remove()  # PyTorch holds compiled gradients now, with any backend
        assert torch.equal(step(module, run, x), wanted)
        assert same_bits(module, eager)
        assert held(module) == before


@pytest.mark.slow  # minutes
@spilled
def test_after_an_interrupt_at_any_line_the_next_step_is_right(case):
    module, run, x, eager, wanted = case
    for _ in range(3):
        step(module, run, x)
    before, elsewhere = held(module), mt.get_budget(run).spill_bytes
    line, ended = 1, True
    while ended:
        with traced(Ends(line)):
            ended = interrupted(module, run, x)
        assert held(module) == before, line
        assert torch.equal(step(module, run, x), wanted), line
        assert same_bits(module, eager), line
        assert mt.get_budget(run).spill_bytes == elsewhere, line
        line += 1
    assert line > 50


@pytest.mark.parametrize("case", [False], indirect=True)
def test_an_interrupt_of_the_first_trace_leaves_the_next_step_right(case):
    module, run, x, eager, wanted = case
    limit = mt.get_budget(run).limit_bytes
    left = [KeyboardInterrupt]

    def plans(graph, *, limit_bytes=None):
        if left:
            raise left.pop()
        return auto()(graph, limit_bytes=limit_bytes)

    again = mt.budget(module, limit, times="nominal", policy=plans)
    before = held(module)
    assert interrupted(module, again, x)
    assert held(module) == before
    assert torch.equal(step(module, again, x), wanted)
    assert same_bits(module, eager)


def hooks_there():
    """PyTorch's hooks on saved tensors of this thread, and on all modules."""
    top = torch._C._autograd._top_saved_tensors_default_hooks(True)
    return top, len(torch.nn.modules.module._global_forward_pre_hooks)


class _EndsBehindCalls(Ends):
    """Leaves out what a function begins with: it has done nothing, as its caller."""

    def __call__(self, frame, event, value):
        if event == "call":
            return _EndsBehindCalls._first(self)
        return super().__call__(frame, event, value)

    def _first(self):
        return lambda frame, event, value: self


@pytest.mark.parametrize("depth", [1, 2])
def test_an_interrupt_of_entering_or_leaving_saved_tensors_leaves_no_hooks(
    depth, tmp_path
):
    files = "/memcfg/torch/saved/_saved_tensors.py", "/torch/autograd/graph.py"
    saved = mt.saved_tensors("1MiB", spill_to=tmp_path)
    x = torch.ones(64, 64, requires_grad=True)

    def nested(left):
        with saved:
            if left > 1:
                nested(left - 1)
            else:
                (x * x).sum()

    before = hooks_there()
    line, ended = 1, True
    while ended:
        try:
            with traced(_EndsBehindCalls(line, files)):
                nested(depth)
                ended = False
        except KeyboardInterrupt:
            pass
        assert hooks_there() == before, line
        line += 1
    assert line > 15
    nested(depth)
    assert hooks_there() == before
