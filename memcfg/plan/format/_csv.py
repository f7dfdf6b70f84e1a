"""Buffers as CSV in the format of MiniMalloc; offsets are written but not read."""

from __future__ import annotations

import csv
import io
import re
from typing import TYPE_CHECKING

from memcfg.errors import FormatError
from memcfg.plan.format._place import Buffer, Placement

if TYPE_CHECKING:
    from collections.abc import Sequence

_COLUMNS = ("id", "lower", "upper", "size")
_NUMBER = re.compile(r"-?[0-9]{1,18}")  # below 2**62


def read_buffers(text: str) -> list[Buffer]:
    """Return the buffers in CSV text, in the same order.

    Parameters
    ----------
    text : str
        A header line and one line per buffer.

    Raises
    ------
    FormatError
        If a column is missing, unknown or duplicated; a field is missing, out of range
        or not a whole number of at most 18 digits; an id is duplicated; the sizes sum
        to 2**62 or more; or a buffer has an offset, since fixed offsets are not
        supported. The message names the line.

    References
    ----------
    .. [1] M. D. Moffitt, "MiniMalloc: A Lightweight Memory Allocator for
       Hardware-Accelerated Machine Learning", ASPLOS 2023.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    buffers: list[Buffer] = []
    seen: set[str] = set()
    columns: list[str] | None = None
    try:
        for row in rows:
            if not row:
                continue
            where = f"line {rows.line_num}"
            if columns is None:
                columns = _header(row, where)
                continue
            buffer = _buffer(row, columns, where)
            if buffer.id in seen:
                raise FormatError(f"{where}: buffer {buffer.id!r} is duplicated")
            seen.add(buffer.id)
            buffers.append(buffer)
    except csv.Error as error:
        raise FormatError(f"line {rows.line_num}: not CSV: {error}") from error
    if sum(buffer.size for buffer in buffers) >= 2**62:
        raise FormatError("the sizes sum to 2**62 bytes or more")
    if columns is None:
        raise FormatError(f"line 1: no header; expected {','.join(_COLUMNS)}")
    return buffers


def _header(row: list[str], where: str) -> list[str]:
    columns = [name.strip() for name in row]
    for name in columns:
        if name not in (*_COLUMNS, "offset"):
            raise FormatError(f"{where}: unknown column {name!r}")
        if columns.count(name) > 1:
            raise FormatError(f"{where}: column {name!r} is duplicated")
    for name in _COLUMNS:
        if name not in columns:
            raise FormatError(f"{where}: column {name!r} is missing")
    return columns


def _buffer(row: list[str], columns: list[str], where: str) -> Buffer:
    if len(row) != len(columns):
        raise FormatError(f"{where}: {len(row)} fields, expected {len(columns)}")
    fields = {name: field.strip() for name, field in zip(columns, row, strict=True)}
    lower, upper, size = (_number(fields[n], f"{where}: {n!r}") for n in _COLUMNS[1:])
    if not fields["id"]:
        raise FormatError(f"{where}: 'id' is empty")
    if lower >= upper:
        raise FormatError(f"{where}: the lifetime [{lower}, {upper}) is empty")
    if fields.get("offset"):
        raise FormatError(
            f"{where}: buffer {fields['id']!r} has the offset {fields['offset']}, and "
            "fixed offsets are not supported: remove the column to place all buffers"
        )
    if size < 0:
        raise FormatError(f"{where}: 'size' is negative: {size}")
    return Buffer(fields["id"], lower, upper, size)


def _number(text: str, where: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise FormatError(
            f"{where} should be a whole number of at most 18 digits, not {text!r}"
        )
    return int(text)


def write_placement(buffers: Sequence[Buffer], placement: Placement) -> str:
    """Return buffers with their offsets as CSV text.

    Parameters
    ----------
    buffers : sequence of Buffer
        The buffers that were placed.
    placement : Placement
        Their offsets.

    Returns
    -------
    str
        The columns ``id,lower,upper,size,offset``, in the order of the buffers.
    """
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*_COLUMNS, "offset"))
    writer.writerows(
        (b.id, b.lower, b.upper, b.size, offset)
        for b, offset in zip(buffers, placement.offsets, strict=True)
    )
    return out.getvalue()
