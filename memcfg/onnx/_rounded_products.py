"""Products of int8 in ONNX's QDQ form: they read what was rounded to 8 bits.

Weights have a scale for each channel of the result and no zero point; those that were
integers of 8 or 4 bits before keep these. What a product reads has one scale and a zero
point, from the smallest and largest number that it had for calibration data. A runtime
joins the nodes to products of integers; one that does not computes the same numbers in
float32. Jacob et al., "Quantization and training of neural networks for efficient
integer-arithmetic-only inference", CVPR 2018.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.onnx._emitter import Node, Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.onnx._emitter import Array, Emitter

__all__ = ["quantize", "quantized_inputs"]

_CHANNEL = {"Conv": 0, "Gemm": 1, "MatMul": 1}  # axis of the weight, by node
_LEAST = np.finfo(np.float32).tiny


def _products(emitter: Emitter) -> list[Node]:
    """Return the nodes that multiply something by stored weights of float32."""
    return [
        node
        for node in emitter.nodes
        if node.type in _CHANNEL
        and node.inputs[1] in emitter.arrays
        and node.inputs[0] not in emitter.arrays
        and node.inputs[0] in emitter.tensor_of
        and len(emitter.arrays[node.inputs[1]].shape) >= 2
    ]


def quantized_inputs(emitter: Emitter) -> dict[str, int]:
    """Return what products read, by name, with the ids of the tensors."""
    names = dict.fromkeys(node.inputs[0] for node in _products(emitter))
    return {name: emitter.tensor_of[name] for name in names}


def join_normalizations(emitter: Emitter) -> None:
    """Join batch normalisations to the convolutions before them, as one product."""
    readers: dict[str, int] = {}
    for node in emitter.nodes:
        for name in node.inputs:
            readers[name] = readers.get(name, 0) + 1
    results = {name for _, name in emitter.traces.outputs}
    makers = {node.outputs[0]: node for node in emitter.nodes if node.type == "Conv"}
    kept = []
    for node in emitter.nodes:
        before = makers.get(node.inputs[0]) if node.inputs else None
        if (
            node.type == "BatchNormalization"
            and before is not None
            and readers[node.inputs[0]] == 1
            and node.inputs[0] not in results
            and all(each in emitter.arrays for each in before.inputs[1:])
            and all(each in emitter.arrays for each in node.inputs[1:])
        ):
            _join(emitter, before, node)
            makers[before.outputs[0]] = before
        else:
            kept.append(node)
    emitter.nodes = kept


def _join(emitter: Emitter, product: Node, normalization: Node) -> None:
    kernel, *bias = (emitter.arrays[each] for each in product.inputs[1:])
    vectors = [emitter.arrays[each] for each in normalization.inputs[1:]]
    epsilon = normalization.attributes["epsilon"]

    def factor() -> Any:
        gamma, _, _, variance = (each.read() for each in vectors)
        return gamma / np.sqrt(variance + epsilon)

    def scaled() -> Any:
        return kernel.read() * factor().reshape(-1, *(1,) * (len(kernel.shape) - 1))

    def shifted() -> Any:
        _, beta, mean, _ = (each.read() for each in vectors)
        before = bias[0].read() if bias else 0
        return beta + (before - mean) * factor()

    arrays = [
        replace(kernel, read=scaled),
        replace(vectors[1], read=shifted),
    ]
    product.inputs[1:] = [emitter.store(each) for each in arrays]
    product.outputs = normalization.outputs


def quantize(
    emitter: Emitter,
    ranges: Mapping[int, tuple[float, float]],
    *,
    reduce_range: bool = False,
) -> int:
    """Have products read int8; return the number of them.

    Parameters
    ----------
    emitter : Emitter
        The nodes, which are changed.
    ranges : mapping of int to (float, float)
        The smallest and the largest number of each tensor of `quantized_inputs`.
    reduce_range : bool, default False
        Whether weights are integers from -64 to 64, not to 127. The sum of two products
        by numbers of 0 to 255 is then one of 16 bits, in which processors without VNNI
        add them.

    Returns
    -------
    int
        How many products were changed.
    """
    join_normalizations(emitter)
    rounded: dict[str, tuple[str, float]] = {}
    weights: dict[str, tuple[str, Array]] = {}
    nodes: list[Node] = []
    products = {id(node) for node in _products(emitter)}
    for node in emitter.nodes:
        if id(node) in products:
            x, weight, *bias = node.inputs
            if x not in rounded:
                rounded[x] = _of_input(emitter, nodes, x, ranges)
            name, scale = rounded[x]
            if weight not in weights:
                largest = 64 if reduce_range else 127
                weights[weight] = _of_weight(emitter, nodes, node, weight, largest)
            kernel, scales = weights[weight]
            node.inputs = [name, kernel]
            if bias:
                node.inputs.append(_of_bias(emitter, nodes, bias[0], scale * scales))
        nodes.append(node)
    emitter.nodes = nodes
    read = {name for node in nodes for name in node.inputs}
    emitter.arrays = {k: v for k, v in emitter.arrays.items() if k in read}
    return len(products)


def _append(
    emitter: Emitter, nodes: list[Node], kind: str, inputs: list[str], **more: object
) -> str:
    name = emitter.unique(f"{inputs[0]}/{kind[:-6].lower()}")
    nodes.append(Node(kind, inputs, [name], dict(more), name))
    return name


def _of_input(
    emitter: Emitter,
    nodes: list[Node],
    x: str,
    ranges: Mapping[int, tuple[float, float]],
) -> tuple[str, float]:
    low, high = ranges[emitter.tensor_of[x]]
    low, high = min(low, 0.0), max(high, 0.0)  # 0 is exact
    scale = float(np.float32(max((high - low) / 255, float(_LEAST))))
    zero = int(np.clip(round(-128 - low / scale), -128, 127))
    parameters = [emitter.constant(scale), emitter.constant(zero, "int8")]
    rounded = _append(emitter, nodes, "QuantizeLinear", [x, *parameters])
    return _append(emitter, nodes, "DequantizeLinear", [rounded, *parameters]), scale


def _of_weight(
    emitter: Emitter, nodes: list[Node], node: Node, weight: str, largest: int
) -> tuple[str, Array]:
    stored = emitter.arrays[weight]
    axis = _CHANNEL[node.type] % len(stored.shape)
    others = tuple(i for i in range(len(stored.shape)) if i != axis)
    value = stored.read()
    most = np.abs(value).max(axis=others)
    along = [-1 if i == axis else 1 for i in range(len(stored.shape))]
    if _on_grid(value, (most / 7).reshape(along)):
        largest = 7
    scales = np.maximum(most / largest, _LEAST).astype(np.float32)
    wide = scales.reshape(along)

    def read() -> Any:
        return np.clip(np.rint(stored.read() / wide), -largest, largest).astype(np.int8)

    name = emitter.store(Stored(stored.shape, "int8", read, f"{stored.label}/int8"))
    parameters = [emitter.constant(scales), emitter.constant(0 * scales, "int8")]
    inputs = [name, *parameters]
    return _append(emitter, nodes, "DequantizeLinear", inputs, axis=axis), scales


def _on_grid(value: Array, steps: Array) -> bool:
    """Return whether all numbers are integers times steps, as weights of 4 bits are."""
    quotients = value / np.maximum(steps, _LEAST)
    return bool(np.abs(quotients - np.rint(quotients)).max(initial=0) < 1e-3)


def _of_bias(emitter: Emitter, nodes: list[Node], bias: str, scales: Array) -> str:
    stored = emitter.arrays.get(bias)
    if stored is None:
        return bias
    scales = scales.astype(np.float32)

    def read() -> Any:
        whole = np.rint(stored.read().astype(np.float64) / scales)
        return np.clip(whole, -(2**31), 2**31 - 1).astype(np.int32)

    name = emitter.store(Stored(stored.shape, "int32", read, f"{stored.label}/int32"))
    zeros = emitter.constant(0 * scales, "int32")
    inputs = [name, emitter.constant(scales), zeros]
    return _append(emitter, nodes, "DequantizeLinear", inputs, axis=0)
