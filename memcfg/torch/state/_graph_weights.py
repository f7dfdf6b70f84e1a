"""Edits of a traced step for tensors that lie in files.

Weights: each group of ops that reads a weight is given a read of its own, and so are
the views and casts of a weight that they read. Between two groups nothing of the weight
is in memory. Gradients: an op writes each to its file, and returns a tensor over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from memcfg.torch.state._backward_updates import STEP
from memcfg.torch.state._gradient_slots import PUT
from memcfg.torch.state._weights import READ
from memcfg.torch.trace._graph_inputs import gradients_of, position_of
from memcfg.torch.trace._traced import (
    ELSEWHERE,
    is_random,
    is_tangent,
    module_of,
    values_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import fx

    from memcfg.torch.state._offload import Found
    from memcfg.torch.state._weights import Weight

_LEAVES = "memcfg.leaves"  # in the metadata of gradients that leave: of which input


def read_weights(graph: fx.Graph, weights: Mapping[int, Weight]) -> int:
    """Let ops read weights from files; return the number of reads.

    Parameters
    ----------
    graph : fx.Graph
        The traced graph.
    weights : mapping of int to Weight
        The weights by the positions of inputs.
    """
    sources = [node for node in graph.nodes if node.op == "placeholder"]
    late = _after_loss(graph)
    order = {node: at for at, node in enumerate(graph.nodes)}
    made = 0
    for source in sources:
        position = None if is_tangent(source) else position_of(source)
        if position is not None and position in weights:
            source.meta[ELSEWHERE] = True
            made += _read(graph, source, weights[position], late, order)
    return made


def _after_loss(graph: fx.Graph) -> set[fx.Node]:
    """Return the nodes that depend on gradients of outputs."""
    late: set[fx.Node] = set()
    for node in graph.nodes:
        if is_tangent(node) or any(each in late for each in node.all_input_nodes):
            late.add(node)
    return late


def _derived(source: fx.Node) -> dict[fx.Node, None]:
    """Return the nodes that are computed from a weight alone, in their order."""
    found: dict[fx.Node, None] = {source: None}
    left = [source]
    while left:
        for user in left.pop(0).users:
            known = isinstance(user.target, torch._ops.OpOverload)
            alone = all(each in found for each in user.all_input_nodes)
            if user.op != "call_function" or not known or not alone or user in found:
                continue
            if user.target._schema.is_mutable or is_random(user):
                continue
            if user.target.namespace == "aten" and len(values_of(user)) == 1:
                found[user] = None
                left.append(user)
    return found


def _read(
    graph: fx.Graph,
    source: fx.Node,
    weight: Weight,
    late: set[fx.Node],
    order: Mapping[fx.Node, int],
) -> int:
    """Give each group of readers of a weight a read of its own."""
    derived = _derived(source)
    groups = _grouped(derived, late)
    for group in groups:
        first = min(group, key=order.__getitem__)
        with graph.inserting_before(first):
            read = graph.call_function(READ, (weight.number, []))
            read.meta = _modules_of(first)
            read.meta["val"] = _like(source, weight.shape, None, weight.dtype)
            now = {source: read}
            for user in group:
                for node in user.all_input_nodes:
                    if node in derived:
                        user.replace_input_with(node, _copied(graph, node, now))
    for node in reversed([each for each in derived if each is not source]):
        if not node.users:
            graph.erase_node(node)
    return len(groups)


def _grouped(
    derived: Mapping[fx.Node, None], late: set[fx.Node]
) -> list[list[fx.Node]]:
    """Return the readers of a weight, by phase and module."""
    groups: dict[tuple[bool, str], dict[fx.Node, None]] = {}
    for node in derived:
        for user in node.users:
            if user not in derived and user.op != "output":
                groups.setdefault((user in late, module_of(user)), {})[user] = None
    return [list(group) for group in groups.values()]


def _copied(graph: fx.Graph, node: fx.Node, now: dict[fx.Node, fx.Node]) -> fx.Node:
    """Return the copy of a node that is derived from a weight, over another read."""
    if node not in now:

        def copied(each: fx.Node) -> fx.Node:
            return _copied(graph, each, now)

        args = torch.fx.node.map_arg(node.args, copied)
        kwargs = torch.fx.node.map_arg(dict(node.kwargs), copied)
        made = now[node] = graph.call_function(node.target, args, kwargs)
        made.meta = dict(node.meta)
        real, by_name = torch.fx.node.map_arg((args, kwargs), _value)
        with node.meta["val"].fake_mode:
            made.meta["val"] = node.target(*real, **by_name)
    return now[node]


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


def _modules_of(node: fx.Node) -> dict[str, Any]:
    """Return the metadata by which a node belongs to a module."""
    return {key: each for key, each in node.meta.items() if "module_stack" in key}


def _like(
    node: fx.Node,
    shape: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return a new value of a traced graph, of the dtype of a node's or another."""
    value = node.meta["val"]
    with value.fake_mode:
        made = torch.empty(shape, dtype=dtype or value.dtype, device="cpu")
        return made if stride is None else made.as_strided(shape, stride)


