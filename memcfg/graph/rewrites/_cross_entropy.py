"""Fusion of dense products with softmax cross-entropies, without whole logits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from memcfg.graph._cost import nominal_seconds_of
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph._graph import Graph, Op

__all__ = ["fuse_cross_entropy"]

# The op computes gradients in the forward phase, as Liger kernels do (Hsu et al. 2024).
# It assumes that the gradient of the loss is 1, so only plain means are fused.
_SCRATCH = 32 << 20  # bytes of a block of logits


def fuse_cross_entropy(graph: Graph) -> Graph:
    """Fuse dense layers with their cross-entropies, computing logits in blocks.

    The logits must come from a dense layer or a transposed embedding table, and only
    the mean of a sparse softmax cross-entropy may read them. Logits stay whole if a
    metric reads them, the loss is weighted or scaled, the layer is frozen, or they take
    no more memory than one block and, if that could be tiled otherwise, the gradient of
    the kernel. A product in bfloat16 is fused as well if its logits are cast to float32
    for the loss and their gradient is cast back.

    Parameters
    ----------
    graph : Graph
        A training step.

    Returns
    -------
    Graph
        The same step, with a ``dense_cross_entropy`` in the forward phase.
    """
    for name in [op.name for op in graph.ops if op.type in _FINDERS]:
        op = next(op for op in graph.ops if op.name == name)
        layer = _FINDERS[op.type](graph, op)
        if layer is not None and _is_large(graph, layer):
            graph = _fused(graph, op, layer)
    return graph


class _Head(NamedTuple):
    """A layer and a loss that can be fused, with the operands of the fused op."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    transposed: bool  # whether the kernel is an embedding table
    narrow: bool  # whether the product is in bfloat16
    ops: frozenset[str]  # names of the replaced ops


class _Search:
    """Search for the ops around a loss; `gone` has the names of those matched."""

    def __init__(self, graph: Graph, loss: Op) -> None:
        self.graph = graph
        self.kept = {*graph.keep, *graph.losses}
        self.gone = [loss.name]

    def readers(self, tensor: int) -> list[Op]:
        """Return the ops that read a tensor and are not matched yet."""
        readers = (self.graph.ops[i] for i in self.graph.consumers[tensor])
        return [op for op in readers if op.name not in self.gone]

    def reader(self, tensor: int, kind: str) -> Op | None:
        """Match the only reader of a tensor if it has a type; return it or None."""
        readers = self.readers(tensor)
        if len(readers) != 1 or readers[0].type != kind or tensor in self.kept:
            return None
        self.gone.append(readers[0].name)
        return readers[0]

    def maker(self, tensor: int, *kinds: str) -> Op | None:
        """Match the producer of a tensor if it is of these types and has no reader.

        Readers that are matched already do not count. Return the producer or None.
        """
        index = self.graph.producer[tensor]
        if index is None or tensor in self.kept or self.readers(tensor):
            return None
        op = self.graph.ops[index]
        if op.type not in kinds:
            return None
        self.gone.append(op.name)
        return op

    def before(self, logits: int) -> tuple[int, list[Op]]:
        """Match reshapes and casts of the logits; return their source and the ops.

        The ops are in reverse order of execution.
        """
        between: list[Op] = []
        while (between_op := self.maker(logits, "reshape", "cast")) is not None:
            between.append(between_op)
            (logits,) = between_op.inputs
        return logits, between

    def after(self, gradient: int, between: Sequence[Op]) -> int | None:
        """Match the reverse of each op of `between`; return the resulting gradient."""
        for op in between:
            reverse = self.reader(gradient, op.type)
            if reverse is None or not self._is_reverse(reverse, op):
                return None
            (gradient,) = reverse.outputs
        return gradient

    def _is_reverse(self, op: Op, other: Op) -> bool:
        """Return whether an op restores the shape and dtype of another op's input."""
        tensors = self.graph.tensors
        made, given = tensors[op.outputs[0]], tensors[other.inputs[0]]
        return (made.shape, made.dtype) == (given.shape, given.dtype)

    def original(self, tensor: int) -> tuple[int, str | None]:
        """Return the source of a cast, or the tensor itself, and the tensor's dtype."""
        index, dtype = self.graph.producer[tensor], self.graph.tensors[tensor].dtype
        if index is not None and self.graph.ops[index].type == "cast":
            return self.graph.ops[index].inputs[0], dtype
        return tensor, dtype

    def layer(self, logits: int, between: Sequence[Op]) -> _Layer | None:
        """Match the layer that produces the logits; return it or None.

        It must be in float32, or in bfloat16 if `between` has one cast.
        """
        biases: tuple[int, ...] = ()
        if (biased := self.maker(logits, "bias")) is not None:
            logits, *_ = biased.inputs
            biases = biased.inputs[1:]
        made = self.maker(logits, "dense", "matmul", "dense_bias")
        if made is None:
            return None
        x, kernel, *others = made.inputs
        layer = _Layer(x, kernel, (*others, *biases), made.type == "matmul")
        rank = len(self.graph.tensors[kernel].shape or ())
        plain = rank == 2 and _transposes(made) == (False, layer.transposed)
        casts = sum(op.type == "cast" for op in between)
        dtypes = [self.graph.tensors[t].dtype for t in (x, kernel, *layer.biases)]
        wanted = ["float32" if casts == 0 else "bfloat16"] * 2
        wanted += ["float32"] * len(layer.biases)
        return layer if plain and casts < 2 and dtypes == wanted else None


