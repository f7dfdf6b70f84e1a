"""Nested structures of lists, tuples, named tuples and dicts, as `keras.tree` has them.

The entries of a dict are in the order of its sorted keys, as in Keras.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "MAP_TO_NONE",
    "assert_same_paths",
    "assert_same_structure",
    "flatten",
    "flatten_with_path",
    "is_nested",
    "lists_to_tuples",
    "map_shape_structure",
    "map_structure",
    "map_structure_up_to",
    "pack_sequence_as",
    "traverse",
]


class MAP_TO_NONE:  # noqa: N801  (Keras's name)
    """What a function returns to `traverse` for None, which itself means no change."""


def is_nested(structure: Any) -> bool:
    """Return whether an object is a list, a tuple or a dict.

    Parameters
    ----------
    structure : object
        Any object.

    Returns
    -------
    bool
        Whether it has entries.
    """
    return isinstance(structure, list | tuple | dict)


def _keys(structure: Any) -> list[Any]:
    """Return the keys of the entries, in order."""
    if not isinstance(structure, dict):
        return list(range(len(structure)))
    if isinstance(structure, OrderedDict):
        return [*structure]
    try:
        return sorted(structure)
    except TypeError:
        return [*structure]


def _like(structure: Any, entries: Sequence[Any]) -> Any:
    """Return a structure with other entries."""
    if isinstance(structure, dict):
        made = dict(zip(_keys(structure), entries, strict=True))
        pairs = [(key, made[key]) for key in structure]
        if isinstance(structure, defaultdict):
            return type(structure)(structure.default_factory, pairs)
        return type(structure)(pairs)
    if hasattr(structure, "_fields"):
        return type(structure)(*entries)
    return type(structure)(entries)


def _walk(structure: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, Any]]:
    if not is_nested(structure):
        yield path, structure
        return
    for key in _keys(structure):
        yield from _walk(structure[key], (*path, key))


def flatten(structure: Any) -> list[Any]:
    """Return the leaves of a structure.

    Parameters
    ----------
    structure : object
        The structure; a leaf is its own.

    Returns
    -------
    list
        The leaves, None among them.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.tree.flatten({"b": (1, [2]), "a": 3})
    [3, 1, 2]
    """
    return [leaf for _, leaf in _walk(structure)]


def flatten_with_path(structure: Any) -> list[tuple[tuple[Any, ...], Any]]:
    """Return the leaves of a structure with the keys that lead to them.

    Parameters
    ----------
    structure : object
        The structure.

    Returns
    -------
    list of (tuple, object)
        Paths and leaves.
    """
    return list(_walk(structure))


def pack_sequence_as(structure: Any, flat_sequence: Sequence[Any]) -> Any:
    """Return a structure with other leaves.

    Parameters
    ----------
    structure : object
        The structure.
    flat_sequence : sequence
        The leaves, in the order of `flatten`.

    Returns
    -------
    object
        A structure of the same kind.

    Raises
    ------
    ValueError
        If the number of leaves differs.
    """
    leaves, count = list(flat_sequence), len(flatten(structure))
    if len(leaves) != count:
        raise ValueError(f"{len(leaves)} leaves for a structure of {count}")
    rest = iter(leaves)

    def packed(part: Any) -> Any:
        if not is_nested(part):
            return next(rest)
        return _like(part, [packed(part[key]) for key in _keys(part)])

    return packed(structure)


def map_structure(
    func: Callable[..., Any], *structures: Any, none_is_leaf: bool = True
) -> Any:
    """Return a structure of what a function makes of the leaves.

    Parameters
    ----------
    func : callable
        Takes a leaf of each structure.
    *structures : object
        Structures of one form.
    none_is_leaf : bool, default True
        Whether None is given to the function; if not, it stays None.

    Returns
    -------
    object
        The structure.

    Raises
    ------
    ValueError
        If there is no structure, or their forms differ.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.tree.map_structure(lambda x, y: x + y, {"a": [1, 2]}, {"a": [10, 20]})
    {'a': [11, 22]}
    """
    if not structures:
        raise ValueError("map_structure needs at least one structure")
    first = structures[0]
    if not is_nested(first):
        if any(is_nested(each) for each in structures):
            raise ValueError("the structures have different forms")
        return None if first is None and not none_is_leaf else func(*structures)
    _check_forms(first, structures[1:])
    entries = [
        map_structure(
            func, *(each[key] for each in structures), none_is_leaf=none_is_leaf
        )
        for key in _keys(first)
    ]
    return _like(first, entries)


def _check_forms(first: Any, others: Sequence[Any]) -> None:
    """Raise ValueError unless nested structures have the same kind and keys."""
    for each in others:
        same = is_nested(each) and set(_keys(first)) == set(_keys(each))
        dicts = isinstance(first, dict) and isinstance(each, dict)
        if not same or not (dicts or type(first) is type(each)):
            raise ValueError(
                "the structures have different forms: "
                f"{type(first).__name__} of {len(first)} and {type(each).__name__}"
            )


def map_structure_up_to(
    shallow_structure: Any, func: Callable[..., Any], *structures: Any
) -> Any:
    """Return what a function makes of the parts at the leaves of a structure.

    Parameters
    ----------
    shallow_structure : object
        The structure whose form counts.
    func : callable
        Takes the part of each structure.
    *structures : object
        Structures that begin with that form.

    Returns
    -------
    object
        A structure of that form.

    Raises
    ------
    ValueError
        If there is no structure, or their forms differ.
    """
    if not structures:
        raise ValueError("map_structure_up_to needs at least one structure")
    if not is_nested(shallow_structure):
        return func(*structures)
    _check_forms(shallow_structure, structures)
    entries = [
        map_structure_up_to(
            shallow_structure[key], func, *(each[key] for each in structures)
        )
        for key in _keys(shallow_structure)
    ]
    return _like(shallow_structure, entries)


def assert_same_structure(a: Any, b: Any) -> None:
    """Raise ValueError if two structures have different forms.

    Parameters
    ----------
    a, b : object
        The structures.

    Raises
    ------
    ValueError
        If they do.
    """
    map_structure(lambda *_: None, a, b)


def assert_same_paths(a: Any, b: Any) -> None:
    """Raise ValueError if the leaves of two structures have different paths.

    Parameters
    ----------
    a, b : object
        The structures; lists and tuples are alike.

    Raises
    ------
    ValueError
        If they do.
    """
    paths = [{path for path, _ in _walk(each)} for each in (a, b)]
    if paths[0] != paths[1]:
        lone = sorted(map(str, paths[0] ^ paths[1]))
        raise ValueError(f"paths of only one of the structures: {', '.join(lone)}")


def traverse(func: Callable[[Any], Any], structure: Any, top_down: bool = True) -> Any:
    """Return a structure in which a function replaces parts.

    Parameters
    ----------
    func : callable
        Takes a part, a leaf or not, and returns what replaces it, `MAP_TO_NONE` for
        None, or None for no change.
    structure : object
        The structure.
    top_down : bool, default True
        Whether the whole comes before its parts; parts of what is replaced are not
        visited then.

    Returns
    -------
    object
        The structure.
    """

    def children(part: Any) -> Any:
        if not is_nested(part):
            return part
        keys = _keys(part)
        return _like(part, [traverse(func, part[key], top_down) for key in keys])

    part = structure if top_down else children(structure)
    made = func(part)
    if made is None:
        return children(structure) if top_down else part
    return None if made is MAP_TO_NONE else made


def lists_to_tuples(structure: Any) -> Any:
    """Return a structure with tuples for its lists.

    Parameters
    ----------
    structure : object
        The structure.

    Returns
    -------
    object
        The structure.
    """

    def as_tuple(part: Any) -> Any:
        return tuple(part) if isinstance(part, list) else None

    return traverse(as_tuple, structure, top_down=False)


def map_shape_structure(func: Callable[[Any], Any], structure: Any) -> Any:
    """Return a structure of what a function makes of shapes.

    Parameters
    ----------
    func : callable
        Takes a shape, a tuple or list of integers and None.
    structure : object
        A structure whose leaves are shapes.

    Returns
    -------
    object
        The structure.
    """
    if not is_nested(structure):
        return func(structure)
    if isinstance(structure, list | tuple) and all(
        each is None or isinstance(each, int) for each in structure
    ):
        return func(structure)
    entries = [map_shape_structure(func, structure[key]) for key in _keys(structure)]
    return _like(structure, entries)
