"""Structures of inputs and outputs: one array, a list, a tuple or a dict."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Structure", "are_arrays", "holds_numbers", "is_array", "unique"]


@dataclass(frozen=True, slots=True)
class Structure:
    """The container of named parts: list, tuple or dict, or None for a single part."""

    kind: type | None
    names: tuple[str, ...]

    def pack(self, parts: Sequence[Any]) -> Any:
        """Return parts in a container of this kind."""
        if self.kind is None:
            return parts[0]
        if self.kind is dict:
            return dict(zip(self.names, parts, strict=True))
        return self.kind(parts)

    def unpack(self, given: Any, what: str, of: str) -> list[Any]:
        """Return the parts of a caller's container, by position or by name."""
        if isinstance(given, dict):
            return self._by_name(given, what, of)
        if len(self.names) == 1:
            if not isinstance(given, list | tuple) or not are_arrays(given):
                return [given]
            if len(given) == 1:
                return list(given)
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"the model has {self._counted(of)}: {what} must be a list of as many "
                f"arrays or a dict by name, got {type(given).__name__}"
            )
        if len(given) != len(self.names):
            raise ValueError(
                f"the model has {self._counted(of)}, but {what} has {len(given)} "
                f"array{'s' * (len(given) != 1)}"
            )
        return list(given)

    def _counted(self, of: str) -> str:
        """Return the number of parts and their names as text."""
        noun = of.replace("puts", "put", 1) if len(self.names) == 1 else of
        return f"{len(self.names)} {noun}, {_shown(self.names)}"

    def _by_name(self, given: dict[Any, Any], what: str, of: str) -> list[Any]:
        missing = [name for name in self.names if name not in given]
        extra = [name for name in given if name not in self.names]
        if missing or extra:
            raise ValueError(
                f"the model has the {of} {_shown(self.names)}, but {what} has "
                f"{_shown(tuple(map(str, given)))}"
            )
        return [given[name] for name in self.names]


def unique(names: Sequence[str]) -> list[str]:
    """Return names with a number appended to repeated ones."""
    taken: dict[str, int] = {}
    result = []
    for name in names:
        number = taken.get(name, 0)
        taken[name] = number + 1
        result.append(f"{name}_{number}" if number else name)
    return result


def is_array(given: Any) -> bool:
    """Return whether an object is, describes or converts to an array, not a scalar."""
    gives = hasattr(given, "__array__") or hasattr(given, "__dlpack__")
    if isinstance(given, type) or not (gives or hasattr(given, "shape")):
        return False
    return not gives or getattr(given, "shape", None) != ()


def are_arrays(given: Any) -> bool:
    """Return whether an object is a list or tuple of arrays."""
    return isinstance(given, list | tuple) and all(map(is_array, given))


def holds_numbers(given: Any) -> bool:
    """Return whether an object is a nested list of numbers, by its first elements."""
    while isinstance(given, list | tuple) and given:
        first = given[0]
        if not isinstance(first, list | tuple):
            return all(map(_is_number, given))
        if isinstance(given, tuple):
            return False  # several arrays, such as (x, y)
        given = first
    return False


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) or getattr(given, "shape", None) == ()


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