class _Layer(NamedTuple):
    """Operands of a product and its biases."""

    x: int
    kernel: int
    biases: tuple[int, ...]
    transposed: bool


def _head_of_loss(graph: Graph, loss: Op) -> _Head | None:
    """Match the layer before a loss in a program without gradients."""
    search = _Search(graph, loss)
    logits, labels = loss.inputs
    logits, between = search.before(logits)
    layer = search.layer(logits, between)
    if layer is None or len(layer.biases) > 1:
        return None
    x, kernel, biases, transposed = layer
    inputs, gone = (x, labels, kernel, *biases), frozenset(search.gone)
    narrow = graph.tensors[x].dtype == "bfloat16"
    return _Head(inputs, loss.outputs, transposed, narrow, gone)


def _head(graph: Graph, loss: Op) -> _Head | None:
    """Match the layer before a loss and the gradients of both."""
    search = _Search(graph, loss)
    logits, labels = loss.inputs
    mean, probabilities = loss.outputs
    gradient = search.reader(probabilities, "softmax_cross_entropy_gradient")
    if gradient is None:
        return None
    logits, between = search.before(logits)
    dlogits = search.after(gradient.outputs[0], between)
    layer = search.layer(logits, between)
    if layer is None or len(layer.biases) > 1:
        return None
    if dlogits is None or dlogits in search.kept:
        return None
    x, kernel, biases, transposed = layer
    wanted: list[tuple[str, tuple[int, ...]]] = [
        ("matmul", (dlogits, kernel)),
        ("dense_gradient_kernel", (dlogits, x)),
    ]
    if not transposed:
        wanted = [
            ("dense_gradient_input", (kernel, dlogits)),
            ("dense_gradient_kernel", (x, dlogits)),
        ]
    wanted += [("bias_gradient", (dlogits,))] * len(biases)
    readers = search.readers(dlogits)
    by_type = {(op.type, _originals(search, op.inputs)): op for op in readers}
    keys = [(kind, _originals(search, inputs)) for kind, inputs in wanted]
    if by_type.keys() != set(keys) or len(readers) != len(wanted):
        return None
    if any(_transposes(op) != (False, False) for op in readers):
        return None
    search.gone += [op.name for op in readers]
    for tensor in by_type[keys[0]].inputs:  # the backward phase's cast of the kernel
        if tensor not in (dlogits, kernel):
            search.maker(tensor, "cast")
    return _Head(
        (x, labels, kernel, *biases),
        (mean, *(by_type[each].outputs[0] for each in keys)),
        transposed,
        graph.tensors[x].dtype == "bfloat16",
        frozenset(search.gone),
    )


def _originals(
    search: _Search, tensors: Sequence[int]
) -> tuple[tuple[int, str | None], ...]:
    """Return the operands of an op before casts, with their dtypes."""
    return tuple(map(search.original, tensors))


def _transposes(op: Op) -> tuple[bool, bool]:
    """Return whether an op transposes its first and its second operand."""
    first, second = (op.attributes.get(f"transpose_{which}") for which in "ab")
    return bool(first), bool(second)


def _is_large(graph: Graph, head: _Head) -> bool:
    """Return whether fusing saves more memory than it needs."""
    rows = graph.tensors[head.inputs[1]].nbytes // 4
    kernel = graph.tensors[head.inputs[2]]
    classes = (kernel.shape or (0, 0))[0 if head.transposed else 1]
    elements = rows * classes
    wide = kernel.nbytes * (1 + head.narrow)  # the kernel's gradient is in float32
    whole = 0 if head.transposed or len(head.outputs) == 1 else wide
    if head.narrow:  # logits and their gradient exist in both dtypes
        return 6 * elements > whole + _SCRATCH * 3 // 2
    return 4 * elements > whole + _SCRATCH


def _fused(graph: Graph, loss: Op, head: _Head) -> Graph:
    kind = op_type("dense_cross_entropy" + "_inference" * (len(head.outputs) == 1))
    attributes = {"transposed": head.transposed}
    made = replace(
        loss,
        type=kind.name,
        inputs=head.inputs,
        outputs=head.outputs,
        in_place=(),
        attributes=attributes,
        seconds=nominal_seconds_of(graph, kind, head.inputs, head.outputs, attributes),
    )
    ops = [
        made if op is loss else op
        for op in graph.ops
        if op is loss or op.name not in head.ops
    ]
    used = {tensor for op in ops for tensor in (*op.inputs, *op.outputs)}
    gone = {
        tensor
        for op in graph.ops
        if op.name in head.ops
        for tensor in op.outputs
        if tensor not in used
    }
    left = [tensor for tensor in range(len(graph.tensors)) if tensor not in gone]
    return graph.restricted(left, ops)


_FINDERS = {
    "softmax_cross_entropy": _head,
    "softmax_cross_entropy_inference": _head_of_loss,
}
