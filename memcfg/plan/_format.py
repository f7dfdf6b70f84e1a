"""The interchange format ``memcfg.plan/1``: plans as JSON text.

Owns the grammar: keys, actions, types, and the words in which a departure is
refused. Returns plain fields; `Plan` makes a value of them. Meaning is not checked
here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from memcfg.errors import FormatError
from memcfg.plan._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.plan._facts import Predicted

if TYPE_CHECKING:
    from memcfg.plan._plan import Plan

__all__ = ["read_plan", "write_plan"]

FORMAT = "memcfg.plan/1"

_Reader = Callable[[Any, str], Any]


def write_plan(plan: Plan) -> str:
    """Write a plan as JSON text, one action a line."""
    head = {
        "format": FORMAT,
        "graph": plan.graph,
        "method": plan.method,
        "limit_bytes": plan.limit_bytes,
        "alignment": plan.alignment,
        "predicted": {
            item.name: getattr(plan.predicted, item.name) for item in fields(Predicted)
        },
    }
    lines = ",\n  ".join(
        json.dumps([_NAMES[type(action)], *astuple(action)]) for action in plan.actions
    )
    return f'{json.dumps(head)[:-1]},\n "actions": [\n  {lines}]}}\n'


def read_plan(text: str) -> dict[str, Any]:
    """Read JSON text into the fields of a plan; `predicted` is a dict of fields."""
    document = _parse(text)
    _check_format(document)
    result = _read_object(document, "plan", _PLAN)
    del result["format"]
    return result


def _parse(text: str) -> Any:
    try:
        return json.loads(
            text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except json.JSONDecodeError as error:
        raise FormatError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise FormatError("not a plan: nested too deeply") from error


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise FormatError(f"key {twice!r} stands twice in one object")
    return result


def _refuse_constant(name: str) -> Any:
    raise FormatError(f"{name} is not a number of JSON")


def _check_format(document: Any) -> None:
    if not isinstance(document, dict) or "format" not in document:
        raise FormatError(f"not a plan: no 'format' key; expected {FORMAT!r}")
    if document["format"] != FORMAT:
        raise FormatError(
            f"format is {document['format']!r}; this version reads {FORMAT!r}"
        )


def _read_object(value: Any, where: str, keys: dict[str, _Reader]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise FormatError(f"{where} should be an object, not {value!r}")
    for key in value:
        if key not in keys:
            raise FormatError(f"{where}: unknown key {key!r}")
    for key in keys:
        if key not in value:
            raise FormatError(f"{where}: key {key!r} is missing")
    return {key: read(value[key], f"{where}: {key!r}") for key, read in keys.items()}


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{where} should be a string, not {value!r}")
    return value


def _count(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise FormatError(f"{where} should be a whole number >= 0, not {value!r}")
    return value


def _positive(value: Any, where: str) -> int:
    if _count(value, where) == 0:
        raise FormatError(f"{where} should be positive")
    return int(value)


def _seconds(value: Any, where: str) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not math.isfinite(value) or value < 0:
        raise FormatError(f"{where} should be a number >= 0, not {value!r}")
    return float(value)


def _or_null(read: _Reader) -> _Reader:
    return lambda value, where: None if value is None else read(value, where)


def _read_predicted(value: Any, where: str) -> dict[str, Any]:
    return _read_object(value, where, _PREDICTED)


def _read_actions(value: Any, where: str) -> tuple[Action, ...]:
    if not isinstance(value, list):
        raise FormatError(f"{where} should be a list, not {value!r}")
    return tuple(_read_action(item, f"action {k}") for k, item in enumerate(value))


def _read_action(value: Any, where: str) -> Action:
    if not isinstance(value, list) or not value:
        raise FormatError(f"{where} should be a list that starts with a name")
    name, *operands = value
    if not isinstance(name, str) or name not in _ACTIONS:
        known = ", ".join(_ACTIONS)
        raise FormatError(f"{where}: unknown action {name!r}; there are {known}")
    kind, readers = _ACTIONS[name]
    if len(operands) != len(readers):
        raise FormatError(
            f"{where}: {name!r} takes {len(readers)} operands, not {len(operands)}"
        )
    read = zip(fields(kind), readers, operands, strict=True)
    action: Action = kind(
        *[reader(x, f"{where}: {item.name}") for item, reader, x in read]
    )
    return action


_ACTIONS: dict[str, tuple[Any, tuple[_Reader, ...]]] = {
    "alloc": (Alloc, (_count, _count)),
    "alias": (Alias, (_count, _count)),
    "free": (Free, (_count,)),
    "compute": (Compute, (_count, _or_null(_text), _or_null(_count))),
    "swap_out": (SwapOut, (_count, _text)),
    "swap_in": (SwapIn, (_count, _text)),
    "encode": (Encode, (_count, _text, _count, _count)),
    "decode": (Decode, (_count, _count)),
    "wait": (Wait, (_count,)),
}
_NAMES = {kind: name for name, (kind, _) in _ACTIONS.items()}
_PREDICTED: dict[str, _Reader] = {
    "peak_bytes": _count,
    "host_peak_bytes": _count,
    "moved_bytes": _count,
    "seconds": _seconds,
    "recompute_seconds": _seconds,
    "lower_bound_bytes": _count,
    "planning_seconds": _seconds,
    "optimality_gap": _or_null(_seconds),
}
_PLAN: dict[str, _Reader] = {
    "format": _text,
    "graph": _text,
    "method": _text,
    "limit_bytes": _or_null(_count),
    "alignment": _positive,
    "predicted": _read_predicted,
    "actions": _read_actions,
}
