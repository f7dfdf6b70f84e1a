"""Choice of the weights that kernels read packed, and the graph that contains them.

A weight is packed in its own place, or into a tensor of its own next to the plain one.
This module decides which, makes these tensors, and chooses how many fit a budget. It
takes no memory and packs nothing: a program packs weights that have changed.

See docs/decisions/0026-packed-weights-are-tensors.md.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg import plan as planning
from memcfg._core._machine import machine_bytes
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices import Packing, UnboundKernel
    from memcfg.runtime._kernels import Kernels

__all__ = [
    "InPlace",
    "Packed",
    "PackedWeight",
    "is_inference",
    "plan_packed",
    "slots_of",
]

_MOVES = (planning.SwapOut, planning.SwapIn, planning.Encode, planning.Decode)


class PackedWeight(NamedTuple):
    """The tensors that a packed weight is made from, its own tensor, and its kernel."""

    weights: tuple[int, ...]
    packed: int
    kernel: UnboundKernel


class InPlace(NamedTuple):
    """A weight that is packed in its own place."""

    weight: int
    packing: Packing


@dataclass(frozen=True)
class Packed:
    """A graph whose ops read packed weights, with its kernels and plan."""

    graph: Graph  # with the kernels' scratch
    kernels: Kernels
    weights: tuple[PackedWeight, ...]
    plan: planning.Plan
    in_place: tuple[InPlace, ...] = ()
    sized: Graph | None = None  # the source with the bytes that weights take


def is_inference(graph: Graph) -> bool:
    """Return whether a graph leaves its weights as they are."""
    return not graph.losses and all(op.phase == "forward" for op in graph.ops)


def slots_of(sources: Sequence[tuple[Graph, Kernels]]) -> dict[str, int]:
    """Return the bytes that the places of packed weights need for several graphs.

    Weights that none of the graphs packs are left out.
    """
    slots: dict[str, int] = {}
    for graph, kernels in sources:
        for each in _in_place(graph, _candidates(graph, kernels)):
            tensor = graph.tensors[each.weights[0]]
            needed = max(tensor.nbytes, each.nbytes)
            slots[tensor.name] = max(slots.get(tensor.name, 0), needed)
    return slots


def plan_packed(
    source: Graph,
    kernels: Kernels,
    policy: Callable[[Graph], planning.Plan],
    limit: int | None,
    slots: Mapping[str, int] | None,
) -> Packed:
    """Plan a graph with as many packed weights as the budget allows.

    A weight is packed in its place of `slots` if it fits there; if `slots` is None, all
    places hold plain weights. Others are packed next to the plain ones.
    """
    candidates = _candidates(source, kernels)
    if slots is None:
        return replace(_plan(source, kernels, candidates, policy, limit), sized=source)
    chosen = [
        each
        for each in _in_place(source, candidates)
        if each.nbytes <= slots.get(source.tensors[each.weights[0]].name, 0)
    ]
    sized = _sized(source, slots)
    own = kernels.with_packed(
        {index: packing for each in chosen for index, packing in each.packings.items()}
    )
    left = [each for each in candidates if each not in chosen]
    packed = _plan(sized, own, left, policy, limit)
    in_place = tuple(InPlace(each.weights[0], each.packing) for each in chosen)
    return replace(packed, in_place=in_place, sized=sized)


def _plan(
    source: Graph,
    kernels: Kernels,
    candidates: Sequence[_Packable],
    policy: Callable[[Graph], planning.Plan],
    limit: int | None,
) -> Packed:
    """Plan a graph with as many weights packed next to the plain ones as fit.

    All candidates are packed if the plan then needs neither recomputation nor copies.
    Otherwise the plan without packing decides: the largest weights that fit next to it
    are packed, provided that the plan does no more work. Without a limit the budget is
    half of the machine's memory. Raises the errors of the policy for the graph without
    packed weights.
    """
    most = machine_bytes() // 2 if limit is None else limit
    if candidates:
        all_packed = _try(source, kernels, candidates, policy, most)
        if all_packed is not None and _work(all_packed.plan) <= len(source.ops):
            return all_packed
    graph = kernels.annotate(source)
    plain = Packed(graph, kernels, (), policy(graph))
    left = most - plain.plan.peak_bytes
    chosen = []
    for each in sorted(candidates, key=lambda each: -each.nbytes):
        if align_up(each.nbytes) <= left:
            chosen.append(each)
            left -= align_up(each.nbytes)
    some = _try(source, kernels, chosen, policy, most) if chosen else None
    if some is not None and _work(some.plan) <= _work(plain.plan):
        return some
    return plain


@dataclass(frozen=True)
class _Packable:
    """A weight that several ops can read packed in the same layout."""

    weights: tuple[int, ...]  # the weight, then the others it is packed from
    packings: Mapping[int, Packing]  # by op

    @property
    def ops(self) -> tuple[int, ...]:
        return tuple(self.packings)

    @property
    def packing(self) -> Packing:
        """The packing of the first op."""
        return next(iter(self.packings.values()))

    @property
    def nbytes(self) -> int:
        return self.packing.nbytes


def _candidates(graph: Graph, kernels: Kernels) -> list[_Packable]:
    """Return the packable weights of a graph that leaves its weights unchanged.

    A training step has none, since it would have to pack each weight again.
    """
    if graph.losses or any(op.phase == "backward" for op in graph.ops):
        return []
    changed = {source for op in graph.ops for source, _ in op.in_place}
    constant = {
        tensor
        for tensor in graph.persistent
        if graph.tensors[tensor].role == "parameter" and tensor not in changed
    }
    result: dict[tuple[object, ...], _Packable] = {}
    for index, op in enumerate(graph.ops):
        if constant.isdisjoint(op.inputs):
            continue
        packing = kernels.packing(index)
        if packing is None:
            continue
        weights = tuple(op.inputs[operand] for operand in packing.operands)
        if not constant.issuperset(weights):
            continue
        layout = packing.layout or kernels.signature(index)
        key = (weights, packing.nbytes, layout)
        before = result.get(key, _Packable(weights, {}))
        result[key] = replace(before, packings={**before.packings, index: packing})
    return list(result.values())


def _in_place(graph: Graph, candidates: Sequence[_Packable]) -> list[_Packable]:
    """Return those that may replace their weights: all readers read this layout."""
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for index, op in enumerate(graph.ops):
        for tensor in op.inputs:
            readers[tensor].append(index)
    return [
        each
        for each in candidates
        if each.packing.unpack is not None
        and readers[each.weights[0]] == sorted(each.ops)
        and each.weights[0] not in graph.keep
    ]


def _sized(source: Graph, slots: Mapping[str, int]) -> Graph:
    """Return the graph with the bytes that weights take."""
    tensors = tuple(
        replace(tensor, nbytes=max(tensor.nbytes, slots.get(tensor.name, 0)))
        if tensor.role == "parameter"
        else tensor
        for tensor in source.tensors
    )
    return replace(source, tensors=tensors)


def _try(
    source: Graph,
    kernels: Kernels,
    chosen: Sequence[_Packable],
    policy: Callable[[Graph], planning.Plan],
    most: int,
) -> Packed | None:
    """Plan with these weights packed; return None if it takes over `most` bytes."""
    graph, packings, weights = _rewritten(source, chosen)
    own = kernels.with_packed(packings)
    graph = own.annotate(graph)
    try:
        plan = policy(graph)
    except (InfeasiblePlanError, GraphError):  # GraphError: sizes beyond a plan's range
        return None
    return Packed(graph, own, weights, plan) if plan.peak_bytes <= most else None


def _rewritten(
    source: Graph, chosen: Sequence[_Packable]
) -> tuple[Graph, Mapping[int, Packing], tuple[PackedWeight, ...]]:
    """Return the graph with packed tensors appended, and the ops that read them."""
    tensors = list(source.tensors)
    ops: list[Op] = list(source.ops)
    packings: dict[int, Packing] = {}
    weights = []
    count: defaultdict[int, int] = defaultdict(int)  # packed tensors by weight
    for each in sorted(chosen, key=lambda each: each.ops):
        weight = each.weights[0]
        plain = source.tensors[weight]
        count[weight] += 1
        number = f" {count[weight]}" if count[weight] > 1 else ""
        packed = len(tensors)
        tensors.append(
            Tensor(
                f"{plain.name} packed{number}",
                each.nbytes,
                "packed",
                (each.nbytes,),
                "uint8",
            )
        )
        weights.append(PackedWeight(each.weights, packed, each.packing.pack))
        for index in each.ops:
            inputs = list(ops[index].inputs)
            inputs[each.packings[index].operand] = packed
            ops[index] = replace(ops[index], inputs=tuple(inputs))
            packings[index] = each.packings[index]
    graph = replace(source, tensors=tuple(tensors), ops=tuple(ops))
    return graph, packings, tuple(weights)


def _work(plan: planning.Plan) -> int:
    """Return the number of ops and moves of a plan."""
    kinds = (planning.Compute, *_MOVES)
    return sum(isinstance(action, kinds) for action in plan.actions)
