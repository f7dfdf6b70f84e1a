"""Edits of the graphs that PyTorch traces, apart from the plan itself."""

from __future__ import annotations

import operator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from memcfg.torch.budget._swaps import swap_out
from memcfg.torch.trace._graph_inputs import gradients_of
from memcfg.torch.trace._lengths import is_symbol
from memcfg.torch.trace._traced import ELSEWHERE, ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import fx

    from memcfg.torch.budget._emitted import Emitter

_empty = torch.ops.aten.empty.memory_format


def changed_inputs(outputs: fx.Node) -> dict[int, str]:
    """Return the inputs that forward updates, by the positions of the new values.

    Running means are such inputs. PyTorch copies the new values to them after forward.
    """
    described = outputs.meta.get("desc") or ()
    return {
        at: each.mutated_input
        for at, each in enumerate(described)
        if type(each).__name__ == "InputMutationAOTOutput"
    }


def copy_what_changes(joint: fx.Graph) -> set[str]:
    """Let forward read copies of the inputs that it updates; return their names.

    Ops that are recomputed after forward would otherwise read the new values.
    """
    changed = set(changed_inputs(joint.output_node()).values())
    sources = [node for node in joint.nodes if node.op == "placeholder"]
    names = set()
    for node in sources:
        if node.meta.get("desc") not in changed or not node.users:
            continue
        first = next(each for each in joint.nodes if each in node.users)
        with joint.inserting_before(first):
            copy = joint.call_function(torch.ops.aten.clone.default, (node,))
        copy.meta = {
            key: value for key, value in first.meta.items() if "module_stack" in key
        }
        value = node.meta["val"]
        with value.fake_mode:
            copy.meta["val"] = value.clone()
        node.replace_all_uses_with(copy, delete_user_cb=partial(operator.ne, copy))
        copy.meta[ONCE] = True
        names.add(copy.name)
    return names


def drop_copies(graph: fx.Graph, emitter: Emitter, names: set[str]) -> None:
    """Read the inputs themselves where no op reads their copies after forward."""
    early = emitter.early
    for node in list(graph.nodes):
        leaves = any(user.target is swap_out for user in node.users)  # when it has time
        if node.name in names and not leaves and all(u in early for u in node.users):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def kept_outputs(
    source: fx.Graph, num_fwd_outputs: int | None
) -> Callable[[int], bool]:
    """Return which outputs the user holds, as opposed to those copied into buffers.

    Without a backward phase, buffers are updated at the end, and their values held
    until then.
    """
    if num_fwd_outputs is None:
        return lambda _: True
    changed = changed_inputs(source.output_node())
    return lambda index: index not in changed


def lay_out_gradients(
    joint: fx.Graph, num_fwd_outputs: int, inputs: Sequence[object]
) -> None:
    """Let gradients have the strides of their parameters.

    Autograd keeps the first gradient of a parameter as it is only if it has the
    parameter's strides and nobody else holds it. Others it copies after backward, when
    all gradients are there. Here each is copied, and counted, where it is made.
    """
    output = joint.output_node()
    results = list(output.args[0])
    leaves = {
        at: inputs[position]
        for at, position in gradients_of(joint, num_fwd_outputs).items()
        if _can_be_laid_out(results[at], inputs[position])
    }
    taken = {
        each
        for at, each in enumerate(results)
        if at not in leaves or each.op == "placeholder"
    }
    for at, leaf in leaves.items():
        gradient = results[at]
        if gradient not in taken and _fits(gradient.meta["val"], leaf):
            taken.add(gradient)
        else:
            results[at] = _laid_out(joint, gradient, leaf)
    output.args = (tuple(results),)


def _can_be_laid_out(gradient: fx.Node, leaf: object) -> bool:
    """Return whether a gradient may be copied to the strides of what it belongs to."""
    value = gradient.meta.get("val")
    return (
        isinstance(value, torch.Tensor)
        and value.layout is torch.strided  # others are refused later
        and ELSEWHERE not in gradient.meta
        and not _is_symbolic(value)
        and isinstance(leaf, torch.nn.Parameter)
        and leaf.layout is torch.strided
    )


