"""Activations that need not stay resident, as backward can read other tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memcfg.graph._cost import nominal_seconds_of
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from memcfg.graph._graph import Graph, Op

__all__ = ["backward_readers", "changed", "spare_activations"]

# Results that no convolution or matrix product reads then end with the forward phase:
# 187 MiB in VGG-16 and 139 MiB in Inception v3 at batch 8. A bit mask would add bytes.
_RECTIFIERS = ("relu", "relu6")  # gradients depend only on the range y lies in


def spare_activations(graph: Graph) -> Graph:
    """Let gradients of ReLUs read other tensors than the ReLU's result.

    If the gradient arrives through max pooling, it is masked by the maxima before it is
    scattered, because other elements have no gradient; a term that is added from a
    concatenation is masked separately. If a batch normalization precedes the ReLU, its
    gradient op applies the mask and recomputes the result from its input.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, in which backward reads fewer tensors of the forward phase.
    """
    for step in (_masked_before_pooling, _masked_in_normalizations):
        graph = step(graph)
    return graph


def _masks(graph: Graph) -> list[tuple[int, str]]:
    """Return the index of each gradient of a ReLU, and the ReLU's op type."""
    kinds = []
    for index, op in enumerate(graph.ops):
        kind = op.type.removesuffix("_gradient")
        if kind in _RECTIFIERS and kind != op.type and op.phase == "backward":
            kinds.append((index, kind))
    return kinds


def _masked_in_normalizations(graph: Graph) -> Graph:
    kept = {*graph.keep, *graph.losses}
    gone: set[int] = set()  # indices of dropped ops
    made: dict[int, Op] = {}  # index of a normalization's gradient -> its replacement
    for index, kind in _masks(graph):
        op = graph.ops[index]
        if (match := _normalization(graph, op, kind, kept)) is not None:
            reader, beta = match
            gone.add(index)
            made[reader] = _masked_by_x(graph, op, kind, graph.ops[reader], beta)
    if not gone:
        return graph
    dropped = {graph.ops[index].outputs[0] for index in gone}
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in dropped]
    ops = [made.get(i, op) for i, op in enumerate(graph.ops) if i not in gone]
    return graph.restricted(left, ops)


def _masked_before_pooling(graph: Graph) -> Graph:
    for name in [graph.ops[index].name for index, _ in _masks(graph)]:
        places = {op.name: index for index, op in enumerate(graph.ops)}
        mask = graph.ops[places[name]]
        if (terms := _terms(graph, mask)) is not None:
            graph = _with_masked_terms(graph, mask, *terms)
    return graph


def _maker(graph: Graph, tensor: int) -> Op | None:
    """Return the op that produces a tensor, or None."""
    index = graph.producer[tensor]
    return None if index is None else graph.ops[index]


def backward_readers(graph: Graph, tensor: int) -> list[int]:
    """Return the indices of ops that read a tensor after the forward phase."""
    return [i for i in graph.consumers[tensor] if graph.ops[i].phase != "forward"]


def _terms(graph: Graph, mask: Op) -> tuple[list[int], list[int]] | None:
    """Return the terms of the gradient that `mask` masks, or None.

    The terms are pooling gradients (op indices) and at most one output of a split (a
    tensor id), none with other readers. The maxima to keep must take no more bytes than
    the ReLU's result that is freed.
    """
    y, dy = mask.inputs
    kept = {*graph.keep, *graph.losses}
    pooled: list[int] = []
    others: list[int] = []
    waiting = [dy]
    while waiting:
        tensor = waiting.pop()
        maker = graph.producer[tensor]
        if maker is None or len(graph.consumers[tensor]) != 1 or tensor in kept:
            return None
        kind = graph.ops[maker].type
        if kind == "add" and len(set(graph.ops[maker].inputs)) > 1:
            waiting += graph.ops[maker].inputs
        elif kind == "max_pool2d_gradient" and _pooling(graph, maker).inputs == (y,):
            pooled.append(maker)
        elif kind == "split":
            others.append(tensor)
        else:
            return None
    alone = not others and len(backward_readers(graph, y)) == 1
    freed = graph.tensors[y].nbytes if alone else 0
    maxima = {_pooling(graph, maker).outputs[0] for maker in pooled}
    taken = sum(
        graph.tensors[tensor].nbytes
        for tensor in maxima
        if not backward_readers(graph, tensor)
    )
    return None if not pooled or len(others) > 1 or taken > freed else (pooled, others)


def _pooling(graph: Graph, unpooling: int) -> Op:
    """Return the max_pool2d whose argmax a gradient reads, or else the gradient op."""
    maker = _maker(graph, graph.ops[unpooling].inputs[0])
    source = graph.ops[unpooling] if maker is None else maker
    return source if source.type == "max_pool2d" else graph.ops[unpooling]


