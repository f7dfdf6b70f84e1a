"""The types that the reference kernels share.

Owns three names. Refuses everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from numpy.typing import NDArray

__all__ = ["Array", "Attributes", "ReferenceFunction"]

Array: TypeAlias = NDArray[Any]
Attributes: TypeAlias = Mapping[str, Any]
ReferenceFunction: TypeAlias = Callable[[Attributes, list[Array], list[Array]], None]