def _is_symbolic(value: torch.Tensor) -> bool:
    return any(isinstance(e, torch.SymInt) for e in (*value.shape, *value.stride()))


def _fits(gradient: torch.Tensor, leaf: torch.Tensor) -> bool:
    """Return whether a gradient has the strides that autograd keeps."""
    if not torch.ops.aten.is_non_overlapping_and_dense(leaf):
        return bool(gradient.is_contiguous())
    strides = zip(gradient.shape, gradient.stride(), leaf.stride(), strict=True)
    return all(size == 1 or one == other for size, one, other in strides)


def _laid_out(joint: fx.Graph, gradient: fx.Node, leaf: torch.Tensor) -> fx.Node:
    """Add a copy of a gradient with the strides of a parameter."""
    order = list(range(leaf.dim()))
    if torch.ops.aten.is_non_overlapping_and_dense(leaf):
        order.sort(key=lambda dim: (-leaf.stride(dim), dim))
    back = sorted(order, key=order.__getitem__)
    aten = torch.ops.aten
    steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (order,), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (back,), {}),
    ]
    if order == sorted(order):
        steps = steps[1:2]
    made = gradient
    for run, args, options in steps:
        value = made.meta["val"]
        with (
            joint.inserting_before(joint.output_node())
            if gradient.op == "placeholder"
            else joint.inserting_after(made)
        ):
            made = joint.call_function(run, (made, *args), options)
        made.meta = {k: v for k, v in gradient.meta.items() if "module_stack" in k}
        with value.fake_mode:
            made.meta["val"] = run(value, *args, **options)
    return made


def add_token(forward: fx.Graph, backward: fx.Graph, outputs: int) -> None:
    """Make forward save a tensor of no bytes, before all others that it saves.

    Autograd frees it with the others, after backward or with the graph: backward may
    still run while its storage lives. Raises ValueError if neither graph has a tensor.
    """
    values = (node.meta.get("val") for node in (*forward.nodes, *backward.nodes))
    known = next((each for each in values if hasattr(each, "fake_mode")), None)
    if known is None:
        raise ValueError(
            "the model's step has no tensor that PyTorch has traced, so nothing can be "
            "planned: call the model itself"
        )
    with known.fake_mode:
        value = torch.empty(0, device="cpu")
    output = forward.output_node()
    first = next(each for each in backward.nodes if not is_symbol(each))
    with forward.inserting_before(output):
        made = forward.call_function(_empty, ([0],), {"device": value.device})
    with backward.inserting_before(first):
        taken = backward.placeholder("pass_token")
    for node in (made, taken):
        node.meta["val"] = value
    results = list(output.args[0])
    output.args = ((*results[:outputs], made, *results[outputs:]),)
    if "desc" in output.meta:
        descriptions = list(output.meta["desc"])
        output.meta["desc"] = [*descriptions[:outputs], None, *descriptions[outputs:]]


def runs_as_planned(_: torch.Tensor) -> torch.Tensor:
    """Mark a graph that memcfg compiles; raise RuntimeError if the mark runs."""
    raise RuntimeError(
        "compiled autograd replaced the planned backward phase: disable "
        "torch._dynamo.compiled_autograd"
    )


def guard(backward: fx.Graph) -> None:
    """Make a backward graph raise RuntimeError unless memcfg compiles it.

    PyTorch's compiled autograd copies such graphs into one of its own, which frees,
    drops and recomputes nothing as planned.
    """
    sources = [node for node in backward.nodes if node.op == "placeholder"]
    read = next((n for n in sources if n.users and not is_symbol(n)), None)
    if read is None:
        return
    with backward.inserting_after(sources[-1]):
        node = backward.call_function(runs_as_planned, (read,))
    node.meta = dict(read.meta)
    read.replace_all_uses_with(node, delete_user_cb=lambda user: user is not node)


def unguard(backward: fx.Graph) -> None:
    """Allow a guarded graph to run."""
    for node in list(backward.nodes):
        if node.target is runs_as_planned:
            node.replace_all_uses_with(node.args[0])
            backward.erase_node(node)
