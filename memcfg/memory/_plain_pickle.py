"""Pickles of plain values, read without the pickle module.

Owns the codes that are understood, and how much they may cost: time and memory in
proportion to the bytes. Refuses names, so nothing in a pickle is run, and whatever is
larger than the bytes say: a length is compared with what is left before it is read,
and the memo is a dict. No key of a dict is a tuple: the hash of a tuple of tuples that
are shared takes for ever.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["load"]

_KEYS = frozenset({str, bytes, int, bool, type(None)})  # kinds of keys
_LARGEST = 2**64  # of a number that is a key: larger ones may be made to collide
_NAMES = b"cio\x81\x82\x83\x84\x92\x93Rb"  # codes that name or call something
_OUTSIDE = b"PQ\x97\x98"  # codes that refer to something outside
_PROTOCOLS = range(2, 6)
_STOP = ord(".")


def load(data: bytes) -> Any:
    """Read dicts, lists, tuples, texts, bytes and numbers; ValueError if there is more.

    What is shared stays shared, so a value may be far larger than its bytes: who walks
    through it looks at the types of what is to be a number or a text.
    """
    if len(data) < 2 or data[0] != 0x80 or data[1] not in _PROTOCOLS:
        raise ValueError("it does not begin as a pickle of protocol 2 to 5")
    machine = _Machine(data)
    try:
        while (code := data[machine.at]) != _STOP:
            machine.at += 1
            act, argument = _CODES.get(code, (_Machine.refuse, code))
            act(machine, argument)
        return machine.stack.pop()
    except (IndexError, KeyError, struct.error):
        where = f"at byte {machine.at}"
        raise ValueError(f"{where} it ends, or uses what is not there") from None


class _Machine:
    """The stack, the marks and the memo; one method a kind of code."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 2  # behind the protocol
        self.stack: list[Any] = []
        self.marked: list[list[Any]] = []  # stacks below a mark
        self.memo: dict[int, Any] = {}

    def refuse(self, code: int) -> None:
        what = f"there is no plain value with code {code:#x}"
        if code in _NAMES:
            what = "it names something to run"
        elif code in _OUTSIDE:
            what = "it refers to something outside of it"
        raise ValueError(f"{what}, at byte {self.at - 1}")

    def number(self, form: struct.Struct) -> Any:
        value = form.unpack_from(self.data, self.at)[0]
        self.at += form.size
        return value

    def piece(self, form: struct.Struct) -> bytes:
        """Take as many bytes as the number before them says."""
        count = self.number(form)
        if not 0 <= count <= len(self.data) - self.at:
            raise ValueError(f"at byte {self.at} it has not {count} more bytes")
        self.at += count
        return self.data[self.at - count : self.at]

    def push_number(self, form: struct.Struct) -> None:
        self.stack.append(self.number(form))

    def push_bytes(self, form: struct.Struct) -> None:
        self.stack.append(self.piece(form))

    def push_text(self, form: struct.Struct) -> None:
        self.stack.append(self.piece(form).decode("utf-8", "surrogatepass"))

    def push_long(self, form: struct.Struct) -> None:
        self.stack.append(int.from_bytes(self.piece(form), "little", signed=True))

    def push(self, make: Callable[[], Any]) -> None:
        self.stack.append(make())

    def pop_mark(self, _: None) -> None:
        self.since_mark()

    def skip(self, form: struct.Struct) -> None:
        self.number(form)

    def pop(self, _: None) -> None:
        self.stack.pop()

    def double(self, _: None) -> None:
        self.stack.append(self.stack[-1])

    def mark(self, _: None) -> None:
        self.marked.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.marked.pop()
        return items

    def put(self, form: struct.Struct) -> None:
        self.memo[self.number(form)] = self.stack[-1]

    def put_next(self, _: None) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def get(self, form: struct.Struct) -> None:
        self.stack.append(self.memo[self.number(form)])

    def tuple_of(self, count: int) -> None:
        if len(self.stack) < count:
            raise IndexError
        items = self.stack[-count:]
        self.stack[-count:] = [tuple(items)]

    def tuple_since_mark(self, _: None) -> None:
        items = self.since_mark()
        self.stack.append(tuple(items))

    def list_since_mark(self, _: None) -> None:
        items = self.since_mark()
        self.stack.append(items)

    def dict_since_mark(self, _: None) -> None:
        items = self.since_mark()
        self.stack.append({})
        self.set_items(items)

    def extend(self, items: list[Any]) -> None:
        if type(self.stack[-1]) is not list:
            raise ValueError(f"at byte {self.at} it appends to what is no list")
        self.stack[-1].extend(items)

    def append(self, _: None) -> None:
        item = self.stack.pop()
        self.extend([item])

    def append_since_mark(self, _: None) -> None:
        self.extend(self.since_mark())

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict or len(items) % 2:
            raise ValueError(f"at byte {self.at} it has a key of no dict, or no value")
        for key in items[::2]:
            if type(key) not in _KEYS or (
                isinstance(key, int) and not -_LARGEST < key < _LARGEST
            ):
                what = type(key).__name__
                raise ValueError(f"at byte {self.at} it has a key of type {what}")
        target.update(zip(items[::2], items[1::2], strict=True))

    def set_item(self, _: None) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self.set_items([key, value])

    def set_since_mark(self, _: None) -> None:
        self.set_items(self.since_mark())


