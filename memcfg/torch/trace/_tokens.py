"""Tensors that stand for objects in the graphs of steps.

Autograd keeps tensors only, and drops them whenever a step ends, however that is. So
what stands for an object is a tensor of eight bytes, its number, whose memory holds it:
both end together.
"""

from __future__ import annotations

import sys
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch

_numbers = count(1)
_held: WeakValueDictionary[int, Any] = WeakValueDictionary()


class _Memory(bytearray):
    """The bytes of a token, and the object that has their number."""

    held: Any


def token_of(held: Any) -> torch.Tensor:
    """Make a tensor that stands for an object, and holds it."""
    number = next(_numbers)
    memory = _Memory(number.to_bytes(8, sys.byteorder))
    memory.held = held
    _held[number] = held
    return torch.frombuffer(memory, dtype=torch.int64)


def held_by(token: torch.Tensor) -> Any:
    """Return what a token stands for; None: that has gone, and this is a copy."""
    return _held.get(int(token))
