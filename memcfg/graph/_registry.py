"""All op types by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.errors import GraphError
from memcfg.graph import (
    _convolution,
    _dense,
    _elementwise,
    _loss,
    _normalization,
    _optimizer,
    _pooling,
)

if TYPE_CHECKING:
    from memcfg.graph._definition import Definition

__all__ = ["OP_TYPES", "definition"]

OP_TYPES: dict[str, Definition] = {
    entry.type: entry
    for family in (
        _convolution,
        _dense,
        _elementwise,
        _pooling,
        _normalization,
        _loss,
        _optimizer,
    )
    for entry in family.DEFINITIONS
}


def definition(op_type: str) -> Definition:
    """Return the definition of an op type, or raise GraphError."""
    try:
        return OP_TYPES[op_type]
    except KeyError:
        known = ", ".join(sorted(OP_TYPES))
        raise GraphError(f"unknown op type {op_type!r}; known: {known}") from None
