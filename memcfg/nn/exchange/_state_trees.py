"""Values by path, as nested dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["flattened", "nested"]


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values whose names are paths, such as ``"dense/kernel"``, in dicts."""
    result: dict[str, Any] = {}
    for path, value in values.items():
        *above, last = path.split("/")
        inner = result
        for name in above:
            inner = inner.setdefault(name, {})
        inner[last] = value
    return result


def flattened(tree: Any, path: str = "") -> dict[str, Any]:
    """Return the values of nested dicts by their paths."""
    if not isinstance(tree, Mapping):
        return {path: tree}
    result: dict[str, Any] = {}
    for name, each in tree.items():
        result |= flattened(each, f"{path}/{name}" if path else str(name))
    return result
