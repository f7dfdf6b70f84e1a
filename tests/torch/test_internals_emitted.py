"""Emitted graphs of planned steps, run by themselves, and what is added to them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch_allocations import rounded
from torch_steps import NETWORKS, problem

from memcfg.torch.budget._backend import Compilation
from memcfg.torch.budget._checked_arguments import ALLOCATED
from memcfg.torch.budget._emitted import Emitter
from memcfg.torch.budget._graph_edits import add_token
from memcfg.torch.budget._planner import Planner, Settings, Shared
from memcfg.torch.budget._step import live_peak
from memcfg.torch.trace import _generator_states

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # PyTorch's own, of its internals
]


class Counted(fx.Interpreter):
    """Runs a graph and counts the storages that are alive, by their addresses."""

    def __init__(self, module):
        super().__init__(module)
        self.most = 0

    def run_node(self, node):
        made = super().run_node(node)
        used = [value for each, value in self.env.items() if each.users]
        alive = {}
        for value in torch.utils._pytree.tree_leaves((self.sources(node), used, made)):
            if isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                alive[storage._cdata] = rounded(storage.nbytes())
        self.most = max(self.most, sum(alive.values()))
        return made

    def sources(self, node):
        """Inputs are there all the time, gradients of outputs in backward.

        They go when they have been read, since PyTorch 2.13.
        """
        late = node.name not in self.early
        read = {each.name for each, left in self.env.items() if left is not None}
        return [
            value
            for each, value in self.given.items()
            if "tangents" not in each or (late and each in read)
        ]


def like(value):
    """A real tensor of the same kind."""
    made = torch.zeros(value.shape, dtype=value.dtype)
    return made.uniform_() if value.dtype.is_floating_point else made


class Kept(Compilation):
    """Keeps what was emitted."""

    def partition(self, joint, inputs, *, num_fwd_outputs, **_):
        made = super().partition(joint, inputs, num_fwd_outputs=num_fwd_outputs)
        step = self.planner.steps[-1]
        emitter = Emitter(
            joint.graph, step.traced, step.plan, num_fwd_outputs=num_fwd_outputs
        )
        graph = emitter.emit()
        self.emitted = fx.GraphModule(joint, graph)
        self.early = {node.name for node in emitter.early}
        return made


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("tight", [False, True])
@torch._dynamo.config.patch(allow_rnn=True)
def test_live_storages_of_the_emitted_graph_are_those_of_the_plan(kind, tight):
    module, x, _ = problem(kind)
    module.eval()  # what is emitted is run once more, by itself
    compiled = partial(torch.compile, module, fullgraph=True, dynamic=False)

    def kept(limit):
        settings = Settings(limit, ALLOCATED, "nominal")
        return Kept(Planner(settings, Shared.of(settings)))

    limit = None
    if tight:
        with pytest.raises(Exception, match="smallest limit") as caught:
            compiled(backend=kept(64))(x)
        limit = caught.value.inner_exception.smallest_limit_bytes
        torch._dynamo.reset()
    found = kept(limit)
    compiled(backend=found)(x)
    graph = found.emitted
    counted = Counted(graph)
    counted.early = found.early
    counted.given = {
        node.name: like(node.meta["val"])
        for node in graph.graph.nodes
        if node.op == "placeholder"
    }
    counted.run(*counted.given.values())
    step = found.planner.steps[-1]
    ops = tuple(replace(op, scratch_bytes=0) for op in step.traced.graph.ops)
    graph = replace(step.traced.graph, ops=ops)  # without that of the user's loss
    assert counted.most == live_peak(graph, step.plan).nbytes


def test_graphs_without_a_tensor_are_refused_in_a_sentence():
    forward, backward = fx.Graph(), fx.Graph()
    for each in (forward, backward):
        each.placeholder("nothing")
        each.output(())
    with pytest.raises(ValueError, match="no tensor that PyTorch has traced"):
        add_token(forward, backward, 0)


def test_what_draws_from_another_generator_or_is_small_is_kept():
    graph, aten = torch.fx.Graph(), torch.ops.aten
    own, cpu = torch.Generator(), torch.device("cpu")
    calls = [
        (aten.rand.generator, ([64, 64],), {"generator": own, "device": cpu}),
        (aten.rand.generator, ([64, 64],), {"generator": None, "device": cpu}),
        (aten.rand.default, ([64, 64],), {"device": cpu}),
        (aten.rand.default, ([8, 8],), {"device": cpu}),  # smaller than a state
        (aten.rand.default, ([64, 64],), {"device": torch.device("meta")}),
        (aten.uniform_.default, (torch.ones(64, 64),), {}),
    ]
    with FakeTensorMode(allow_non_fake_inputs=True):
        for op, args, kwargs in calls:
            node = graph.call_function(op, args, kwargs)
            node.meta["val"] = op(*args, **kwargs)
    nodes = list(graph.nodes)
    assert set(_generator_states.add_states(graph)) == {nodes[1], nodes[2]}


def test_a_replay_that_fails_leaves_the_generator_as_it_was():
    x = torch.ones(100, 100)
    state, first = _generator_states.run_and_save_state(
        torch.ops.aten.bernoulli.p, x, 0.5
    )
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="p"):
        _generator_states.run_with_state(state, torch.ops.aten.bernoulli.p, x, 7.0)
    assert torch.equal(torch.get_rng_state(), before)
    again = _generator_states.run_with_state(state, torch.ops.aten.bernoulli.p, x, 0.5)
    assert torch.equal(first, again)
    assert torch.equal(torch.get_rng_state(), before)