def _with_masked_terms(
    graph: Graph, mask: Op, pooled: Sequence[int], others: Sequence[int]
) -> Graph:
    """Mask each term where it is produced, and drop the mask of their sum."""
    y, dy = mask.inputs
    (dz,) = mask.outputs
    tensors, ops = list(graph.tensors), dict(enumerate(graph.ops))
    before: dict[int, list[Op]] = {}
    after: dict[int, list[Op]] = {}

    def masked(of: int, gradient: int) -> tuple[int, Op]:
        """Append a tensor and an op that mask `gradient` by the ReLU result `of`."""
        name = f"{mask.name}/term{len(tensors)}"
        like = tensors[gradient]
        tensors.append(replace(like, name=name))
        longer = replace(graph, tensors=tuple(tensors))
        made = len(tensors) - 1
        op = changed(
            longer, replace(mask, name=name), mask.type, (of, gradient), (made,)
        )
        return made, op

    renamed: dict[int, int] = {}
    for place in pooled:
        op = ops[place]
        index, gradient = op.inputs
        maxima = _pooling(graph, place).outputs[0]
        made, extra = masked(maxima, gradient)
        before.setdefault(place, []).append(extra)
        ops[place] = replace(
            op,
            inputs=(index, made),
            in_place=tuple((made if i == gradient else i, o) for i, o in op.in_place),
        )
    for gradient in others:
        renamed[gradient], extra = masked(y, gradient)
        maker = graph.producer[gradient]
        assert maker is not None
        after.setdefault(maker, []).append(extra)
    last = graph.producer[dy]
    assert last is not None
    for place, op in ops.items():
        if place == last or renamed.keys() & set(op.inputs):
            outputs = tuple(dz if t == dy else t for t in op.outputs)
            inputs = tuple(renamed.get(t, t) for t in op.inputs)
            ops[place] = replace(
                op,
                inputs=inputs,
                outputs=outputs,
                in_place=tuple(
                    (renamed.get(i, i), dz if o == dy else o) for i, o in op.in_place
                ),
            )
    gone = graph.producer[dz]
    order = [
        each
        for place, op in ops.items()
        if place != gone
        for each in (*before.get(place, ()), op, *after.get(place, ()))
    ]
    left = [tensor for tensor in range(len(tensors)) if tensor != dy]
    return replace(graph, tensors=tuple(tensors)).restricted(left, order)


def _normalization(
    graph: Graph, mask: Op, kind: str, kept: Collection[int]
) -> tuple[int, int] | None:
    """Return the normalization's gradient op that alone reads a mask, and its beta.

    None if there is no such op, or the normalization does not precede the ReLU.
    """
    (dz,) = mask.outputs
    readers = graph.consumers[dz]
    if len(readers) != 1 or dz in kept:
        return None
    reader = graph.ops[readers[0]]
    if reader.type != "batch_normalization_gradient" or reader.inputs.count(dz) != 1:
        return None
    rectifier = _maker(graph, mask.inputs[0])
    if rectifier is None or rectifier.type != kind:
        return None
    forward = _maker(graph, rectifier.inputs[0])
    if forward is None or forward.type != "batch_normalization":
        return None
    x, _, gamma, *moments = reader.inputs
    beta = forward.inputs[2]
    same = forward.inputs == (x, gamma, beta, *moments)
    agrees = same and forward.attributes == reader.attributes
    return (readers[0], beta) if agrees else None


def _masked_by_x(graph: Graph, mask: Op, kind: str, reader: Op, beta: int) -> Op:
    """Return the fused gradient of the batch normalization and the ReLU."""
    x, _, gamma, mean, variance = reader.inputs
    inputs = (x, mask.inputs[1], gamma, beta, mean, variance)
    wanted = f"batch_normalization_{kind}_gradient"
    # Rounding to bfloat16 can give 6, where the gradient is 0; it never gives 0.
    rounds = kind == "relu6" and graph.tensors[mask.inputs[0]].dtype == "bfloat16"
    more = {"rounds": True} if rounds else {}
    return changed(graph, reader, wanted, inputs, reader.outputs, more)


def changed(
    graph: Graph,
    op: Op,
    kind: str,
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    more: Mapping[str, Any] | None = None,
) -> Op:
    """Return an op with another type, operands and attributes, and its nominal time."""
    type_, attributes = op_type(kind), {**op.attributes, **(more or {})}
    pairs = ((inputs[i], outputs[o]) for i, o in type_.in_place)
    sizes = [tensor.nbytes for tensor in graph.tensors]
    return replace(
        op,
        type=kind,
        inputs=inputs,
        outputs=outputs,
        seconds=nominal_seconds_of(graph, type_, inputs, outputs, attributes),
        in_place=tuple(pair for pair in pairs if sizes[pair[0]] == sizes[pair[1]]),
        attributes=attributes,
    )
