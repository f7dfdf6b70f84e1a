"""How arrays that belong together are given and returned: alone, or in a container."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Structure", "are_arrays", "holds_numbers", "is_array", "unique"]


@dataclass(frozen=True, slots=True)
class Structure:
    """A container of named parts: a list, a tuple, a dict; None: one part, alone."""

    kind: type | None
    names: tuple[str, ...]

    def pack(self, parts: Sequence[Any]) -> Any:
        """Return parts as the container has them."""
        if self.kind is None:
            return parts[0]
        if self.kind is dict:
            return dict(zip(self.names, parts, strict=True))
        return self.kind(parts)

    def unpack(self, given: Any, what: str, of: str) -> list[Any]:
        """Return the parts of what a caller gave, by place or by name."""
        if isinstance(given, dict):
            return self._by_name(given, what, of)
        if len(self.names) == 1:
            if not isinstance(given, list | tuple) or not are_arrays(given):
                return [given]
            if len(given) == 1:
                return list(given)
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"the model has {self._counted(of)}: {what} is a list of as many, or "
                f"a dict by name, not {type(given).__name__}"
            )
        if len(given) != len(self.names):
            raise ValueError(
                f"the model has {self._counted(of)}, and {what} is {len(given)} "
                f"array{'s' * (len(given) != 1)}"
            )
        return list(given)

    def _counted(self, of: str) -> str:
        """Write how many parts there are, and their names."""
        noun = of.replace("puts", "put", 1) if len(self.names) == 1 else of
        return f"{len(self.names)} {noun}, {_shown(self.names)}"

    def _by_name(self, given: dict[Any, Any], what: str, of: str) -> list[Any]:
        missing = [name for name in self.names if name not in given]
        extra = [name for name in given if name not in self.names]
        if missing or extra:
            raise ValueError(
                f"the model has the {of} {_shown(self.names)}, and {what} has "
                f"{_shown(tuple(map(str, given)))}"
            )
        return [given[name] for name in self.names]


def unique(names: Sequence[str]) -> list[str]:
    """Return names of which namesakes are numbered."""
    taken: dict[str, int] = {}
    result = []
    for name in names:
        number = taken.get(name, 0)
        taken[name] = number + 1
        result.append(f"{name}_{number}" if number else name)
    return result


def is_array(given: Any) -> bool:
    """Return whether this is, describes or gives an array of one axis at least."""
    gives = hasattr(given, "__array__") or hasattr(given, "__dlpack__")
    if isinstance(given, type) or not (gives or hasattr(given, "shape")):
        return False
    return not gives or getattr(given, "shape", None) != ()


def are_arrays(given: Any) -> bool:
    """Return whether this is a list or tuple of arrays, not of numbers."""
    return isinstance(given, list | tuple) and all(map(is_array, given))


def holds_numbers(given: Any) -> bool:
    """Return whether this is a list of numbers or of such lists, by the first one."""
    while isinstance(given, list | tuple) and given:
        first = given[0]
        if not isinstance(first, list | tuple):
            return all(map(_is_number, given))
        if isinstance(given, tuple):
            return False  # of several arrays, such as (x, y)
        given = first
    return False


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) or getattr(given, "shape", None) == ()


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
