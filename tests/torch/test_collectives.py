"""Budgets of models that talk to other processes: collectives run once, in order."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import distributed, nn
from torch.distributed import _functional_collectives as collectives
from torch_steps import last_step

import memcfg.torch as mt
from memcfg.plan import Compute

pytestmark = pytest.mark.filterwarnings("ignore")  # PyTorch's own, of its internals


@pytest.fixture
def group(tmp_path):
    """A group of this process alone."""
    if not distributed.is_gloo_available():
        pytest.skip("PyTorch without gloo")
    store = distributed.FileStore(str(tmp_path / "store"), 1)
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    torch._dynamo.reset()
    torch.manual_seed(3)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


class Talks(nn.Module):
    """Layers whose values are sums over processes."""

    def __init__(self, group):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.group = group

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x)).tanh()
            x = x + collectives.all_reduce(x.detach(), "sum", self.group)
        return x.square().mean()


def one_step(module, run, x):
    for each in module.parameters():
        each.grad = None
    loss = run(x)
    loss.backward()
    return loss.detach()


def test_collectives_run_once_in_a_step_that_computes_others_again(group):
    original, x = Talks(group), torch.randn(256, 64)
    eager = copy.copy(original)
    eager.layers = copy.deepcopy(original.layers)
    wanted = one_step(eager, eager, x)
    told = mt.estimate(original, (x,), times="nominal")
    run = mt.budget(original, told.floor_bytes, times="nominal")
    assert torch.equal(one_step(original, run, x), wanted)
    for one, other in zip(original.parameters(), eager.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)
    graph, plan = last_step(run).whole
    runs = [graph.ops[each.op] for each in plan.actions if isinstance(each, Compute)]
    reduced = [op for op in runs if "all_reduce" in op.type]
    assert len(reduced) == 4
    assert [op.name for op in reduced] == [
        op.name for op in graph.ops if "all_reduce" in op.type
    ]
    assert len(runs) > len(graph.ops)  # others run again
