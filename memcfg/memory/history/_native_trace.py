"""Traces of the columns in which the native core hands out events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.memory._trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["native_trace"]

_COLUMNS = {
    "action": "u1",
    "address": "u8",
    "nbytes": "u8",
    "thread": "i8",
    "seconds": "f8",
    "tag": "i4",
    "stack": "i4",
}


def native_trace(columns: Sequence[Any]) -> Trace:
    """Return a trace of the columns, the tags and the stacks."""
    *numbers, tags, stacks = columns
    arrays = {
        name: np.frombuffer(column, kind)
        for (name, kind), column in zip(_COLUMNS.items(), numbers, strict=True)
    }
    return Trace(**arrays, tags=tuple(tags) or ("",), stacks=tuple(stacks))
