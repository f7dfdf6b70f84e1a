"""JSON documents with a named format: how strictly they are read.

Owns the one reader of ``memcfg.graph/1`` and ``memcfg.plan/1``, and the words in which
a departure from a grammar is refused. Refuses to know either grammar: a format lists
its keys here and keeps its meaning to itself.

Whatever the text is, reading it ends in a value or in a `FormatError`: deep nesting,
numbers of any length, keys that stand twice, NaN and broken Unicode included.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from reprlib import Repr
from typing import Any

from memcfg.errors import FormatError

__all__ = [
    "Key",
    "Reader",
    "read_count",
    "read_document",
    "read_flag",
    "read_json",
    "read_list",
    "read_object",
    "read_or_null",
    "read_positive",
    "read_seconds",
    "read_text",
    "write_json",
]

Reader = Callable[[Any, str], Any]  # (value of JSON, where it stands) -> value

_LARGEST = 2**63 - 1  # bytes, ids and counts fit 64 bits with a sign
_WORDS = Repr()  # shows a value in a message, shortened
_WORDS.maxstring = _WORDS.maxother = _WORDS.maxlong = 80  # characters


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object.

    Parameters
    ----------
    read : callable
        From the key's value, and where it stands, to what is kept.
    field : str, default ""
        The name under which it is kept; empty: the key itself.
    required : bool, default True
        Whether the key has to be there.
    default : object, default None
        What is kept when it is not.
    """

    read: Reader
    field: str = ""
    required: bool = True
    default: Any = None


def read_document(
    text: str, kind: str, format_name: str, keys: Mapping[str, Key]
) -> dict[str, Any]:
    """Read a document of a format.

    Parameters
    ----------
    text : str
        JSON text.
    kind : str
        What it should be, for the messages, such as ``"graph"``.
    format_name : str
        The value of its key ``"format"``.
    keys : mapping of str to Key
        Its other keys.

    Returns
    -------
    dict of str to object
        Its fields.

    Raises
    ------
    FormatError
        If the text is not JSON, of another format or version, or departs from the
        grammar.
    """
    document = read_json(text, kind)
    if not isinstance(document, dict) or "format" not in document:
        raise FormatError(f"not a {kind}: no 'format' key; expected {format_name!r}")
    found = document.pop("format")
    if found != format_name:
        raise FormatError(
            f"format is {_shown(found)}; this version reads {format_name!r}"
        )
    return read_object(document, kind, keys)


def read_json(text: str | bytes, kind: str) -> Any:
    """Read JSON, of whatever format.

    Parameters
    ----------
    text : str or bytes
        JSON text; bytes are UTF-8.
    kind : str
        What it should be, for the messages, such as ``"graph"``.

    Returns
    -------
    object
        A value of JSON.

    Raises
    ------
    FormatError
        If it is not JSON, is nested too deeply, has a number of thousands of digits,
        or a key twice in one object.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except FormatError:
        raise
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise FormatError(f"not a {kind}: nested too deeply") from error
    except UnicodeDecodeError as error:
        raise FormatError(f"not a {kind}: not UTF-8 text: {error}") from error
    except ValueError as error:  # Python reads no whole number of 4,301 digits
        raise FormatError(f"not a {kind}: a number has too many digits") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FormatError(f"key {_shown(key)} stands twice in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"{name} is not a number of JSON")


def _shown(value: Any) -> str:
    return _WORDS.repr(value)


def read_object(value: Any, where: str, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Read an object whose keys are known.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.
    keys : mapping of str to Key
        Its keys.

    Returns
    -------
    dict of str to object
        The fields, in the order of `keys`.

    Raises
    ------
    FormatError
        If it is no object, or a key is unknown, missing or mistyped.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where} should be an object, not {_shown(value)}")
    for name in value:
        if name not in keys:
            raise FormatError(f"{where}: unknown key {_shown(name)}")
    fields: dict[str, Any] = {}
    for name, key in keys.items():
        if name in value:
            fields[key.field or name] = key.read(value[name], f"{where}: {name!r}")
        elif key.required:
            raise FormatError(f"{where}: key {name!r} is missing")
        else:
            fields[key.field or name] = key.default
    return fields


def read_text(value: Any, where: str) -> str:
    """Read a string.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.

    Returns
    -------
    str
        The string, which can be printed and stored.

    Raises
    ------
    FormatError
        If it is none, or half of a surrogate pair stands in it.
    """
    if not isinstance(value, str):
        raise FormatError(f"{where} should be a string, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{where} is not Unicode text: {_shown(value)}") from error
    return value


def read_count(value: Any, where: str) -> int:
    """Read a size, an id or a count.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.

    Returns
    -------
    int
        From 0 to 2**63 - 1.

    Raises
    ------
    FormatError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{where} should be a whole number >= 0, not {_shown(value)}")
    if value > _LARGEST:
        raise FormatError(f"{where} should be a whole number below 2**63")
    return value


def read_positive(value: Any, where: str) -> int:
    """Read a count that is not 0.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.

    Returns
    -------
    int
        From 1 to 2**63 - 1.

    Raises
    ------
    FormatError
        If it is none.
    """
    count = read_count(value, where)
    if count == 0:
        raise FormatError(f"{where} should be positive")
    return count


def read_seconds(value: Any, where: str) -> float:
    """Read a time, or any other quantity that is not negative.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.

    Returns
    -------
    float
        Finite and not negative.

    Raises
    ------
    FormatError
        If it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise FormatError(f"{where} should be a number >= 0, not {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise FormatError(f"{where} should be a finite number")
    return number


def read_flag(value: Any, where: str) -> bool:
    """Read true or false.

    Parameters
    ----------
    value : object
        A value of JSON.
    where : str
        Where it stands, for the message.

    Returns
    -------
    bool
        The flag.

    Raises
    ------
    FormatError
        If it is none.
    """
    if not isinstance(value, bool):
        raise FormatError(f"{where} should be true or false, not {_shown(value)}")
    return value


def read_list(read: Reader, *, item: str = "") -> Reader:
    """Make the reader of a list.

    Parameters
    ----------
    read : callable
        Reads an item.
    item : str, default ""
        What an item is called in messages, such as ``"action"``, which makes it
        ``action 7``; empty: its place in the list.

    Returns
    -------
    callable
        Reads a list into a tuple; `FormatError` if it is none.
    """

    def read_items(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FormatError(f"{where} should be a list, not {_shown(value)}")
        return tuple(
            read(entry, f"{item} {i}" if item else f"{where}[{i}]")
            for i, entry in enumerate(value)
        )

    return read_items


def read_or_null(read: Reader) -> Reader:
    """Make the reader of a value that may be null.

    Parameters
    ----------
    read : callable
        Reads what is not null.

    Returns
    -------
    callable
        Reads null into None.
    """
    return lambda value, where: None if value is None else read(value, where)


def write_json(value: Any) -> str:
    """Write a value as JSON text on one line.

    Parameters
    ----------
    value : object
        Of the types of JSON.

    Returns
    -------
    str
        JSON text.

    Raises
    ------
    FormatError
        If a number in it is NaN or infinite, which JSON does not have.
    """
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise FormatError(f"cannot be written as JSON: {error}") from error
