"""The interchange format ``memcfg.plan/2``, and 1: plans as JSON text.

Owns the grammar: keys, actions and types; `memcfg.documents` reads by it. Returns plain
fields; `Plan` makes a value of them. Meaning is not checked here.

Version 2 says where the copies of swapped tensors lie on their tiers. A plan that does
not say so is written in version 1, which has no such operand.
"""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import TYPE_CHECKING, Any

from memcfg.documents import (
    Key,
    Reader,
    read_count,
    read_document,
    read_json,
    read_list,
    read_object,
    read_or_null,
    read_positive,
    read_seconds,
    read_text,
    write_json,
)
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
    from collections.abc import Mapping

    from memcfg.plan._plan import Plan

__all__ = ["read_plan", "write_plan"]

FORMAT = "memcfg.plan/2"
_FIRST = "memcfg.plan/1"


def write_plan(plan: Plan) -> str:
    """Write a plan as JSON text, one action a line."""
    swaps = [a for a in plan.actions if isinstance(a, SwapOut | SwapIn)]
    first = all(action.offset is None for action in swaps)
    head = {
        "format": _FIRST if first else FORMAT,
        "graph": plan.graph,
        "method": plan.method,
        "limit_bytes": plan.limit_bytes,
        "alignment": plan.alignment,
        "predicted": {
            item.name: getattr(plan.predicted, item.name) for item in fields(Predicted)
        },
    }
    lines = ",\n  ".join(
        write_json([_NAMES[type(action)], *_operands(action, first)])
        for action in plan.actions
    )
    return f'{write_json(head)[:-1]},\n "actions": [\n  {lines}]}}\n'


def read_plan(text: str) -> dict[str, Any]:
    """Read JSON text into the fields of a plan; `predicted` is a dict of fields."""
    document = read_json(text, "plan")
    first = isinstance(document, dict) and document.get("format") == _FIRST
    actions = _FIRST_ACTIONS if first else _ACTIONS
    keys = _PLAN | {"actions": Key(read_list(_action_reader(actions), item="action"))}
    return read_document(text, "plan", _FIRST if first else FORMAT, keys)


def _operands(action: Action, first: bool) -> tuple[Any, ...]:
    if first and isinstance(action, SwapOut | SwapIn):
        return action.tensor, action.tier
    return astuple(action)


def _read_predicted(value: Any, where: str) -> dict[str, Any]:
    return read_object(value, where, _PREDICTED)


def _action_reader(known: Mapping[str, tuple[Any, tuple[Reader, ...]]]) -> Reader:
    def read_action(value: Any, where: str) -> Action:
        if not isinstance(value, list) or not value:
            raise FormatError(f"{where} should be a list that starts with a name")
        name, *operands = value
        if read_text(name, f"{where}: its name") not in known:
            names = ", ".join(known)
            raise FormatError(
                f"{where}: unknown action {name[:80]!r}; there are {names}"
            )
        kind, readers = known[name]
        if len(operands) != len(readers):
            raise FormatError(
                f"{where}: {name!r} takes {len(readers)} operands, not {len(operands)}"
            )
        read = zip(fields(kind), readers, operands, strict=False)
        action: Action = kind(
            *[reader(x, f"{where}: {item.name}") for item, reader, x in read]
        )
        return action

    return read_action


_NAME_OR_NULL = read_or_null(read_text)
_COUNT_OR_NULL = read_or_null(read_count)
_ACTIONS: dict[str, tuple[Any, tuple[Reader, ...]]] = {
    "alloc": (Alloc, (read_count, read_count)),
    "alias": (Alias, (read_count, read_count)),
    "free": (Free, (read_count,)),
    "compute": (Compute, (read_count, _NAME_OR_NULL, _COUNT_OR_NULL)),
    "swap_out": (SwapOut, (read_count, read_text, _COUNT_OR_NULL)),
    "swap_in": (SwapIn, (read_count, read_text, _COUNT_OR_NULL)),
    "encode": (Encode, (read_count, read_text, read_count, read_count)),
    "decode": (Decode, (read_count, read_count)),
    "wait": (Wait, (read_count,)),
}
_FIRST_ACTIONS = _ACTIONS | {
    "swap_out": (SwapOut, (read_count, read_text)),
    "swap_in": (SwapIn, (read_count, read_text)),
}
_NAMES = {kind: name for name, (kind, _) in _ACTIONS.items()}
_PREDICTED = {
    "peak_bytes": Key(read_count),
    "host_peak_bytes": Key(read_count),
    "moved_bytes": Key(read_count),
    "seconds": Key(read_seconds),
    "recompute_seconds": Key(read_seconds),
    "lower_bound_bytes": Key(read_count),
    "planning_seconds": Key(read_seconds),
    "optimality_gap": Key(read_or_null(read_seconds)),
}
_PLAN = {
    "graph": Key(read_text),
    "method": Key(read_text),
    "limit_bytes": Key(_COUNT_OR_NULL),
    "alignment": Key(read_positive),
    "predicted": Key(_read_predicted),
}