_BYTE, _SHORT, _INT = struct.Struct("<B"), struct.Struct("<H"), struct.Struct("<I")
_SIGNED, _LONG = struct.Struct("<i"), struct.Struct("<Q")
_FLOAT = struct.Struct(">d")
_CODES: dict[int, tuple[Callable[[_Machine, Any], None], Any]] = {
    ord("0"): (_Machine.pop, None),
    ord("1"): (_Machine.pop_mark, None),
    ord("2"): (_Machine.double, None),
    ord("("): (_Machine.mark, None),
    ord("N"): (_Machine.push, type(None)),
    0x88: (_Machine.push, lambda: True),
    0x89: (_Machine.push, bool),
    ord("J"): (_Machine.push_number, _SIGNED),
    ord("K"): (_Machine.push_number, _BYTE),
    ord("M"): (_Machine.push_number, _SHORT),
    ord("G"): (_Machine.push_number, _FLOAT),
    0x8A: (_Machine.push_long, _BYTE),
    0x8B: (_Machine.push_long, _SIGNED),
    0x8C: (_Machine.push_text, _BYTE),
    ord("X"): (_Machine.push_text, _INT),
    0x8D: (_Machine.push_text, _LONG),
    ord("C"): (_Machine.push_bytes, _BYTE),
    ord("B"): (_Machine.push_bytes, _INT),
    0x8E: (_Machine.push_bytes, _LONG),
    ord("]"): (_Machine.push, list),
    ord("}"): (_Machine.push, dict),
    ord(")"): (_Machine.push, tuple),
    ord("a"): (_Machine.append, None),
    ord("e"): (_Machine.append_since_mark, None),
    ord("l"): (_Machine.list_since_mark, None),
    ord("s"): (_Machine.set_item, None),
    ord("u"): (_Machine.set_since_mark, None),
    ord("d"): (_Machine.dict_since_mark, None),
    ord("t"): (_Machine.tuple_since_mark, None),
    0x85: (_Machine.tuple_of, 1),
    0x86: (_Machine.tuple_of, 2),
    0x87: (_Machine.tuple_of, 3),
    ord("q"): (_Machine.put, _BYTE),
    ord("r"): (_Machine.put, _INT),
    0x94: (_Machine.put_next, None),
    ord("h"): (_Machine.get, _BYTE),
    ord("j"): (_Machine.get, _INT),
    0x80: (_Machine.skip, _BYTE),
    0x95: (_Machine.skip, _LONG),  # a frame: only for those who read in pieces
}
