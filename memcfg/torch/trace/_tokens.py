"""Tensors that stand for objects in the graphs of steps.

Autograd keeps only tensors, and drops them however a step ends. An object is therefore
represented by a tensor of eight bytes, its number, whose memory keeps the object alive.
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
    """The bytes of a token, which keep the object of their number alive."""

    held: Any


def token_of(held: Any) -> torch.Tensor:
    """Return a tensor that stands for an object and keeps it alive."""
    number = next(_numbers)
    memory = _Memory(number.to_bytes(8, sys.byteorder))
    memory.held = held
    _held[number] = held
    return torch.frombuffer(memory, dtype=torch.int64)


def held_by(token: torch.Tensor) -> Any:
    """Return the object of a token; None if it is gone and the token is a copy."""
    return _held.get(int(token))
