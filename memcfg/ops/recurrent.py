"""Recurrent layers over a whole sequence as one op: LSTM, GRU and the simple RNN.

Operands: products with the input's kernel ``[batch, steps, width]``, the recurrent
kernel ``[units, width]``, a GRU's recurrent bias, the initial states, and with the
attribute ``masked`` a mask ``[batch, steps]``, where 0 keeps the state.
Hochreiter and Schmidhuber, "Long short-term memory", 1997; Cho et al.,
arXiv:1406.1078, as in Keras with ``reset_after``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from memcfg.ops._op_type import (
    Adjoint,
    Array,
    Arrays,
    Attributes,
    OpType,
    Spec,
    common_dtype,
    register,
    require,
)

__all__: list[str] = []

# (z, h U, states) -> new states, and the values kept for backward, on the last axis
Step = Callable[[Array, Array, Sequence[Array]], tuple[Sequence[Array], Array | None]]
# (kept, states, states before, their gradients) -> gradients of z, h U and the states
StepBack = Callable[
    [Array | None, Sequence[Array], Sequence[Array], Sequence[Array]],
    tuple[Array, Array, Sequence[Array | float]],
]


def _sigmoid(x: Array) -> Array:
    value: Array = 1 / (1 + np.exp(-x))
    return value


def _split(x: Array, parts: int) -> list[Array]:
    return np.split(x, parts, axis=-1)


def _lstm(z: Array, product: Array, states: Sequence[Array]) -> Any:
    i, f, g, o = _split(z + product, 4)
    i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
    c = f * states[1] + i * g
    return (o * np.tanh(c), c), np.concatenate([i, f, g, o], axis=-1)


def _lstm_back(kept: Any, new: Any, before: Any, slopes: Any) -> Any:
    i, f, g, o = _split(kept, 4)
    dh, dc = slopes
    squashed = np.tanh(new[1])
    dc = dc + dh * o * (1 - squashed**2)
    parts = dc * g, dc * before[1], dc * i, dh * squashed
    factors = i * (1 - i), f * (1 - f), 1 - g**2, o * (1 - o)
    dz = np.concatenate([a * b for a, b in zip(parts, factors, strict=True)], axis=-1)
    return dz, dz, (0.0, dc * f)


def _gru(z: Array, product: Array, states: Sequence[Array]) -> Any:
    (xz, xr, xh), (rz, rr, rh) = _split(z, 3), _split(product, 3)
    update, reset = _sigmoid(xz + rz), _sigmoid(xr + rr)
    candidate = np.tanh(xh + reset * rh)
    h = update * states[0] + (1 - update) * candidate
    return (h,), np.concatenate([update, reset, candidate, rh], axis=-1)


def _gru_back(kept: Any, new: Any, before: Any, slopes: Any) -> Any:
    update, reset, candidate, recurrent = _split(kept, 4)
    (dh,) = slopes
    inner = dh * (1 - update) * (1 - candidate**2)
    dupdate = dh * (before[0] - candidate) * update * (1 - update)
    dreset = inner * recurrent * reset * (1 - reset)
    dz = np.concatenate([dupdate, dreset, inner], axis=-1)
    dproduct = np.concatenate([dupdate, dreset, inner * reset], axis=-1)
    return dz, dproduct, (dh * update,)


def _simple(z: Array, product: Array, states: Sequence[Array]) -> Any:
    return (np.tanh(z + product),), None


def _simple_back(kept: Any, new: Any, before: Any, slopes: Any) -> Any:
    dz = slopes[0] * (1 - new[0] ** 2)
    return dz, dz, (0.0,)


@dataclass(frozen=True)
class _Cell:
    """One kind of recurrent step; widths are multiples of the units."""

    name: str
    width: int
    kept: int
    states: int  # h, and an LSTM's c
    bias: bool  # whether there is a recurrent bias
    step: Step
    back: StepBack

    def masked(self, attributes: Attributes) -> bool:
        """Return whether there is a mask."""
        return bool(attributes.get("masked"))

    def infer(self, inputs: Sequence[Spec], attributes: Attributes) -> Sequence[Spec]:
        """Infer the states at every step, and the values kept for backward."""
        count = 2 + self.bias + self.states + self.masked(attributes)
        require(len(inputs) == count, f"{self.name} has {count} inputs here")
        z, kernel = inputs[0].shape, inputs[1].shape
        units = kernel[0]
        require(
            len(z) == 3 and kernel == (units, self.width * units) == (units, z[2]),
            f"{self.name}: products {z} and a recurrent kernel {kernel}",
        )
        batch, steps, width = z
        wanted = [(width,)] * self.bias + [(batch, units)] * self.states
        wanted += [(batch, steps)] * self.masked(attributes)
        shapes = [spec.shape for spec in inputs[2:]]
        require(shapes == wanted, f"{self.name}: operands {shapes} instead of {wanted}")
        dtype = common_dtype(inputs)
        sequence = (batch, steps, units)
        outputs = [Spec(sequence, dtype), Spec(sequence, dtype, "cells")][: self.states]
        if self.kept:
            outputs.append(Spec((batch, steps, self.kept * units), dtype, "kept"))
        return outputs

    def forward(self, a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the steps in order."""
        z, kernel, *rest = inputs
        bias = rest.pop(0) if self.bias else 0
        states, mask = rest[: self.states], rest[self.states :]
        z = z.copy()  # the kept values may be in place of it
        for t in range(z.shape[1]):
            new, kept = self.step(z[:, t], states[0] @ kernel + bias, states)
            if mask:
                keep = mask[0][:, t, None] == 0
                pairs = zip(new, states, strict=True)
                new = [np.where(keep, before, after) for after, before in pairs]
                kept = None if kept is None else np.where(keep, 0, kept)
            states = list(new)
            for output, state in zip(outputs, states, strict=False):
                output[:, t] = state
            if kept is not None:
                outputs[-1][:, t] = kept

    def gradient(self, adjoint: Adjoint) -> Sequence[int | None]:
        """Append the backward op."""
        z_to_bias = 2 + self.bias
        kernel, rest = adjoint.inputs[1], adjoint.inputs[z_to_bias:]
        dys = [
            None if dy is None else adjoint.tensor(dy)
            for dy in adjoint.dys[: self.states]
        ]
        if dys[0] is None:
            shape = adjoint.emitter.shape(adjoint.outputs[0])
            zeros = {"shape": shape, "value": 0.0, "dtype": "float32"}
            dys[0] = adjoint.emit("fill", (), zeros, "gradient_zero")[0]
        given = [dy for dy in dys if dy is not None]
        kept = adjoint.outputs[self.states :]
        attributes = {
            "masked": self.masked(adjoint.attributes),
            "cells": len(given) > 1,
        }
        operands = (
            kernel,
            *kept,
            *adjoint.outputs[: self.states],
            *rest[: self.states],
            *given,
            *rest[self.states :],
        )
        emitted = adjoint.emit(f"{self.name}_gradient", operands, attributes)
        return [*emitted, *[None] * self.masked(adjoint.attributes)]

    def read_gradient(self, inputs: Any, a: Attributes) -> tuple[Any, ...]:
        """Split the operands of the backward op."""
        kernel, *rest = inputs
        kept = rest.pop(0) if self.kept else None
        new, rest = rest[: self.states], rest[self.states :]
        first, rest = rest[: self.states], rest[self.states :]
        count = 1 + bool(a.get("cells"))
        return kernel, kept, new, first, rest[:count], rest[count:]

    def infer_gradient(
        self, inputs: Sequence[Spec], attributes: Attributes
    ) -> Sequence[Spec]:
        """Infer the gradients, in the order of the inputs."""
        kernel, _, new, first, _, _ = self.read_gradient(inputs, attributes)
        batch, steps, units = new[0].shape
        dtype, width = common_dtype(inputs), self.width * units
        outputs = [
            Spec((batch, steps, width), dtype),
            Spec(kernel.shape, dtype, "kernel", "gradient"),
        ]
        if self.bias:
            outputs.append(Spec((width,), dtype, "bias", "gradient"))
        return outputs + [
            Spec(spec.shape, dtype, f"state{i}") for i, spec in enumerate(first)
        ]

    def backward(self, a: Attributes, inputs: Arrays, outputs: Arrays) -> None:
        """Compute the gradients from the last step to the first."""
        kernel, kept, new, first, given, mask = self.read_gradient(inputs, a)
        kept = None if kept is None else kept.copy()
        slopes: list[Any] = [np.zeros_like(each) for each in first]
        dkernel, dbias = np.zeros_like(kernel), np.zeros_like(kernel[0])
        for t in reversed(range(new[0].shape[1])):
            before = first if t == 0 else [each[:, t - 1] for each in new]
            for i, dy in enumerate(given):
                slopes[i] = slopes[i] + dy[:, t]
            now = [each[:, t] for each in new]
            own = None if kept is None else kept[:, t]
            dz, dproduct, carried = self.back(own, now, before, slopes)
            if mask:
                keep = mask[0][:, t, None] == 0
                dz, dproduct = (np.where(keep, 0, each) for each in (dz, dproduct))
                pairs = zip(slopes, carried, strict=True)
                carried = [np.where(keep, old, new) for old, new in pairs]
            outputs[0][:, t] = dz
            dkernel += before[0].T @ dproduct
            dbias += dproduct.sum(axis=0)
            slopes = [carried[0] + dproduct @ kernel.T, *carried[1:]]
        gradients = [dkernel, *[dbias] * self.bias, *slopes]
        for output, value in zip(outputs[1:], gradients, strict=True):
            output[...] = value

    def flops(
        self, inputs: Sequence[Spec], outputs: Sequence[Spec], _: Attributes
    ) -> int:
        """Count a product a step, and 20 operations for each of its elements."""
        units, width = next(spec.shape for spec in inputs if len(spec.shape) == 2)
        rows = next(spec.size for spec in outputs if len(spec.shape) == 3) // units
        return int(rows * width * (2 * units + 20))

    def flops_back(
        self, inputs: Sequence[Spec], outputs: Sequence[Spec], a: Attributes
    ) -> int:
        """Count two products a step."""
        return 2 * self.flops(inputs, outputs, a)


for _cell in (
    _Cell("lstm", 4, 4, 2, False, _lstm, _lstm_back),
    _Cell("gru", 3, 4, 1, True, _gru, _gru_back),
    _Cell("simple_rnn", 1, 0, 1, False, _simple, _simple_back),
):
    _lstms = _cell.name == "lstm"  # its kept values have the size of the products
    register(
        OpType(
            _cell.name,
            None,
            _cell.infer,
            _cell.forward,
            ((0, 2),) if _lstms else (),
            _cell.gradient,
            _cell.flops,
            float32_inputs=None,
            contraction=True,
        ),
        OpType(
            f"{_cell.name}_gradient",
            None,
            _cell.infer_gradient,
            _cell.backward,
            ((1, 0),) if _lstms else (),
            flops=_cell.flops_back,
            contraction=True,
        ),
    )
