"""A reader of pickles of plain values that runs nothing that they name.

Owns the accepted codes and the bound on their cost: time and memory in proportion to
the bytes. `pickletools` compares each length with the remaining bytes before it reads.
The memo is a dict, and tuples are not accepted as keys, since hashing shared ones may
take exponential time. The module `pickle` is about twenty times faster, but allocates
the sizes that a pickle claims, and hashes shared values.
"""

from __future__ import annotations

import pickletools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load"]

_KEYS = frozenset({str, bytes, int, bool, type(None)})  # accepted types of keys
_LARGEST = 2**64  # limit for numbers that are keys: larger ones may be made to collide
_PROTOCOLS = range(2, 6)
_NAMES = {"GLOBAL", "INST", "OBJ", "NEWOBJ", "EXT1", "EXT2", "EXT4", "NEWOBJ_EX"}
_NAMES |= {"STACK_GLOBAL", "REDUCE", "BUILD"}  # codes that name or call something
_VALUES = {"BININT", "BININT1", "BININT2", "BINFLOAT", "LONG1", "LONG4"}
_VALUES |= {"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"}
_VALUES |= {"SHORT_BINBYTES", "BINBYTES", "BINBYTES8"}
_OUTSIDE = {"PERSID", "BINPERSID", "NEXT_BUFFER", "READONLY_BUFFER"}


def load(data: bytes) -> Any:
    """Read dicts, lists, tuples, texts, bytes and numbers, or raise ValueError.

    Shared values stay shared, so a value may be far larger than its bytes. Callers must
    check the type of each part that should be a number or a text.
    """
    if len(data) < 2 or data[0] != 0x80 or data[1] not in _PROTOCOLS:
        raise ValueError("it does not begin as a pickle of protocol 2 to 5")
    machine = _Machine()
    at: int | None = 0  # the position, for messages
    try:
        for code, argument, at in pickletools.genops(data):  # noqa: B007
            if code.name in _VALUES:
                machine.stack.append(argument)
            elif (act := _ACTIONS.get(code.name)) is not None:
                act(machine, argument)
            elif code.name != "STOP":
                raise _refusal(code.name)
        return machine.stack.pop()
    except (IndexError, KeyError):
        raise ValueError(f"at byte {at} it uses what is not there") from None
    except ValueError as error:
        raise ValueError(f"from byte {at} on: {error}") from None


def _refusal(name: str) -> ValueError:
    if name in _NAMES:
        return ValueError("it names something to run")
    if name in _OUTSIDE:
        return ValueError("it refers to something outside of it")
    return ValueError(f"there is no plain value with code {name}")


class _Machine:
    """The stack, the marks and the memo of a pickle machine."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []  # stacks below a mark
        self.memo: dict[int, Any] = {}

    def mark(self) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marked.pop()
        return items

    def push_since_mark(self, kind: Callable[[list[Any]], Any]) -> None:
        items = self.since_mark()
        self.stack.append(kind(items))

    def push_tuple(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        self.stack[-count:] = [tuple(self.stack[-count:])]

    def push_dict(self) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def put(self, place: int) -> None:
        self.memo[place] = self.stack[-1]

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError("it appends to what is not a list")
        self.stack[-1].extend(items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError("it has a key of no dict, or no value")
        for key in items[::2]:
            if type(key) not in _KEYS or (
                isinstance(key, int) and not -_LARGEST < key < _LARGEST
            ):
                raise ValueError(f"it has a key of type {type(key).__name__}")
        target.update(zip(items[::2], items[1::2], strict=True))

    def set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])


_ACTIONS: dict[str, Callable[[_Machine, Any], object]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,  # only for readers in pieces
    "POP": lambda machine, _: machine.stack.pop(),
    "POP_MARK": lambda machine, _: machine.since_mark(),
    "DUP": lambda machine, _: machine.stack.append(machine.stack[-1]),
    "MARK": lambda machine, _: machine.mark(),
    "NONE": lambda machine, _: machine.stack.append(None),
    "NEWTRUE": lambda machine, _: machine.stack.append(True),
    "NEWFALSE": lambda machine, _: machine.stack.append(False),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_TUPLE": lambda machine, _: machine.stack.append(()),
    "APPEND": lambda machine, _: machine.extend([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.since_mark()),
    "LIST": lambda machine, _: machine.push_since_mark(list),
    "TUPLE": lambda machine, _: machine.push_since_mark(tuple),
    "TUPLE1": lambda machine, _: machine.push_tuple(1),
    "TUPLE2": lambda machine, _: machine.push_tuple(2),
    "TUPLE3": lambda machine, _: machine.push_tuple(3),
    "DICT": lambda machine, _: machine.push_dict(),
    "SETITEM": lambda machine, _: machine.set_item(),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "BINPUT": lambda machine, place: machine.put(place),
    "LONG_BINPUT": lambda machine, place: machine.put(place),
    "MEMOIZE": lambda machine, _: machine.put(len(machine.memo)),
    "BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
    "LONG_BINGET": lambda machine, place: machine.stack.append(machine.memo[place]),
}
