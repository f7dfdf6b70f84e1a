"""Who holds what of a planned step: the modules, as without a plan."""

from __future__ import annotations

import gc
import math
import threading

import pytest
import torch
from torch_steps import ResNet, inputs_of

import memcfg.torch as mt

F = torch.nn.functional
pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its internals


@pytest.fixture(autouse=True)
def _limited():
    torch._dynamo.reset()
    torch.manual_seed(3)
    mt.limit_cpu("1GiB")
    yield
    mt.limit_cpu(None)
    gc.collect()


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide, self.squashed = torch.nn.Linear(32, 64), torch.nn.Sigmoid()
        self.narrow = torch.nn.Linear(64, 32)

    def forward(self, x):
        return x + self.narrow(self.squashed(self.wide(x)))


class Gated(torch.nn.Module):
    """Each part keeps what it makes for its gradient."""

    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(Block(), Block())
        self.head = torch.nn.Linear(32, 10)

    def forward(self, x):
        x = self.blocks(x)
        return self.head(x.sin() * x.cos())


class Outer(torch.nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x) * 2


def held(run, x):
    """Who holds what while the outputs of a call are there."""
    gc.collect()
    out = run(x)
    gc.collect()
    owners = mt.cpu_pool().owners()
    assert out.requires_grad
    return owners


def compiled_in_place(module):
    module.compile(backend=mt.backend(None, times="nominal"), dynamic=False)
    return module


@pytest.mark.parametrize(
    "planned",
    [
        lambda module: mt.budget(module, math.inf, times="nominal"),
        lambda module: torch.compile(
            module, backend=mt.backend(None, times="nominal"), dynamic=False
        ),
    ],
)
def test_modules_hold_what_they_hold_in_eager(planned):
    module, x = Gated(), torch.randn(16, 32)
    wanted = held(module, x)
    parts = ("", ".blocks.0", ".blocks.0.squashed", ".blocks.1.squashed", ".head")
    assert {f"Gated{each}" for each in parts} <= wanted.keys()
    assert held(planned(module), x) == wanted
    assert held(module, x) == wanted  # by itself, after


def test_in_another_module_names_begin_with_the_outermost():
    module, x = Gated(), torch.randn(16, 32)
    wanted = held(Outer(module), x)
    assert "Outer.inner.blocks.0" in wanted
    run = mt.budget(module, math.inf, times="nominal")
    assert held(Outer(run), x) == wanted


def test_a_module_that_is_compiled_in_place_names_paths():
    x = torch.randn(16, 32)
    assert held(compiled_in_place(Gated()), x)["blocks.0.squashed"] == 4096


def test_backward_has_its_own_name_and_computes_again_in_those_of_modules():
    module, x = ResNet(), inputs_of(ResNet)
    y = torch.randint(0, 10, (8,))
    told = mt.estimate(module, (x,), times="nominal")
    run = mt.budget(module, told.floor_bytes, times="nominal")
    loss = F.cross_entropy(run(x), y)
    after_forward = set(mt.cpu_pool().owners())
    loss.backward()
    gradients = sum(-(-p.nbytes // 64) * 64 for p in module.parameters())
    del loss
    assert mt.cpu_pool().owners()["backward"] == gradients
    again: set[str] = set()
    failed = 0
    while True:
        for each in module.parameters():
            each.grad = None
        loss = F.cross_entropy(run(x), y)
        gc.collect()
        now = mt.get_memory_info()["current"]
        mt.limit_cpu(now + (failed + 1) * 2**18)
        try:
            loss.backward()
        except mt.OutOfMemoryError as error:
            failed += 1
            again |= error.owners.keys() - after_forward
        else:
            break
        finally:
            mt.limit_cpu("1GiB")
            del loss
    assert failed > 2
    assert again - {"backward"}
    assert all(name in ("backward", "unnamed") or "ResNet" in name for name in again)


def test_an_error_names_the_modules_that_hold():
    module, x = ResNet(), inputs_of(ResNet)
    run = mt.budget(module, math.inf, times="nominal")
    with mt.tag("mine"):
        kept = run(x)  # traced, with room
        del kept
        gc.collect()
        mt.limit_cpu(mt.get_memory_info()["current"] + 2**21)
        with pytest.raises(mt.OutOfMemoryError) as caught:
            run(x)
        mt.limit_cpu("1GiB")
        made = torch.ones(1000)
    assert any(name.startswith("ResNet.blocks.") for name in caught.value.owners)
    assert not any("GraphModule" in name for name in caught.value.owners)
    assert mt.cpu_pool().owners()["mine"] >= made.nbytes  # the tag of before is back


def test_without_names_ops_have_the_name_of_whoever_runs_them():
    module, x = ResNet(), inputs_of(ResNet)
    mt.limit_cpu("1GiB", tag_modules=False)
    run = mt.budget(module, math.inf, times="nominal")
    with mt.tag("mine"):
        owners = held(run, x)
    assert set(owners) == {"mine", "unnamed"}
    mt.limit_cpu("1GiB", tag_modules=True)
    assert "ResNet.stem" in held(run, x)


def test_threads_have_names_of_their_own():
    module, x = Gated(), torch.randn(16, 32)
    run = mt.budget(module, math.inf, times="nominal")
    wanted = held(run, x)
    found = []
    thread = threading.Thread(target=lambda: found.append(held(run, x)))
    thread.start()
    thread.join()
    assert found == [wanted]


def test_a_budget_says_what_it_is_and_shows_its_report_in_a_notebook():
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 16)), torch.ones(4, 8)
    mt.budget(model, "64MiB")
    budget = mt.get_budget(model)
    told = "<ModelBudget of Sequential: limit 67108864 B (64.00 MiB)"
    assert repr(budget) == f"{told}, nothing planned yet>"
    model(x).sum().backward()
    assert repr(budget) == f"{told}>"
    html = budget._repr_html_()
    assert "<strong>Budget of Sequential</strong>" in html
    assert budget.memory_report().split("\n")[-1].split()[0] in html
