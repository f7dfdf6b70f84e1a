"""Fusion of ops: composites by pattern matching, and chains of element-wise ops."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from memcfg.graph._cost import nominal_seconds_of
from memcfg.ops import Value, op_type, op_types
from memcfg.ops._formula import MAX_NODES
from memcfg.ops.chain import Link, join_elementwise

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.graph._graph import Graph, Op
    from memcfg.ops import Composite, OpType

__all__ = ["fuse_ops", "fuse_products"]

_BLOCK_BYTES = 4 << 20  # `kBlockBytes` of the kernels: max. bytes of a block of a sum
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum")


def fuse_ops(graph: Graph) -> Graph:
    """Replace ops that match a composite op type by that op.

    Ops are fused if they belong to one phase and no other op reads the inner tensors.
    Larger composites are matched first; then consecutive element-wise ops become a
    chain. A fused op takes the position of its last part. It has the name of its main
    part, a chain that of its last op.

    Parameters
    ----------
    graph : Graph
        A step.

    Returns
    -------
    Graph
        The same step with fewer ops and tensors; the remaining ones keep their names.
    """
    kept = {*graph.keep, *graph.losses}
    fused, taken = _composed(graph, kept, lambda kind, made: not made.for_inference)
    _join_chains(graph, kept, fused, taken)
    return _rebuild(graph, fused, taken)


def fuse_products(graph: Graph, has: Callable[[str], bool]) -> Graph:
    """Fuse products with the ops that follow them, in programs for inference.

    A convolution absorbs a bias, a batch normalization with given statistics, a sum
    with another array and a ReLU. The normalization's factors are multiplied into the
    kernel when it is packed, and the sum may overwrite the array that is added. The
    fused ReLU maps -inf to NaN. As in `fuse_ops`, no other op may read the inner
    tensors. Gamma and variance must be state, so that a kernel is packed only once.

    A sum with a convolution of more than 4 MiB is computed in blocks of images. It is
    not fused if no divisor of the batch gives blocks of 1 to 4 MiB. Programs with
    bfloat16 tensors are not changed, since scaled kernels would be rounded again.

    Parameters
    ----------
    graph : Graph
        A program for inference, before `fuse_ops`.
    has : callable
        ``has(op_type)`` says whether the device has a kernel of that type.

    Returns
    -------
    Graph
        The same program with fewer ops and tensors.
    """

    def allows(kind: OpType, made: Composite) -> bool:
        return made.for_inference and has(kind.name)

    if any(tensor.dtype == "bfloat16" for tensor in graph.tensors):
        return graph
    kept = {*graph.keep, *graph.losses}
    state = set(graph.persistent)

    def scales_by_state(match: _Match) -> bool:
        """Return whether gamma and variance of normalizations are state."""
        return all(
            match.tensors[part.inputs[place]] in state
            for part in match.composite.parts
            if part.type == "batch_normalization_inference"
            for place in (1, 4)
        )

    def suits(match: _Match) -> bool:
        return scales_by_state(match) and _may_add(match)

    return _rebuild(graph, *_composed(graph, kept, allows, suits))


def _may_add(match: _Match) -> bool:
    """Return whether a fused sum, if any, can be computed in blocks that fit a cache.

    Sums of other ops than convolutions need no blocks.
    """
    graph, parts = match.graph, match.composite.parts
    if all(part.type != "add" for part in parts):
        return True
    made = graph.tensors[match.outputs[0]]
    if made.nbytes <= _BLOCK_BYTES or parts[match.composite.main].type != "conv2d":
        return True
    assert made.shape is not None
    images = made.shape[0]
    return any(
        images % count == 0
        and _BLOCK_BYTES <= 4 * count * (made.nbytes // images) <= 4 * _BLOCK_BYTES
        for count in range(1, images + 1)
    )


def _composed(
    graph: Graph,
    kept: set[int],
    allows: Callable[[OpType, Composite], bool],
    suits: Callable[[_Match], bool] = lambda _: True,
) -> tuple[dict[int, Op], set[int]]:
    """Match composites: map the index of each last part to the fused op.

    Also return the indices of all ops that are parts.
    """
    fused: dict[int, Op] = {}
    taken: set[int] = set()
    for kind, composite in _composites():
        if not allows(kind, composite):
            continue
        last = composite.parts[-1].type
        for anchor, op in enumerate(graph.ops):
            if op.type != last or anchor in taken:
                continue
            matches = [
                match
                for match in _matches(graph, composite, anchor)
                if taken.isdisjoint(match.ops)
                and match.is_closed(kept)
                and suits(match)
            ]
            # The sum of two products matches twice. The inputs of the fused product
            # stay live until the sum, so take the one with the smaller input.
            if matches:
                match = min(
                    matches, key=lambda each: graph.tensors[each.inputs[0]].nbytes
                )
                taken.update(match.ops)
                fused[anchor] = match.op(kind)
    return fused, taken


def _composites() -> list[tuple[OpType, Composite]]:
    """Return the composite op types, those of the most parts first."""
    rows = [(kind, kind.composite) for kind in op_types() if kind.composite is not None]
    return sorted(rows, key=lambda row: len(row[1].parts), reverse=True)


class _Match:
    """Assignment of a graph's ops to a composite's parts, and tensors to its values."""

    def __init__(self, graph: Graph, composite: Composite) -> None:
        self.graph = graph
        self.composite = composite
        self.places: dict[int, int] = {}  # part -> index of the op
        self.tensors: dict[Value, int] = {}

    def copy(self) -> _Match:
        """Return an independent copy."""
        made = _Match(self.graph, self.composite)
        made.places, made.tensors = dict(self.places), dict(self.tensors)
        return made

    @property
    def ops(self) -> list[int]:
        """The indices of the ops, in the order of the parts."""
        return [self.places[part] for part in range(len(self.composite.parts))]

    @property
    def inputs(self) -> tuple[int, ...]:
        """The input tensors of the composite."""
        places = sorted([place for part, place in self.tensors if part < 0])
        return tuple([self.tensors[Value(-1, place)] for place in places])

    @property
    def outputs(self) -> tuple[int, ...]:
        """The output tensors of the composite."""
        ops, graph = self.ops, self.graph
        return tuple(
            graph.ops[ops[part]].outputs[place]
            for part, place in self.composite.outputs
        )

    def is_closed(self, kept: set[int]) -> bool:
        """Return whether the match can be fused without changing the step.

        All ops must be of one phase, and no other op may read an inner tensor, or an
        output before the last part.
        """
        graph, ops, outputs = self.graph, self.ops, self.outputs
        if len({graph.ops[index].phase for index in ops}) > 1:
            return False
        if any(graph.producer[tensor] in ops for tensor in self.inputs):
            return False
        for index in ops:
            for tensor in graph.ops[index].outputs:
                others = set(graph.consumers[tensor]).difference(ops)
                if tensor in outputs:
                    if others and min(others) < ops[-1]:
                        return False
                elif others or tensor in kept:
                    return False
        return True

    def op(self, kind: OpType) -> Op:
        """Return the fused op of type `kind`."""
        graph, inputs, outputs = self.graph, self.inputs, self.outputs
        made = self.composite
        main = graph.ops[self.ops[self.composite.main]]
        attributes = {
            name: value
            for index in self.ops
            for name, value in graph.ops[index].attributes.items()
        }
        return replace(
            main,
            type=kind.name,
            inputs=inputs,
            outputs=outputs,
            attributes=attributes,
            seconds=nominal_seconds_of(graph, kind, inputs, outputs, attributes),
            replayable=all(graph.ops[index].replayable for index in self.ops),
            in_place=tuple(
                (inputs[i], outputs[o])
                for i, o in kind.in_place
                # a product reads its operands until its result is complete
                if not made.for_inference or inputs.count(inputs[i]) == 1
            ),
        )


def _matches(graph: Graph, composite: Composite, anchor: int) -> Iterator[_Match]:
    """Yield the matches of a composite whose last part is an op."""
    yield from _with_part(_Match(graph, composite), len(composite.parts) - 1, anchor)


def _with_part(match: _Match, part: int, index: int) -> Iterator[_Match]:
    """Yield the extensions of a match in which a part is an op."""
    if part in match.places:
        if match.places[part] == index:
            yield match
        return
    wanted, op = match.composite.parts[part], match.graph.ops[index]
    if (
        op.type != wanted.type
        or len(op.inputs) != len(wanted.inputs)
        or index in match.places.values()
        or (op.attributes and op_type(op.type).formula is not None)
    ):
        return
    begun = match.copy()
    begun.places[part] = index
    orders = [op.inputs]
    if op.type in _COMMUTATIVE:
        orders.append(op.inputs[::-1])
    for order in orders:
        yield from _with_inputs(begun, wanted.inputs, order)


def _with_inputs(
    match: _Match, values: Sequence[Value], tensors: Sequence[int]
) -> Iterator[_Match]:
    """Yield the extensions of a match in which values are the given tensors."""
    if not values:
        yield match
        return
    for extended in _with_value(match, values[0], tensors[0]):
        yield from _with_inputs(extended, values[1:], tensors[1:])


def _with_value(match: _Match, value: Value, tensor: int) -> Iterator[_Match]:
    """Yield the extensions of a match in which a value is a tensor."""
    if value in match.tensors:
        if match.tensors[value] == tensor:
            yield match
        return
    begun = match.copy()
    begun.tensors[value] = tensor
    if value.part < 0:
        yield begun
        return
    maker = match.graph.producer[tensor]
    if maker is not None:
        outputs = match.graph.ops[maker].outputs
        if value.place < len(outputs) and outputs[value.place] == tensor:
            yield from _with_part(begun, value.part, maker)


def _join_chains(
    graph: Graph, kept: set[int], fused: dict[int, Op], taken: set[int]
) -> None:
    """Add chains of two or more consecutive element-wise ops to `fused` and `taken`."""
    for index in reversed(range(len(graph.ops))):
        if index in taken or not _is_link(graph.ops[index]):
            continue
        members = [index]  # consecutive indices; grows at the front
        while (
            members[0] > 0
            and len(members) < MAX_NODES  # an op has at least one
            and _may_join(graph, members[0] - 1, members, kept, taken)
        ):
            members.insert(0, members[0] - 1)
        made, members = _longest_chain(graph, members)
        if made is not None:
            fused[index] = made
            taken.update(members)


def _is_link(op: Op) -> bool:
    """Return whether an op is element-wise with one output, and not an update."""
    formula = op_type(op.type).formula
    return formula is not None and op.phase != "update" and len(op.outputs) == 1


def _may_join(
    graph: Graph, index: int, members: Sequence[int], kept: set[int], taken: set[int]
) -> bool:
    """Return whether an op can be joined at the front of a chain.

    It must be a link of the same phase and shape whose output only the chain reads.
    """
    op, last = graph.ops[index], graph.ops[members[-1]]
    if index in taken or not _is_link(op) or op.phase != last.phase:
        return False
    (made,) = op.outputs
    shape = graph.tensors[last.outputs[0]].shape
    return (
        made not in kept
        and bool(shape)
        and graph.tensors[made].shape == shape
        and bool(graph.consumers[made])
        and set(graph.consumers[made]).issubset(members)
    )


def _longest_chain(graph: Graph, members: list[int]) -> tuple[Op | None, list[int]]:
    """Return the last ops that one kernel can compute as one op, and which they are.

    The op is None if these are fewer than two. Bisects, since a chain takes time to
    write, and the nodes of a kernel grow with its ops.
    """
    best: Op | None = None
    count, fits, too_many = len(members), 1, len(members) + 1
    while too_many - fits > 1:
        made = _chain(graph, members[-count:])
        if made is None:
            too_many = count
        else:
            best, fits = made, count
        count = (fits + too_many) // 2
    return best, members[-fits:]


def _chain(graph: Graph, members: Sequence[int]) -> Op | None:
    """Return the ops fused to one chain, or None if they are too many."""
    # Tensor -> position among the chain's inputs, or -1 - k for the output of link k.
    places: dict[int, int] = {}
    inputs: list[int] = []
    links = []
    for number, index in enumerate(members):
        op = graph.ops[index]
        for tensor in op.inputs:
            if tensor not in places:
                places[tensor] = len(inputs)
                inputs.append(tensor)
        reads = tuple(places[tensor] for tensor in op.inputs)
        links.append(Link(op.type, op.attributes, reads))
        places[op.outputs[0]] = -1 - number
    scalars = [not graph.tensors[tensor].shape for tensor in inputs]
    text = join_elementwise(links, scalars)
    if text is None:
        return None
    last = graph.ops[members[-1]]
    attributes = {"expression": text}
    kind = op_type("chain")
    return replace(
        last,
        type="chain",
        inputs=tuple(inputs),
        attributes=attributes,
        seconds=nominal_seconds_of(graph, kind, inputs, last.outputs, attributes),
        in_place=tuple(
            (tensor, last.outputs[0])
            for tensor, single in zip(inputs, scalars, strict=True)
            if not single
        ),
    )


def _rebuild(graph: Graph, fused: Mapping[int, Op], taken: set[int]) -> Graph:
    """Replace the ops in `taken` by the fused ones, and drop unused tensors."""
    if not fused:
        return graph
    ops = [
        fused.get(index, op)
        for index, op in enumerate(graph.ops)
        if index in fused or index not in taken
    ]
    used = {tensor for op in ops for tensor in (*op.inputs, *op.outputs)}
    left = [
        tensor
        for tensor, maker in enumerate(graph.producer)
        if maker is None or tensor in used
    ]
    return graph.restricted(left, ops)
