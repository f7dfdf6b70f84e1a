"""Nodes along an axis: reductions, softmax, order, and recurrent layers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from memcfg.nn import layers, ops
from memcfg.nn.exchange.imports._axis_views import (
    Known,
    UnsupportedError,
    View,
    arranged,
    in_order,
    last,
    natural_order,
    plain,
    reshaped,
)

if TYPE_CHECKING:
    from memcfg.nn.exchange.imports._imported_node import Node, Rule, Value

__all__ = ["RULES"]

Function: TypeAlias = Callable[..., Any]


def _reduction(function: Function, numpy: Function) -> Rule:
    def rule(node: Node) -> Value:
        value = node.value(0)
        rank, keep = len(value.shape), bool(node.get("keepdims", 1))
        given = node.setting("axes", 1)
        if given is None or given == ():
            if node.get("noop_with_empty_axes", 0):
                return value
            given = tuple(range(rank))
        axes = node.axes(given, rank)
        if isinstance(value, Known):
            return Known.of(numpy(value.array(), axis=tuple(axes), keepdims=keep))
        places = tuple(sorted(i for axis in axes for i in value.axes[axis]))
        if 0 in places:
            raise UnsupportedError("reduces the batch")
        x = function(value.x, axis=places) if places else value.x
        left = [i for i in range(len(value.lengths)) if i not in places]
        groups = tuple(
            () if axis in axes else tuple(left.index(i) for i in group)
            for axis, group in enumerate(value.axes)
            if keep or axis not in axes
        )
        return View(x, groups, value.batch)

    return rule


def _l1(x: Any, **axis: Any) -> Any:
    return ops.sum(ops.absolute(x), **axis)


def _l2(x: Any, **axis: Any) -> Any:
    return ops.sqrt(ops.sum(ops.square(x), **axis))


def _squares(x: Any, **axis: Any) -> Any:
    return ops.sum(ops.square(x), **axis)


def _log_sum(x: Any, **axis: Any) -> Any:
    return ops.log(ops.sum(x, **axis))


def _softmax(function: Function) -> Rule:
    def rule(node: Node) -> Value:
        view = node.view(0)
        shape, rank = view.shape, len(view.shape)
        old = node.opset < 13
        axis = node.axis(1 if old else -1, rank)
        if old and axis != rank - 1:  # over all axes from this one on
            view = reshaped(view, (*shape[:axis], prod(shape[axis:])))
        x, axes = last(view, axis)
        return reshaped(View(function(x), axes, view.batch), shape)

    return rule


def _extreme(function: Function, numpy: Function) -> Rule:
    def rule(node: Node) -> Value:
        value = node.value(0)
        rank = len(value.shape)
        axis, keep = node.axis(0, rank), bool(node.get("keepdims", 1))
        if node.get("select_last_index", 0):
            raise UnsupportedError("takes the last of equal elements")
        if isinstance(value, Known):
            made = numpy(value.array(), axis)
            return Known.of(np.expand_dims(made, axis) if keep else made)
        x, axes = last(value, axis)
        groups = [
            () if i == axis else group
            for i, group in enumerate(axes)
            if keep or i != axis
        ]
        return View(function(x, axis=-1), tuple(groups), value.batch)

    return rule


def _cumsum(node: Node) -> Value:
    value = node.value(0)
    axis = node.checked_axis(int(node.setting("axis", 1)), len(value.shape))
    back, exclusive = bool(node.get("reverse", 0)), bool(node.get("exclusive", 0))
    if isinstance(value, Known):
        if back or exclusive:
            raise UnsupportedError("sums constants in another order")
        return Known.of(np.cumsum(value.array(), axis))
    x, axes = last(value, axis)
    given = ops.flip(x, -1) if back else x
    total = ops.cumsum(given, axis=-1)
    if exclusive:
        total = total - given
    return View(ops.flip(total, -1) if back else total, axes, value.batch)


def _top_k(node: Node) -> list[Value]:
    view = node.view(0)
    rank = len(view.shape)
    axis = node.axis(-1, rank)
    count = int(np.asarray(node.setting("k", 1)).reshape(-1)[0])
    x, axes = last(view, axis)
    if bool(node.get("largest", 1)):
        values, places = ops.top_k(x, count)
    else:
        values, places = ops.top_k(-x, count)
        values = -values
    return [View(each, axes, view.batch) for each in (values, places)]


def _determinant(node: Node) -> Value:
    x, axes = plain(node.view(0))
    if axes[-2:] != ((len(axes) - 2,), (len(axes) - 1,)):
        raise UnsupportedError("takes the determinant over the batch")
    return View(ops.det(x), axes[:-2], node.batch)


def _fourier(node: Node) -> Value:
    view = node.view(0)
    rank, inverse = len(view.shape), bool(node.get("inverse", 0))
    axis = node.setting("axis", 2, 1 if node.opset < 20 else -2)
    if node.has(1) or node.get("onesided", 0):
        raise UnsupportedError("transforms to another length")
    place, count = node.checked_axis(int(axis), rank), view.shape[-1]
    if count not in (1, 2) or place == rank - 1:
        raise ValueError(f"real and imaginary parts are 2 numbers, not {count}")
    chosen = (place, rank - 1)
    order = [each for each in natural_order(view) if each not in chosen]
    both, axes = in_order(view, [*order, *chosen])
    real = both[..., 0]
    parts = real, both[..., 1] if count == 2 else ops.zeros_like(real)
    if not inverse:
        made = ops.fft(parts)
    else:  # of the conjugate
        turned = ops.fft((parts[0], -parts[1]))
        by = 1 / view.shape[place]
        made = turned[0] * by, turned[1] * -by
    return View(ops.stack(list(made), axis=-1), axes, view.batch)


def _one_hot(node: Node) -> Value:
    view = node.view(0)
    depth = int(np.asarray(node.setting("depth", 1)).reshape(-1)[0])
    off, on = (float(each) for each in node.setting("values", 2))
    axis = node.axis(-1, len(view.shape) + 1)
    made = ops.one_hot(ops.cast(view.x, "int32"), depth)
    if (off, on) != (0, 1):
        made = made * (on - off) + off
    axes = list(view.axes)
    axes.insert(axis, (len(made.shape) - 1,))
    return View(made, tuple(axes), view.batch)


_GATES = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}  # of layers, in ONNX
_USUAL = {
    "LSTM": ["sigmoid", "tanh", "tanh"],
    "GRU": ["sigmoid", "tanh"],
    "RNN": ["tanh"],
}


def _recurrent(node: Node) -> list[Value]:
    kind, x = node.type, node.view(0)
    w, r = node.known(1), node.known(2)
    count = w.shape[0]
    units = r.shape[2]
    _check_recurrent(node, count)
    sequences = arranged(x, [x.axes[1], x.axes[0], x.axes[2]])
    direction = node.get("direction", "forward")
    backward = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
    if direction not in backward or len(backward[direction]) != count:
        raise ValueError(f"{count} directions for {direction!r}")
    steps, ends = [], []
    for place, back in enumerate(backward[direction]):
        made = _one_way(node, sequences, place, back, units)
        steps.append(made[0])
        ends.append(made[1:])
    if count == 1:
        y = View(steps[0], ((1,), (), (0,), (2,)), x.batch)
        states = [View(each, ((), (0,), (1,)), x.batch) for each in ends[0]]
    else:
        y = View(ops.stack(steps, axis=2), ((1,), (2,), (0,), (3,)), x.batch)
        states = [
            View(ops.stack(pair, axis=1), ((1,), (0,), (2,)), x.batch)
            for pair in zip(*ends, strict=True)
        ]
    if kind != "LSTM":
        states = states[:1]
    return [y, *states]


def _check_recurrent(node: Node, count: int) -> None:
    """Raise UnsupportedError for what the layers do not compute."""
    usual = _USUAL[node.type] * count
    given = [each.lower() for each in node.get("activations", usual)]
    if given != usual:
        raise UnsupportedError(f"has the activations {', '.join(given)}")
    for name in ("clip", "input_forget", "layout"):
        if node.get(name):
            raise UnsupportedError(f"has {name}={node.get(name)}")
    if node.has(4):
        raise UnsupportedError("is told the length of each sequence")
    if node.has(7):
        raise UnsupportedError("has peepholes")


def _one_way(
    node: Node, sequences: Any, place: int, back: bool, units: int
) -> list[Any]:
    """Return the outputs of all steps in one direction, and the last states."""
    kind = node.type
    gates = _GATES[kind]
    count = len(gates)

    def kernel(array: Any) -> Any:
        parts = np.split(array[place], count, axis=0)
        return np.concatenate([parts[i] for i in gates], axis=0).T

    def biases(array: Any) -> Any:
        rows = []
        for half in np.split(array[place], 2):
            parts = np.split(half, count)
            rows.append(np.concatenate([parts[i] for i in gates]))
        return np.stack(rows) if is_gru else rows[0] + rows[1]

    w, r = node.known(1), node.known(2)
    width = count * units
    is_gru = kind == "GRU" and bool(node.get("linear_before_reset", 0))
    weights = [
        w.changed((w.shape[2], width), kernel),
        r.changed((units, width), kernel),
    ]
    shape = (2, width) if is_gru else (width,)
    if node.has(3):
        weights.append(node.known(3).changed(shape, biases))
    options: dict[str, Any] = {"reset_after": is_gru} if kind == "GRU" else {}
    if kind == "LSTM":
        options["unit_forget_bias"] = False
    layer = node.importer.layer(
        {"LSTM": layers.LSTM, "GRU": layers.GRU, "RNN": layers.SimpleRNN}[kind],
        weights,
        node.label(w) + ".reverse" * back,
        units=units,
        use_bias=node.has(3),
        return_sequences=True,
        return_state=True,
        go_backwards=back,
        kernel_initializer="zeros",
        recurrent_initializer="zeros",
        **options,
    )
    made = layer(sequences, **_initial(node, place, kind, back))
    steps, *states = made
    return [ops.flip(steps, 1) if back else steps, *states]


def _initial(node: Node, place: int, kind: str, back: bool) -> dict[str, Any]:
    """Return the initial states as arguments of a call; none for zeros."""
    del back
    states: list[Any] = []
    for index in (5, 6)[: 1 + (kind == "LSTM")]:
        value = node.value(index) if node.has(index) else None
        if isinstance(value, Known):
            if np.any(value.array()):
                raise UnsupportedError("has initial states that are constants")
            value = None
        if value is None:
            states.append(None)
            continue
        x, axes = last(value, 2)
        del axes
        if value.shape[0] != 1:
            view = View(x, (), value.batch)
            raise UnsupportedError(f"has {len(view.lengths)} initial states")
        states.append(x)
    given = [each for each in states if each is not None]
    if not given:
        return {}
    zeros = ops.zeros_like(given[0])
    return {"initial_state": [zeros if each is None else each for each in states]}


def _numpy_l2(x: Any, **options: Any) -> Any:
    return np.sqrt(np.sum(np.square(x), **options))


RULES: dict[str, Rule] = {
    "ArgMax": _extreme(ops.argmax, np.argmax),
    "ArgMin": _extreme(ops.argmin, np.argmin),
    "CumSum": _cumsum,
    "DFT": _fourier,
    "Det": _determinant,
    "GRU": _recurrent,
    "LSTM": _recurrent,
    "LogSoftmax": _softmax(ops.log_softmax),
    "OneHot": _one_hot,
    "RNN": _recurrent,
    "ReduceL1": _reduction(_l1, lambda x, **o: np.sum(np.abs(x), **o)),
    "ReduceL2": _reduction(_l2, _numpy_l2),
    "ReduceLogSum": _reduction(_log_sum, lambda x, **o: np.log(np.sum(x, **o))),
    "ReduceLogSumExp": _reduction(
        ops.logsumexp, lambda x, **o: np.log(np.sum(np.exp(x), **o))
    ),
    "ReduceMax": _reduction(ops.max, np.max),
    "ReduceMean": _reduction(ops.mean, np.mean),
    "ReduceMin": _reduction(ops.min, np.min),
    "ReduceProd": _reduction(ops.prod, np.prod),
    "ReduceSum": _reduction(ops.sum, np.sum),
    "ReduceSumSquare": _reduction(_squares, lambda x, **o: np.sum(x * x, **o)),
    "Softmax": _softmax(ops.softmax),
    "TopK": _top_k,
}
