"""Elements that a step holds: their byte strings lie in the pool meanwhile.

NumPy's byte strings are outside of the pool, and may be as large as an image. A step
that holds many elements holds copies of them in arrays, which count under the limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg._core import scope_out
from memcfg.data.elements._structure import flatten, map_structure


class HeldBytes:
    """A byte string in an array."""

    __slots__ = ("array",)

    def __init__(self, value: np.bytes_) -> None:
        self.array = np.array(np.frombuffer(value, np.uint8))

    @property
    def value(self) -> np.bytes_:
        """The byte string."""
        return np.bytes_(self.array.tobytes())


def has_bytes(element: Any) -> bool:
    """Return whether an element has byte strings that are no arrays."""
    return any(type(leaf) is np.bytes_ for leaf in flatten(element))


def held(element: Any) -> Any:
    """Return an element whose byte strings are arrays, outside of any workspace."""
    with scope_out():
        return map_structure(_held_leaf, element)


def given(element: Any) -> Any:
    """Return an element as it was before it was held."""
    return map_structure(_given_leaf, element)


def _held_leaf(leaf: Any) -> Any:
    return HeldBytes(leaf) if type(leaf) is np.bytes_ else leaf


def _given_leaf(leaf: Any) -> Any:
    return leaf.value if type(leaf) is HeldBytes else leaf
