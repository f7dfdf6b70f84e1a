"""What elements of a cache's file are like, in JSON.

Owns the words for nests and dtypes. Refuses to read or write files.

A nest is ``null`` for a leaf, or a list: ``["tuple", child, ...]``, ``["named", class,
[field, ...], child, ...]`` or ``["dict", [key, ...], child, ...]``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data.elements._spec import TensorSpec
from memcfg.data.elements._structure import flatten, pack, same_structure
from memcfg.documents import read_count, read_json

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Form", "check_form", "form_text", "read_form"]

# Numbers, text and dates, as NumPy writes them
_DTYPE = re.compile(r"[<>|][biufcSUmM][0-9]{1,9}(\[[0-9A-Za-z]{1,20}\])?")


@dataclass(frozen=True, slots=True)
class Form:
    """The structure of elements, and the dtypes and axes of their leaves.

    Parameters
    ----------
    nest : nest
        Of any leaves.
    dtypes : tuple of numpy.dtype
        By leaf.
    axes : tuple of int
        By leaf.
    """

    nest: Any
    dtypes: tuple[np.dtype[Any], ...]
    axes: tuple[int, ...]


def form_text(element: Any) -> str:
    """Write the form of an element.

    Parameters
    ----------
    element : nest
        The element.

    Returns
    -------
    str
        JSON.

    Raises
    ------
    TypeError
        If a key is neither text nor an integer.
    """
    kinds = [[leaf.dtype.str, leaf.ndim] for leaf in flatten(element)]
    return json.dumps([_words(element), kinds])


def read_form(text: bytes, template: Callable[[], Any]) -> Form:
    """Read the form of elements.

    Parameters
    ----------
    text : bytes
        What `form_text` wrote.
    template : callable
        Returns a nest whose named tuples are of the classes that elements are to be of.
        Called only if there are any.

    Returns
    -------
    Form
        The form.

    Raises
    ------
    ValueError
        If the text is no form.
    TypeError
        Likewise, or if `template` gives another structure.
    """
    words, kinds = read_json(text, "form")
    named = '["named"' in text.decode()
    nest = _nest(words, template() if named else None)
    if not all(_DTYPE.fullmatch(name) for name, _ in kinds):
        raise ValueError("a form has a dtype that no cache has")
    dtypes = tuple(np.dtype(name) for name, _ in kinds)
    axes = tuple(read_count(number, "a number of axes") for _, number in kinds)
    if len(flatten(nest)) != len(kinds):
        raise ValueError("a form has as many dtypes as leaves")
    return Form(nest, dtypes, axes)


def check_form(form: Form, spec: Any) -> None:
    """Refuse a form that elements of a dataset do not have.

    Parameters
    ----------
    form : Form
        The form.
    spec : nest of TensorSpec
        What the dataset's elements are; sizes are not looked at.

    Raises
    ------
    ValueError
        If structure, a dtype or a number of axes differs.
    """
    leaves = [
        TensorSpec([None] * axes, dtype)
        for dtype, axes in zip(form.dtypes, form.axes, strict=True)
    ]
    if same_structure(form.nest, spec) and all(
        wanted.is_compatible_with(leaf)
        for wanted, leaf in zip(flatten(spec), leaves, strict=True)
    ):
        return
    raise ValueError(
        f"its elements are {pack(form.nest, leaves)}, those of the dataset {spec}"
    )


def _words(nest: Any) -> Any:
    if isinstance(nest, Mapping):
        for key in nest:
            if not isinstance(key, str | int):
                raise TypeError(
                    f"a file keeps dicts with keys of str or int, not {key!r}"
                )
        return ["dict", list(nest), *map(_words, nest.values())]
    if not isinstance(nest, tuple):
        return None
    children = map(_words, nest)
    if hasattr(nest, "_fields"):
        return ["named", type(nest).__name__, list(nest._fields), *children]
    return ["tuple", *children]


def _nest(words: Any, template: Any) -> Any:
    if words is None:
        return 0
    kind, *rest = words
    if kind == "dict":
        keys, *children = rest
        parts = {} if template is None else template
        return {
            key: _nest(child, parts.get(key))
            for key, child in zip(keys, children, strict=True)
        }
    if kind == "tuple":
        return tuple(_nest(*pair) for pair in _paired(rest, template))
    if kind != "named":
        raise ValueError(f"a nest is no {kind!r}")
    name, fields, *children = rest
    if list(getattr(template, "_fields", ())) != fields:
        raise TypeError(f"its elements are {name}, with the fields {fields}")
    return type(template)(*(_nest(*pair) for pair in _paired(children, template)))


def _paired(children: list[Any], template: Any) -> list[tuple[Any, Any]]:
    if template is None:
        return [(child, None) for child in children]
    return list(zip(children, template, strict=True))
