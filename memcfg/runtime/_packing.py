"""Choice of the weights that kernels read packed, and the graph that contains them.

A weight is packed in its own place, or into a tensor of its own next to the plain one.
This module decides which, makes these tensors, and chooses how many fit a budget. It
takes no memory and packs nothing: a program packs weights that have changed.

See docs/decisions/0026-packed-weights-are-tensors.md.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg import plan as planning
from memcfg._core._machine import machine_bytes
from memcfg.errors import GraphError, InfeasiblePlanError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan.search.algorithms._claims import Claim, Claims
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.devices import Packing, UnboundKernel
    from memcfg.plan.search.algorithms._claims import Order
    from memcfg.runtime._kernels import Kernels

__all__ = [
    "InPlace",
    "Packed",
    "PackedWeight",
    "is_inference",
    "plan_packed",
    "slots_of",
]

_BUDGETS = 500  # numbers of bytes that packed weights are given
_SETS = 16  # of packed weights, at most, between none and all


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
    order: Order,
) -> Packed:
    """Plan a graph with the packed weights that the budget allows, by a policy's order.

    A weight is packed in its place of `slots` if it fits there; if `slots` is None, all
    places hold plain weights. Others are packed next to the plain ones.
    """
    candidates = _candidates(source, kernels)
    if slots is None:
        return replace(
            _plan(source, kernels, candidates, policy, limit, order), sized=source
        )
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
    packed = _plan(sized, own, left, policy, limit, order)
    in_place = tuple(InPlace(each.weights[0], each.packing) for each in chosen)
    return replace(packed, in_place=in_place, sized=sized)


def _plan(
    source: Graph,
    kernels: Kernels,
    candidates: Sequence[_Packable],
    policy: Callable[[Graph], planning.Plan],
    limit: int | None,
    order: Order,
) -> Packed:
    """Plan a graph with the weights packed next to the plain ones that make it fastest.

    What a policy divides is divided for each set of packed weights, so that these
    compete with what ops would keep and with scratch. Without a limit the budget is
    half of the machine's memory. Invariant: the sets do not depend on the limit, so a
    larger limit is never slower. Default algorithms come first, whose bits do not
    depend on the limit. Raises the errors of the policy for the graph without packed
    weights.
    """
    most = machine_bytes() // 2 if limit is None else limit
    graph = kernels.annotate(source)
    quickest = sum(
        min((each.seconds for each in op.algorithms), default=op.seconds)
        for op in graph.ops
    )
    best, least = None, (True, math.inf)
    for packing, chosen in _sets(graph, kernels, candidates, order):
        if best is not None and (False, quickest + packing) >= least:
            break
        made: Packed | None
        if chosen or best is not None:
            made = _try(source, kernels, chosen, policy, most)
        else:  # the last one
            made = Packed(graph, kernels, (), policy(graph))
        if made is None:
            continue
        summary = made.plan.summary
        lacks = summary is not None and summary.less_scratch.count > 0
        key = lacks, made.plan.elapsed_seconds + packing
        if best is None or key < least:
            best, least = made, key
    assert best is not None
    return best


def _sets(
    graph: Graph, kernels: Kernels, candidates: Sequence[_Packable], order: Order
) -> list[tuple[float, Sequence[_Packable]]]:
    """Return sets of weights to pack, with the seconds of packing the others in a run.

    Each is what claims get in their order from some number of bytes; of equal claims,
    the larger one is first. Sets that another one beats in bytes and seconds are left
    out, and there are at most `_SETS`, from all weights to none.
    """
    candidates = sorted(candidates, key=lambda each: -each.nbytes)
    rows = {}
    for number, each in enumerate(candidates):
        saved = kernels.packing_seconds(each.traffic)
        rows[number] = [Claim(number, saved, align_up(each.nbytes), None)]
    took = [sum(graph.ops[op].seconds for op in each.ops) for each in candidates]
    claims = order(Claims(rows, took))
    total = sum(each.nbytes for each in claims)
    step = 1 + total // _BUDGETS
    found = []
    budget = total
    while budget >= 0:
        left, taken = budget, []
        for claim in claims:
            if claim.nbytes <= left:
                left -= claim.nbytes
                taken.append(claim)
        cost = budget - left
        found.append((cost, math.fsum(claim.seconds for claim in taken), taken))
        budget = (cost - 1) // step * step
    front: list[tuple[float, list[Claim]]] = []  # from none to all
    for _, gain, taken in sorted(found, key=lambda each: (each[0], -each[1])):
        if not front or gain > front[-1][0]:
            front.append((gain, taken))
    whole, last = front[-1][0], len(front) - 1
    steps = min(last, _SETS - 1)
    kept = [front[last - k * last // max(steps, 1)] for k in range(steps + 1)]
    return [
        (whole - gain, [candidates[each.op] for each in taken]) for gain, taken in kept
    ]


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

    @property
    def traffic(self) -> int:
        """The bytes that packing in each run reads and writes."""
        return 2 * self.nbytes * len(self.packings)


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
    if planning.lower_bound(graph) > most:
        return None
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