def put_gradients(graph: fx.Graph, num_fwd_outputs: int, found: Found) -> None:
    """Let gradients leave, or be applied, as soon as they are there.

    Parameters
    ----------
    graph : fx.Graph
        The traced graph of both phases.
    num_fwd_outputs : int
        The number of its outputs that are forward's.
    found : Found
        The places of gradients, and updates, by the positions of inputs.
    """
    output = graph.output_node()
    results: list[Any] = list(output.args[0])
    sources = {
        position_of(node): node
        for node in graph.nodes
        if node.op == "placeholder" and not is_tangent(node)
    }
    late = _after_loss(graph)
    for at, position in gradients_of(graph, num_fwd_outputs).items():
        gradient, slot = results[at], found.slots.get(position)
        if slot is None:
            continue
        update = found.updates.get(position)
        readers: list[fx.Node] = []
        target, given = PUT, [gradient, slot.number]
        if update is not None:
            readers = _tensors_of(_readers(sources[position], late))
            target, given = STEP, [gradient, update.number, readers]
        last = [gradient, *readers]
        order = {node: number for number, node in enumerate(graph.nodes)}
        with graph.inserting_after(max(last, key=order.__getitem__)):
            put = graph.call_function(target, tuple(given))
        put.meta = _modules_of(gradient)
        put.meta["val"] = _like(gradient, slot.shape, slot.stride)
        put.meta[ELSEWHERE] = True
        put.meta[_LEAVES] = sources[position].name, slot.number, position
        results[at] = put
    output.args = (tuple(results),)


def _readers(source: fx.Node, late: set[fx.Node]) -> list[fx.Node]:
    """Return the ops of backward that read a weight, or what is derived from it."""
    derived = _derived(source)
    return [
        user
        for node in derived
        for user in node.users
        if user in late and user not in derived and user.op != "output"
    ]


def _tensors_of(nodes: list[fx.Node]) -> list[fx.Node]:
    """Return nodes that are tensors, for those with several results some of these."""
    made: dict[fx.Node, None] = {}
    for node in nodes:
        if isinstance(node.meta.get("val"), torch.Tensor):
            made[node] = None
            continue
        for user in node.users:
            if isinstance(user.meta.get("val"), torch.Tensor):
                made[user] = None
    return list(made)


def keep_unread(backward: fx.Graph, found: Found) -> int:
    """Let gradients leave where weights are read after their update; count these.

    A plan may recompute something with a weight after its gradient is there.
    """
    order = {node: at for at, node in enumerate(backward.nodes)}
    sources = {node.name: node for node in backward.nodes if node.op == "placeholder"}
    count = 0
    for node in [each for each in order if each.target is STEP]:
        name, number, position = node.meta[_LEAVES]
        readers: list[fx.Node] = []
        if name in sources:
            derived = _derived(sources[name])
            readers = [user for each in derived for user in each.users]
        weight = found.weights.get(position)
        if weight is not None:
            readers += [
                each
                for each in order
                if each.target is READ and each.args[0] == weight.number
            ]
        if any(order[each] > order[node] for each in readers):
            node.target, node.args = PUT, (node.args[0], number)
            count += 1
    return count
