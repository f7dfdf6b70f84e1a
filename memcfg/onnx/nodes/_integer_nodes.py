"""Arithmetic of integers, which is exact in ONNX as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from memcfg.onnx._emitter import Emitter
    from memcfg.onnx._traced_graph import TracedOp

__all__ = ["INTEGERS", "integers"]

INTEGERS = {
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "integer_add": "Add",
    "integer_subtract": "Sub",
    "integer_multiply": "Mul",
    "integer_maximum": "Max",
    "integer_minimum": "Min",
    "integer_floor_divide": "Div",
    "integer_remainder": "Mod",
    "integer_truncated_remainder": "Mod",
    "integer_power_of": "Pow",
    "integer_less": "Less",
    "integer_less_equal": "LessOrEqual",
    "integer_equal": "Equal",
    "integer_not_equal": "Equal",
}
_BY = ("Div", "Mod")


def integers(emitter: Emitter, op: TracedOp) -> None:
    """Append an op of two arrays of int32; by 0 quotient and remainder are 0."""
    perm = emitter.layout(op.inputs)
    a, b = (emitter.full(each, perm) for each in op.inputs)
    kind = INTEGERS[op.type]
    zero = emitter.constant(0, "int32")
    by = b
    if kind in _BY:
        is_zero = emitter.one("Equal", b, zero)
        by = emitter.one("Where", is_zero, emitter.constant(1, "int32"), b)
    if kind == "Mod":
        name = emitter.one("Mod", a, by, fmod=int("truncated" in op.type))
    elif kind == "Div":  # rounds down, and ONNX's towards 0
        rest = emitter.one("Mod", a, by, fmod=0)
        name = emitter.one("Div", emitter.one("Sub", a, rest), by)
    else:
        name = emitter.one(kind, a, b)
    if kind in _BY:
        name = emitter.one("Where", is_zero, zero, name)
    if op.type == "integer_not_equal":
        name = emitter.one("Not", name)
    if kind in ("Less", "LessOrEqual", "Equal"):
        name = emitter.one("Cast", name, to="int32")
    emitter.add(op.outputs[0], name, perm)
