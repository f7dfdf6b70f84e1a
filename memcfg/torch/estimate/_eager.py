"""The memory of a training step of eager PyTorch, measured with fake tensors.

Fake tensors select the kernels of their device. Meta tensors would select different
ones for attention and recurrent layers on a CPU.
"""

from __future__ import annotations

import operator
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves, tree_map

from memcfg._caller import outside
from memcfg._first_line import first_line
from memcfg.torch.trace._fakes import (
    LiveStorages,
    Measure,
    faked,
    faked_module,
    in_place_of,
    same_numbers,
    state_of,
    without_logs,
)
from memcfg.torch.trace._kept_functions import kept_in_eager
from memcfg.torch.trace._traced import nbytes_of, rounded
from memcfg.torch.trace.ops._lstm_layers import add_workspaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import nn

    from memcfg.torch.trace._costs import MeasuredCosts


def eager_bytes(
    module: nn.Module,
    loss: Callable[[Any], torch.Tensor] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    state_bytes: int,
    update_bytes: int | None,
    measure: Measure | None,
) -> int | None:
    """Return the most bytes in use in a step of forward, loss, backward and update.

    Nothing is computed. Autograd runs forward and backward of a copy of the module with
    fake tensors, which live as long as real ones would: PyTorch itself decides what is
    in place, a view, or saved. Outputs and the loss live as long as the variables of a
    training loop. For an unknown loss, three times the outputs are counted, as in a
    plan. Returns None, with a warning, if the module cannot be copied or run that way.
    """
    gradients = [(each, each.grad) for each in module.parameters()]
    try:
        with same_numbers(), without_logs():
            peak = _peak(module, loss, args, kwargs, update_bytes or 0, measure)
    except Exception as error:  # the user's code may raise anything
        warnings.warn(
            f"the peak of {type(module).__name__} in eager PyTorch is not known: it "
            f"does not run on tensors without data: {first_line(error)}",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
        return None
    finally:
        for each, gradient in gradients:
            if each.grad is not gradient:
                each.grad = gradient
    return state_bytes + peak


def _peak(
    module: nn.Module,
    loss: Callable[[Any], torch.Tensor] | None,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    update_bytes: int,
    measure: Measure | None,
) -> int:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    twin = faked_module(mode, module)
    with kept_in_eager(), mode, torch.enable_grad():
        inputs, by_name = faked(mode, (tuple(args), dict(kwargs)))
        given = [*state_of(twin), *_tensors((inputs, by_name))]
        leaves = [each for each in given if each.is_leaf and each.requires_grad]
        given += [each.grad for each in leaves if each.grad is not None]
        there = {each.untyped_storage()._cdata: nbytes_of(each) for each in given}
        watch = LiveStorages(given, measure, only_fake=True)
        with in_place_of(module, twin), watch as live:
            made = twin(*inputs, **by_name)
            value = None if loss is None else loss(made)
            _backward(live, made, value, leaves)
            live.add(update_bytes)
    peak: int = live.peak_bytes
    return sum(there.values()) + peak


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def _backward(
    live: LiveStorages,
    made: Any,
    value: torch.Tensor | None,
    leaves: Sequence[torch.Tensor],
) -> None:
    """Run backward from a loss, or, if it is unknown, from gradients of outputs.

    Other tensors that the loss reads may be the user's, whose gradients must not
    change.
    """
    if value is not None:
        roots, gradients = [value] if value.requires_grad else [], None
    else:
        roots = [each for each in _tensors(made) if each.requires_grad]
        live.add(3 * sum(rounded(int(each.nbytes), each.device) for each in roots))
        gradients = [torch.empty_like(each) for each in roots]
    if roots and leaves:
        others = live.watch(roots) - {id(each) for each in leaves}
        # A reentrant checkpoint does not run with `inputs`.
        torch.autograd.backward(roots, gradients, inputs=leaves if others else None)


class MeasuredCalls:
    """Measures the scratch of each distinct call once, as a node of a graph.

    Indices of maxima, and workspaces that only a gradient understands, must come from
    the op that makes them. Calls that make such values are kept, without their tensors.
    """

    def __init__(self, costs: MeasuredCosts) -> None:
        self._costs = costs
        self._made_by: dict[int, tuple[StorageWeakRef, fx.Node]] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any, made: Any) -> tuple[int, Any]:
        """Return the scratch bytes of a call, and its results in real storages."""
        node = self._node(func, args, kwargs, made)
        add_workspaces(node.graph)  # which may be larger than fake ones
        self._costs.prepare([node])
        scratch, values = self._costs(node)[1], node.meta["val"]
        own = [
            at
            for at, each in enumerate(made if isinstance(made, (tuple, list)) else ())
            if isinstance(each, torch.Tensor) and not each.dtype.is_floating_point
        ]
        if own:
            for each in node.graph.nodes:
                each.meta["val"] = tree_map(_like, each.meta["val"])
            for at in own:
                storage = made[at].untyped_storage()
                part = node.graph.call_function(operator.getitem, (node, at))
                part.meta["val"] = node.meta["val"][at]
                self._made_by[storage._cdata] = StorageWeakRef(storage), part
        else:
            for each in node.graph.nodes:  # reference cycles would keep tensors alive
                each.meta.clear()
        return scratch, values

    def _node(self, func: Any, args: Any, kwargs: Any, made: Any) -> fx.Node:
        """Make a graph of a call."""
        graph = fx.Graph()
        known: dict[int, fx.Node] = {}

        def node_of(each: Any) -> Any:
            if not isinstance(each, torch.Tensor):
                return each
            if id(each) not in known:
                held = self._made_by.get(each.untyped_storage()._cdata)
                if held is not None and not held[0].expired():
                    known[id(each)] = held[1]
                else:
                    node = graph.placeholder(f"given{len(known)}")
                    node.meta["val"] = each
                    known[id(each)] = node
            return known[id(each)]

        arguments, by_name = tree_map(node_of, (tuple(args), dict(kwargs)))
        node = graph.call_function(func, arguments, by_name)
        node.meta["val"] = made
        return node


def _like(each: Any) -> Any:
    """Return a tensor like another one, in a storage of its own."""
    if not isinstance(each, torch.Tensor):
        return each
    return torch.empty_strided(
        each.shape, each.stride(), dtype=each.dtype, device=each.device
    )
