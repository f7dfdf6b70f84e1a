"""The ops that have a counterpart in ONNX, and the export of a graph of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from memcfg.errors import GraphError
from memcfg.onnx._emitter import Emitter
from memcfg.onnx.nodes import _movement_nodes as movement
from memcfg.onnx.nodes import _pooling_nodes as pooling
from memcfg.onnx.nodes import _product_nodes as products
from memcfg.onnx.nodes import _reduction_nodes as reductions
from memcfg.onnx.nodes._element_nodes import elementwise
from memcfg.onnx.nodes._integer_nodes import INTEGERS, integers
from memcfg.onnx.nodes._recurrent_nodes import recurrent
from memcfg.ops import op_type

if TYPE_CHECKING:
    from memcfg.onnx._traced_graph import TracedOp, Traces

__all__ = ["RULES", "emit", "exported_by"]

Rule: TypeAlias = Callable[[Emitter, "TracedOp"], None]

RULES: Mapping[str, Rule] = {
    "argmax": reductions.argmax,
    "average_pool2d": pooling.pool,
    "batch_moments": reductions.batch_moments,
    "batch_normalization": reductions.batch_normalization,
    "batch_normalization_inference": reductions.batch_normalization,
    "bias": products.bias,
    "broadcast_to": movement.broadcast,
    "cast": movement.cast,
    "concatenate": movement.concatenate,
    "constant": movement.constant,
    "conv2d": products.convolution,
    "conv2d_gradient_input": products.transposed_convolution,
    "conv3d": products.convolution,
    "conv3d_gradient_input": products.transposed_convolution,
    "dense": products.dense,
    "determinant": reductions.determinant,
    "fill": movement.fill,
    "flatten": movement.reshape,
    "fourier": reductions.fourier,
    "frames": movement.frames,
    "gather": reductions.gather,
    "global_average_pool2d": pooling.global_average,
    "gru": recurrent,
    "interpolate": pooling.interpolate,
    "layer_normalization": reductions.layer_normalization,
    "log_softmax": reductions.softmax,
    "lstm": recurrent,
    "matmul": products.matmul,
    "max_pool2d": pooling.pool,
    "max_pool2d_gradient": pooling.unpool,
    "max_pool2d_inference": pooling.pool,
    "one_hot": reductions.one_hot,
    "order": reductions.order,
    "pad": movement.pad,
    "put_along": reductions.put_along,
    "reduce_max": reductions.reduction,
    "reduce_mean": reductions.reduction,
    "reduce_sum": reductions.reduction,
    "reshape": movement.reshape,
    "reverse": movement.reverse,
    "scaled_dot_product_attention": products.attention,
    "scatter_add": reductions.scatter_add,
    "simple_rnn": recurrent,
    "slice": movement.slice_of,
    "softmax": reductions.softmax,
    "split": movement.split,
    "take_along": reductions.take_along,
    "transpose": movement.transpose,
    "triangle": movement.triangle,
    **dict.fromkeys(INTEGERS, integers),
}
_WHY = {  # of ops without a rule
    "dropout": "draws random numbers",
    "random_uniform": "draws random numbers",
}


def exported_by(kind: str) -> Rule | None:
    """Return the function that exports an op type, or None."""
    rule = RULES.get(kind)
    if rule is None and op_type(kind).formula is not None:
        return elementwise
    return rule


def emit(traces: Traces, read: Callable[[str], Any]) -> Emitter:
    """Make the ONNX nodes of an inference graph.

    Parameters
    ----------
    traces : Traces
        The graph.
    read : callable
        ``read(name)`` returns the array of a parameter; it is called when the file is
        written, for one parameter at a time.

    Returns
    -------
    Emitter
        The nodes and arrays.

    Raises
    ------
    GraphError
        If an op has no counterpart, or depends on the batch in a way that ONNX cannot
        be told. The message names the op and its layer.
    """
    emitter = Emitter(traces, read)
    for index in traces.needed:
        op = traces.op(index)
        emitter.begin(op)
        if emitter.fold(op):
            continue
        rule = exported_by(op.type)
        what = f"op {op.name!r} ({op.type}) of layer {op.layer!r}"
        if rule is None:
            why = _WHY.get(op.type, "has no counterpart in ONNX")
            raise GraphError(f"{what} {why}: it cannot be exported")
        try:
            rule(emitter, op)
        except GraphError as error:
            raise GraphError(f"{what} {error}: it cannot be exported") from None
    _name_results(emitter)
    _prune(emitter)
    return emitter


def _name_results(emitter: Emitter) -> None:
    """Give results their names."""
    taken: dict[str, str] = dict.fromkeys(emitter.traces.inputs.values(), "")
    pairs = []
    for tensor, wanted in emitter.traces.outputs:
        name = emitter.full(tensor)
        is_free = name not in taken and name not in emitter.arrays
        if not is_free or any(name in _inner_names(node) for node in emitter.nodes):
            name = emitter.one("Identity", name)
        taken[name] = wanted
        pairs.append((name, wanted))
    for name, wanted in pairs:
        if name == wanted:
            continue
        for node in emitter.nodes:
            node.inputs = [wanted if each == name else each for each in node.inputs]
            node.outputs = [wanted if each == name else each for each in node.outputs]


def _inner_names(node: Any) -> set[str]:
    """Return the names that the body of a node reads."""
    body = node.attributes.get("body")
    return set() if body is None else {x for each in body.nodes for x in each.inputs}


def _prune(emitter: Emitter) -> None:
    """Drop nodes and arrays that no result depends on."""
    needed = {name for _, name in emitter.traces.outputs}
    kept = []
    for node in reversed(emitter.nodes):
        if needed.intersection(node.outputs):
            kept.append(node)
            needed |= {*node.inputs, *_inner_names(node)}
    emitter.nodes = kept[::-1]
    emitter.arrays = {k: v for k, v in emitter.arrays.items() if k in needed}
