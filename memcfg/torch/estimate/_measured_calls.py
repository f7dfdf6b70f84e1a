"""What calls with fake tensors need, where no graph was traced of them."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map

from memcfg.torch.trace._lstm_layers import add_workspaces

if TYPE_CHECKING:
    from memcfg.torch.trace._costs import MeasuredCosts


class MeasuredCalls:
    """Measures each distinct call once, alone, as a node of a graph.

    Places of maxima, and workspaces that only a gradient understands, are made up by
    the op that makes them: calls that make such are kept, without their tensors.
    """

    def __init__(self, costs: MeasuredCosts) -> None:
        self._costs = costs
        self._made_by: dict[int, tuple[StorageWeakRef, fx.Node]] = {}

    def __call__(self, func: Any, args: Any, kwargs: Any, made: Any) -> tuple[int, Any]:
        """Return the scratch bytes of a call, and what it makes in real storages."""
        node = self._node(func, args, kwargs, made)
        add_workspaces(node.graph)  # which are larger than fake ones
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
            for each in node.graph.nodes:  # in cycles, which tensors would live as long
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
