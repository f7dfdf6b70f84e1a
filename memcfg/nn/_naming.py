"""Names that Keras would give: ``conv2d``, ``conv2d_1``, ``max_pooling2d``.

Owns the counter of automatic names of this process. Refuses to judge whether the
names of one model are unique: the model does.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["automatic_name", "check_name", "snake_case"]

_lock = threading.Lock()
_counters: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def snake_case(name: str) -> str:
    """Write a class name as Keras does for its layers' names.

    Parameters
    ----------
    name : str
        Such as ``"MaxPooling2D"``.

    Returns
    -------
    str
        Such as ``"max_pooling2d"``.

    Examples
    --------
    >>> snake_case("GlobalAveragePooling2D")
    'global_average_pooling2d'
    """
    spaced = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", spaced).lower()


def automatic_name(kind: str) -> str:
    """Return the next unused automatic name of a kind.

    Parameters
    ----------
    kind : str
        A class name in snake case.

    Returns
    -------
    str
        ``kind`` the first time in this process, then ``kind_1``, ``kind_2``, ...
    """
    with _lock:
        number = next(_counters[kind])
    return kind if number == 0 else f"{kind}_{number}"


def check_name(name: object) -> str:
    """Return a name that a caller gave, or say what is wrong with it.

    Parameters
    ----------
    name : object
        What was given.

    Returns
    -------
    str
        The name.

    Raises
    ------
    TypeError
        If it is not a string.
    ValueError
        If it is empty or contains ``/``, which separates a layer from its weight.
    """
    if not isinstance(name, str):
        raise TypeError(f"a name is a string, not {name!r}")
    if not name or "/" in name:
        raise ValueError(f"a name is not empty and has no '/': {name!r}")
    return name
