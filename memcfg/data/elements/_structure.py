"""Nests: the tuples, named tuples and dicts that elements are made of.

A list is not a nest but data, as in tf.data. Leaves of a dict are flattened in the
order of its sorted keys; packing keeps the key order of the dict it is given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_LEAVES = (np.ndarray, np.generic, list, int, float, str, bytes)


def is_nest(value: Any) -> bool:
    """Return whether a value is a nest, not a leaf."""
    if isinstance(value, tuple | dict):
        return True
    return not isinstance(value, _LEAVES) and isinstance(value, Mapping)  # slow


def flatten(nest: Any) -> list[Any]:
    """List the leaves of a nest."""
    if not is_nest(nest):
        return [nest]
    return [leaf for child in _children(nest) for leaf in flatten(child)]


def pack(like: Any, leaves: Sequence[Any]) -> Any:
    """Return a nest of the structure of `like` with the given leaves."""
    count = len(flatten(like))
    if count != len(leaves):
        raise ValueError(f"a nest of {count} leaves can't be made from {len(leaves)}")
    return _packed(like, iter(leaves))


def packer(like: Any) -> Callable[[Sequence[Any]], Any]:
    """Return a function that packs leaves into the structure of `like`, quickly."""
    if is_flat_tuple(like):
        return tuple
    keys = _sorted_keys(like) if type(like) is dict else []
    if keys and keys == list(like) and not any(map(is_nest, like.values())):
        return lambda leaves: dict(zip(keys, leaves, strict=True))
    return lambda leaves: _packed(like, iter(leaves))


def is_flat_tuple(nest: Any) -> bool:
    """Return whether a nest is a plain (not named) tuple of leaves."""
    return type(nest) is tuple and not any(map(is_nest, nest))


def map_structure(function: Callable[..., Any], *nests: Any) -> Any:
    """Apply a function to the leaves of nests of one structure."""
    first = nests[0]
    for other in nests[1:]:
        if not same_structure(first, other):
            raise ValueError(f"nests differ in structure: {first!r} and {other!r}")
    columns = [flatten(nest) for nest in nests]
    leaves = [function(*row) for row in zip(*columns, strict=True)]
    return _packed(first, iter(leaves))


def same_structure(first: Any, second: Any) -> bool:
    """Return whether two nests have the same structure."""
    if isinstance(first, Mapping):
        return (
            isinstance(second, Mapping)
            and set(first) == set(second)
            and all(same_structure(first[key], second[key]) for key in first)
        )
    if isinstance(first, tuple):
        return (
            isinstance(second, tuple)
            and getattr(first, "_fields", None) == getattr(second, "_fields", None)
            and len(first) == len(second)
            and all(map(same_structure, first, second))
        )
    return not is_nest(second)


def call(function: Callable[..., Any], element: Any) -> Any:
    """Call a user's function on an element, as tf.data does."""
    return function(*element) if is_unpacked(element) else function(element)


def is_unpacked(element: Any) -> bool:
    """Return whether an element is unpacked into the arguments of a function."""
    return isinstance(element, tuple) and not hasattr(element, "_fields")


def _children(nest: Any) -> list[Any]:
    if isinstance(nest, Mapping):
        return [nest[key] for key in _sorted_keys(nest)]
    return list(nest)


def _sorted_keys(nest: Mapping[Any, Any]) -> list[Any]:
    try:
        return sorted(nest)
    except TypeError as error:
        raise TypeError(
            f"the keys of a dict must have an order, got {list(nest)!r}"
        ) from error


def _packed(like: Any, leaves: Iterator[Any]) -> Any:
    if isinstance(like, Mapping):
        result = {key: _packed(like[key], leaves) for key in _sorted_keys(like)}
        kind = OrderedDict if isinstance(like, OrderedDict) else dict
        return kind((key, result[key]) for key in like)
    if isinstance(like, tuple):
        parts = [_packed(child, leaves) for child in like]
        return type(like)(*parts) if hasattr(like, "_fields") else tuple(parts)
    return next(leaves)
