"""Graphs with lengths that change, as graphs of the largest lengths.

A graph that PyTorch has traced with symbols for lengths is planned as it is with the
largest lengths of a range. No tensor of it is larger with smaller lengths, so that the
plan has room for all lengths of the range.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import is_sym_node
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.utils._pytree import tree_map

from memcfg.torch.trace._traced import RUNS_AS, values_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.torch.trace._traced import Traced

_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool


def is_symbol(node: Any) -> bool:
    """Return whether a node is a number that is not known while a graph is traced."""
    return isinstance(node, fx.Node) and bool(is_sym_node(node))


def bucket_of(length: int) -> tuple[int, int]:
    """Return the range of lengths that share a plan: above the first, to the second.

    There are two ranges for each power of two.

    Examples
    --------
    >>> [bucket_of(each) for each in (2, 5, 100, 128, 129)]
    [(1, 2), (4, 6), (96, 128), (96, 128), (128, 192)]
    """
    top = 1 << max(0, length - 1).bit_length()
    middle = top * 3 // 4
    if length <= middle < top:
        return top // 2, middle
    return max(middle, top // 2) if top > 1 else 0, top


class DataDependentError(ValueError):
    """A graph has a number or a length that depends on the values of tensors."""

    def __init__(self) -> None:
        super().__init__(
            "a number or shape that depends on data, such as that of a mask's elements"
        )


@dataclass
class Lengths:
    """The lengths in a traced graph that change, and the largest that are planned for.

    Parameters
    ----------
    inputs : sequence
        The inputs of the graph, among which are the symbols of lengths and numbers.
    values : mapping
        The values of all symbols for which the graph was traced.
    now : dict
        Those of the symbols that sizes of tensors depend on, which are the lengths.
    top : dict
        The largest lengths that are planned for.
    """

    inputs: Sequence[Any]
    values: Mapping[Any, int | float]
    now: dict[Any, int]
    top: dict[Any, int]

    @classmethod
    def of(cls, graph: fx.Graph, inputs: Sequence[Any]) -> Lengths:
        """Return the lengths of a graph that has symbols."""
        numbers = [node.meta["val"] for node in graph.nodes if is_symbol(node)]
        environment = numbers[0].node.shape_env
        known = getattr(environment, "backed_var_to_val", None)
        known = environment.var_to_val if known is None else known
        values = {symbol: _number(value) for symbol, value in known.items()}
        found: set[Any] = set()
        for node in graph.nodes:
            for value in values_of(node):
                # not of offsets, which change no bytes
                found |= free_symbols((*value.shape, *value.stride()))
        unknown = found - values.keys()
        if unknown or any(free_symbols(each) - values.keys() for each in numbers):
            raise DataDependentError
        now = {symbol: int(values[symbol]) for symbol in sorted(found, key=str)}
        return cls(inputs, values, now, now)

    def tops(self) -> list[dict[Any, int]]:
        """List the largest lengths to plan for, the most wanted first.

        A plan for the end of each range may not fit where one for the lengths of now
        does.
        """
        now = self.now
        ends = {symbol: bucket_of(length)[1] for symbol, length in now.items()}
        middle = {each: (now[each] + ends[each]) // 2 for each in now}
        result = []
        for each in (ends, middle, now):
            if each not in result:
                result.append(each)
        return result

    def keep_to(self) -> None:
        """Let PyTorch trace again for lengths outside of the planned ranges."""
        for each in self.inputs:
            if isinstance(each, torch.SymInt) and each.node.expr in self.top:
                symbol = each.node.expr
                least, most = bucket_of(self.now[symbol])[0], self.top[symbol]
                # a test of a symbol is a condition of the trace
                assert bool(each > least) & bool(each <= most), "it is in the range"

    def number(self, value: Any) -> Any:
        """Return a symbolic number as it is with the planned lengths."""
        if not isinstance(value, _SYMBOLIC):
            return value
        made = value.node.expr.xreplace({**self.values, **self.top})
        kind = bool if isinstance(value, torch.SymBool) else float
        return kind(made) if not isinstance(value, torch.SymInt) else int(made)


def _number(value: Any) -> int | float:
    return int(value) if getattr(value, "is_integer", False) else float(value)


@dataclass(frozen=True)
class Resized:
    """A graph as it is with the planned lengths.

    Parameters
    ----------
    graph : fx.Graph
        The graph, without symbols.
    origin : mapping of fx.Node to fx.Node
        The nodes of the traced graph, by those of this one.
    """

    graph: fx.Graph
    origin: Mapping[fx.Node, fx.Node]


def resized(source: fx.Graph, lengths: Lengths) -> Resized:
    """Return a graph as it is with the planned lengths; numbers are those of now."""
    graph = fx.Graph()
    made: dict[fx.Node, Any] = {}
    storages: dict[int, Any] = {}
    mode = FakeTensorMode()

    def tensor(value: Any) -> Any:
        return _tensor(value, lengths, storages, mode)

    for node in source.nodes:
        if is_symbol(node):
            made[node] = lengths.number(node.meta["val"])
            continue
        copy = graph.node_copy(node, lambda each: made[each])
        copy.name = node.name
        copy.meta = dict(node.meta)
        if "val" in node.meta:
            copy.meta["val"] = tree_map(tensor, node.meta["val"])
        made[node] = copy
    origin = {new: old for old, new in made.items() if isinstance(new, fx.Node)}
    return Resized(graph, origin)


def _tensor(
    value: Any, lengths: Lengths, storages: dict[int, Any], mode: FakeTensorMode
) -> Any:
    """Return a tensor with the planned lengths, in the same storage as others."""
    if not isinstance(value, torch.Tensor):
        return lengths.number(value)
    if value.layout is not torch.strided or not hasattr(value, "fake_mode"):
        return value
    number = lengths.number
    storage = value.untyped_storage()
    with mode:
        if storage._cdata not in storages:
            nbytes = number(storage.nbytes())
            whole = torch.empty(nbytes, dtype=torch.uint8, device=value.device)
            storages[storage._cdata] = whole
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        made = made.set_(
            storages[storage._cdata].untyped_storage(),
            number(value.storage_offset()),
            tuple(map(number, value.shape)),
            tuple(map(number, value.stride())),
        )
        made = torch._conj(made) if value.is_conj() else made
        return torch._neg_view(made) if value.is_neg() else made


def has_symbols(graph: fx.Graph) -> bool:
    """Return whether a graph has symbols."""
    return any(map(is_symbol, graph.nodes))


def traced_in(traced: Traced, whole: Resized, source: fx.Graph) -> Traced:
    """Return what was traced of a resized graph in terms of the nodes of its source."""
    origin = whole.origin
    values = (value for node in source.nodes for value in values_of(node))
    mode = next(each.fake_mode for each in values if hasattr(each, "fake_mode"))
    for new, old in origin.items():
        if RUNS_AS in new.meta:
            old.meta[RUNS_AS] = new.meta[RUNS_AS]
    for state in traced.states.values():  # they were added to the resized graph
        with mode:
            state.meta["val"] = torch.empty(state.meta["val"].shape, dtype=torch.uint8)
    return replace(
        traced,
        nodes=[None if e is None else origin.get(e, e) for e in traced.nodes],
        storage_of={origin.get(k, k): v for k, v in traced.storage_of.items()},
        sources=[n for n in source.nodes if n.op in ("placeholder", "get_attr")],
        states={op: origin.get(each, each) for op, each in traced.states.items()},
    )
