"""JSON documents of named formats, each of which lists its keys.

Reading any text gives a value or a `FormatError`, even for deep nesting, numbers of any
length, duplicate keys, NaN and invalid Unicode.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import MISSING, dataclass, fields
from reprlib import Repr
from typing import Any

from memcfg.errors import FormatError

__all__ = [
    "Key",
    "Reader",
    "keys_of",
    "read_as",
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
    "reader_of",
    "write_json",
]

Reader = Callable[[Any, str], Any]  # takes a JSON value and its position, for messages

_LARGEST = 2**63 - 1  # bytes, ids and counts fit signed 64-bit integers
_WORDS = Repr()  # shortens values in messages
_WORDS.maxstring = _WORDS.maxother = _WORDS.maxlong = 80  # characters


@dataclass(frozen=True, slots=True)
class Key:
    """A key of an object."""

    read: Reader
    field: str = ""  # the name under which it is stored; empty for the key itself
    required: bool = True
    default: Any = None  # stored if the key is missing


def read_document(
    text: str, kind: str, format_name: str, keys: Mapping[str, Key]
) -> dict[str, Any]:
    """Read a document of a format into fields."""
    document = read_json(text, kind)
    if not isinstance(document, dict) or "format" not in document:
        raise FormatError(f"not a {kind}: no 'format' key; expected {format_name!r}")
    actual = document.pop("format")
    if actual != format_name:
        raise FormatError(
            f"format is {_shown(actual)}; this version reads {format_name!r}"
        )
    return read_object(document, kind, keys)


def read_json(text: str | bytes, kind: str) -> Any:
    """Read JSON of any format; `kind` is the expected document, for messages."""
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
    except ValueError as error:  # Python reads no integer of 4,301 or more digits
        raise FormatError(f"not a {kind}: a number has too many digits") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise FormatError(f"duplicate key {_shown(key)} in one object")
            seen.add(key)
    return result


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"{name} is not a number of JSON")


def _shown(value: Any) -> str:
    return _WORDS.repr(value)


def read_object(value: Any, where: str, keys: Mapping[str, Key]) -> dict[str, Any]:
    """Read an object of known keys into fields, in the order of `keys`."""
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
    """Read a string that can be printed and stored, without lone surrogates."""
    if not isinstance(value, str):
        raise FormatError(f"{where} should be a string, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise FormatError(f"{where} is not Unicode text: {_shown(value)}") from error
    return value


def read_count(value: Any, where: str) -> int:
    """Read a size, an id or a count, from 0 to 2**63 - 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{where} should be a whole number >= 0, not {_shown(value)}")
    if value > _LARGEST:
        raise FormatError(f"{where} should be a whole number below 2**63")
    return value


def read_positive(value: Any, where: str) -> int:
    """Read a positive count."""
    count = read_count(value, where)
    if count == 0:
        raise FormatError(f"{where} should be positive")
    return count


def read_seconds(value: Any, where: str) -> float:
    """Read a time or another finite quantity that is not negative."""
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
    """Read true or false."""
    if not isinstance(value, bool):
        raise FormatError(f"{where} should be true or false, not {_shown(value)}")
    return value


def read_list(read: Reader, *, item: str = "") -> Reader:
    """Return the reader of a list, as a tuple; `item` names items, as in ``item 7``."""

    def read_items(value: Any, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise FormatError(f"{where} should be a list, not {_shown(value)}")
        return tuple(
            read(entry, f"{item} {i}" if item else f"{where}[{i}]")
            for i, entry in enumerate(value)
        )

    return read_items


def read_or_null(read: Reader) -> Reader:
    """Return the reader of a value that may be null."""
    return lambda value, where: None if value is None else read(value, where)


_READERS: dict[str, Reader] = {
    "bool": read_flag,
    "float": read_seconds,
    "int": read_count,
    "str": read_text,
    "tuple[int, ...]": read_list(read_count),
}


def reader_of(annotation: Any) -> Reader:
    """Return the reader for a field's type, such as "int | None"."""
    kind, _, null = annotation.partition(" | ")
    return read_or_null(_READERS[kind]) if null else _READERS[kind]


def read_as(kind: Callable[..., Any], keys: Mapping[str, Key]) -> Reader:
    """Return the reader of an object, as a value made from its fields."""
    return lambda value, where: kind(**read_object(value, where, keys))


def keys_of(
    kind: Any, *, without: Collection[str] = (), **readers: Reader
) -> dict[str, Key]:
    """Return a key for each field of a dataclass; defaults make it optional."""
    return {
        item.name: Key(
            readers.get(item.name) or reader_of(item.type.removesuffix(" | None")),
            field=item.name,
            required=item.default is MISSING,
            default=item.default,
        )
        for item in fields(kind)
        if item.name not in without
    }


def write_json(value: Any) -> str:
    """Return a value as JSON on one line; FormatError if a number is not finite."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError as error:
        raise FormatError(f"cannot be written as JSON: {error}") from error
