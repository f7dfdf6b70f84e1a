"""Slices: recomputed in the backward phase; their gradients are concatenated."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from memcfg.graph._cost import nominal_seconds_of
from memcfg.graph._graph import Op
from memcfg.graph.rewrites._kept_activations import backward_readers
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from memcfg.graph._graph import Graph, Tensor

__all__ = ["join_padded", "slice_again"]


def slice_again(graph: Graph) -> Graph:
    """Slice a tensor again in the backward phase instead of keeping its slices.

    This is done if backward reads the whole tensor anyway, or the tensor takes no more
    bytes than those of its slices that backward reads, such as the steps of a sequence.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, with additional slices.
    """
    tensors = list(graph.tensors)
    before: dict[int, list[Op]] = defaultdict(list)  # op -> slices inserted before it
    renamed: dict[int, int] = {}  # slice -> slice for the backward phase
    for whole, slices in _sliced(graph).items():
        nbytes = sum(graph.tensors[op.outputs[0]].nbytes for op in slices)
        if nbytes < graph.tensors[whole].nbytes and not backward_readers(graph, whole):
            continue
        for op in slices:
            (made,) = op.outputs
            again = _again(graph, op, tensors)
            before[backward_readers(graph, made)[0]].append(again)
            renamed[made] = again.outputs[0]
    if not before:
        return graph
    ops: list[Op] = []
    for index, op in enumerate(graph.ops):
        ops += before.get(index, [])
        names = {} if op.phase == "forward" else renamed
        inputs = tuple(names.get(tensor, tensor) for tensor in op.inputs)
        pairs = tuple((names.get(i, i), o) for i, o in op.in_place)
        ops.append(replace(op, inputs=inputs, in_place=pairs))
    return replace(graph, tensors=tuple(tensors), ops=tuple(ops))


def _sliced(graph: Graph) -> dict[int, list[Op]]:
    """Map each tensor to its slices that the backward phase reads."""
    rows: dict[int, list[Op]] = defaultdict(list)
    kept = {*graph.keep, *graph.losses}
    for op in graph.ops:
        if op.type == "slice" and op.phase == "forward":
            (made,) = op.outputs
            if made not in kept and backward_readers(graph, made):
                rows[op.inputs[0]].append(op)
    return rows


def _again(graph: Graph, op: Op, tensors: list[Tensor]) -> Op:
    """Return a copy of a slice op for the backward phase, and append its tensor."""
    name = f"{op.name}/again"
    like = graph.tensors[op.outputs[0]]
    tensors.append(replace(like, name=name, role="activation_gradient"))
    return replace(op, name=name, phase="backward", outputs=(len(tensors) - 1,))


class _Padded(NamedTuple):
    """A pad op along one axis; its input lies in [begin, end) of the output."""

    op: int
    axis: int
    begin: int
    end: int


def join_padded(graph: Graph) -> Graph:
    """Replace sums of zero-padded tensors by concatenations.

    Gradients of slices are such sums: each is padded to the shape of the sliced tensor,
    and then all are added. If the unpadded parts do not overlap, concatenating them
    gives the same result and copies each element once.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, with fewer ops.
    """
    tensors = list(graph.tensors)
    gone: set[int] = set()  # indices of dropped ops
    made: dict[int, list[Op]] = {}  # index of the last add -> its replacement
    for index in reversed(range(len(graph.ops))):
        if index not in gone and graph.ops[index].type == "add":
            sums, terms = _sum(graph, index)
            padded = _beside(graph, terms)
            if len(padded) > 1:
                gone.update(sums, (each.op for each in padded))
                others = [t for t in terms if graph.producer[t] not in gone]
                made[index] = _joined(graph, index, padded, others, tensors)
    if not made:
        return graph
    ops = []
    for index, op in enumerate(graph.ops):
        if index in made:
            ops += made[index]
        elif index not in gone:
            ops.append(op)
    used = {tensor for op in ops for tensor in (*op.inputs, *op.outputs)}
    longer = replace(graph, tensors=tuple(tensors))
    ends = len(graph.tensors)
    left = [
        tensor
        for tensor in range(len(tensors))
        if tensor in used or (tensor < ends and graph.producer[tensor] is None)
    ]
    return longer.restricted(left, ops)


def _sum(graph: Graph, index: int) -> tuple[list[int], list[int]]:
    """Return the add ops of a nested sum, and its terms in order."""
    kept = {*graph.keep, *graph.losses}
    sums, terms = [index], list[int]()
    waiting = list(reversed(graph.ops[index].inputs))
    shape = graph.tensors[graph.ops[index].outputs[0]].shape
    while waiting:
        tensor = waiting.pop()
        maker = graph.producer[tensor]
        inner = (
            maker is not None
            and graph.ops[maker].type == "add"
            and graph.ops[maker].phase == graph.ops[index].phase
            and len(graph.consumers[tensor]) == 1
            and tensor not in kept
            and graph.tensors[tensor].shape == shape
        )
        if inner and maker is not None:
            sums.append(maker)
            waiting += reversed(graph.ops[maker].inputs)
        else:
            terms.append(tensor)
    return sums, terms


def _beside(graph: Graph, terms: Sequence[int]) -> list[_Padded]:
    """Return the padded terms if they lie side by side along one axis, in order."""
    kept = {*graph.keep, *graph.losses}
    parts = []
    for tensor in terms:
        maker = graph.producer[tensor]
        alone = len(graph.consumers[tensor]) == 1 and tensor not in kept
        if maker is not None and alone and (each := _padded(graph, maker)) is not None:
            parts.append(each)
    if len({each.axis for each in parts}) != 1:
        return []
    parts.sort(key=lambda each: each.begin)
    # Gaps between parts are filled with zeros, in float32 only.
    dtype = graph.tensors[terms[0]].dtype
    apart = all(
        one.end == two.begin or (one.end < two.begin and dtype == "float32")
        for one, two in pairwise(parts)
    )
    return parts if apart else []


def _padded(graph: Graph, index: int) -> _Padded | None:
    op = graph.ops[index]
    if op.type != "pad" or op.phase == "forward" or op.attributes["value"] != 0:
        return None
    (length,) = (graph.tensors[tensor].shape or () for tensor in op.inputs)
    before, after = op.attributes["before"], op.attributes["after"]
    if any(step != 1 for step in op.attributes.get("strides") or ()):
        return None
    axes = [axis for axis in range(len(length)) if before[axis] or after[axis]]
    if len(axes) != 1:
        return None
    begin = before[axes[0]]
    return _Padded(index, axes[0], begin, begin + length[axes[0]])


def _joined(
    graph: Graph,
    index: int,
    padded: Sequence[_Padded],
    others: Sequence[int],
    tensors: list[Tensor],
) -> list[Op]:
    """Return ops that concatenate the padded parts and add the other terms."""
    last = graph.ops[index]
    whole = tensors[last.outputs[0]]
    axis, ops = padded[0].axis, list[Op]()
    shape = whole.shape or ()

    def append(
        kind: str,
        inputs: tuple[int, ...],
        attributes: Mapping[str, Any],
        length: int,
        output: int | None = None,
    ) -> int:
        if output is None:
            sides = (*shape[:axis], length, *shape[axis + 1 :])
            nbytes = whole.nbytes // shape[axis] * length
            name = f"{last.name}/{kind}{len(ops)}"
            tensors.append(replace(whole, name=name, shape=sides, nbytes=nbytes))
            output = len(tensors) - 1
        longer = replace(graph, tensors=tuple(tensors))
        type_ = op_type(kind)
        seconds = nominal_seconds_of(longer, type_, inputs, (output,), attributes)
        ops.append(
            replace(
                last,
                name=last.name if output == last.outputs[0] else tensors[output].name,
                type=kind,
                inputs=inputs,
                outputs=(output,),
                attributes=dict(attributes),
                seconds=seconds,
                in_place=tuple((inputs[i], output) for i, _ in type_.in_place),
            )
        )
        return output

    parts: list[int] = []
    end = padded[0].begin
    for each in padded:
        if each.begin > end:
            sides = (*shape[:axis], each.begin - end, *shape[axis + 1 :])
            zeros = {"shape": sides, "value": 0.0, "dtype": whole.dtype}
            parts.append(append("fill", (), zeros, each.begin - end))
        parts.append(graph.ops[each.op].inputs[0])
        end = each.end
    begin, rest = padded[0].begin, shape[axis] - end
    final = None if others else last.outputs[0]
    around = bool(begin or rest)
    joined = append(
        "concatenate",
        tuple(parts),
        {"axis": axis},
        end - begin,
        None if around else final,
    )
    if around:
        place = [0] * len(shape)
        before, after = list(place), list(place)
        before[axis], after[axis] = begin, rest
        attributes = {"before": tuple(before), "after": tuple(after), "value": 0.0}
        joined = append("pad", (joined,), attributes, shape[axis], final)
    for number, other in enumerate(others, 1):
        final = last.outputs[0] if number == len(others) else None
        joined = append("add", (joined, other), {}, shape[axis], final)
    return ops
