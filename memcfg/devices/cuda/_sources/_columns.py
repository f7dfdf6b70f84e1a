"""Loops over matrices whose columns are channels, four columns a thread where they fit.

A thread stays in its columns, so what depends on a channel alone is computed once, and
several sums of a column are made in one pass. Lanes and slices, and so the order of
sums, are chosen by lengths alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from memcfg.devices.cuda._sources._prelude import THREADS
from memcfg.devices.cuda._sources._writer import Writer, cut, u32

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.devices.cuda._sources._launch import Argument

__all__ = ["Columns", "each_column", "sum_each_column"]

_WIDE = 4  # columns of a thread: 16 bytes
_SIDE_BY_SIDE = 32  # threads
_FEW_SIDE_BY_SIDE = 8  # where slices are joined, so that more threads do it
_LEAST_STEPS = 16  # rows of a thread that adds up
_ENOUGH = 1024  # blocks: rows are not cut into more slices
_STEPS, _MANY = 8, 1 << 14  # the same of a thread that only passes through


class Columns(NamedTuple):
    """The shape of a matrix, and how many of its columns a thread has."""

    rows: int
    columns: int
    width: int

    @classmethod
    def of(cls, rows: int, columns: int, *pitches: int) -> Columns:
        """Choose the width; `pitches` are other numbers that it has to divide."""
        fits = all(number % _WIDE == 0 for number in (columns, *pitches))
        return cls(rows, columns, _WIDE if fits else 1)

    @property
    def groups(self) -> int:
        """How many threads a row takes."""
        return self.columns // self.width

    def threads(self, side_by_side: int = _SIDE_BY_SIDE) -> tuple[int, int, int]:
        """Return threads of a block along a row and a column, and blocks of a row."""
        stride = min(1 << (self.groups - 1).bit_length(), side_by_side)
        return stride, THREADS // stride, -(-self.groups // stride)


def each_column(
    writer: Writer,
    shape: Columns,
    *,
    before: str,
    each: str,
    parameters: Mapping[str, Argument],
) -> None:
    """Append a launch that does `each` for each row r of each group of columns g.

    Both are statements. `before` stands once before the rows of a group, whose columns
    are ``g * W`` to ``g * W + W - 1``.
    """
    stride, lanes, tiles = shape.threads()
    slices, length = cut(shape.rows, tiles, _STEPS * lanes, _MANY)
    writer.launch(
        f"""
  constexpr int W = {shape.width};
  memcfg::each_column<Index>(
      rows, groups, length, lanes, stride, [&](Index g) {{
        {before}
        return [=](Index r) {{
          {each}
        }};
      }});""",
        {**parameters, **_numbers(writer, shape, length, lanes, stride)},
        tiles * slices if shape.rows else 0,
    )


def sum_each_column(
    writer: Writer,
    shape: Columns,
    count: int,
    *,
    before: str,
    each: str,
    parameters: Mapping[str, Argument],
    out: str,
    out_parameters: Mapping[str, Argument],
) -> None:
    """Append the launches that make `count` sums of each column.

    `before` and `each` are as of `each_column`; `each` adds to the doubles
    ``total[sum][j]`` of column ``g * W + j``. `out` says what is done with them: with
    ``sum[i]`` of column `o`.
    """
    stride, lanes, tiles = shape.threads()
    slices, length = cut(shape.rows, tiles, _LEAST_STEPS * lanes, _ENOUGH)
    outs = f"""
        for (int j = 0; j < W; ++j) {{
          const Index o = g * W + j;
          double sum[S];
          for (int i = 0; i < S; ++i) sum[i] = total[i][j];
          {out}
        }}"""
    parts = """
        for (int j = 0; j < W; ++j) {
          for (int i = 0; i < S; ++i) {
            part[(slice * S + i) * (groups * W) + g * W + j] = total[i][j];
          }
        }"""

    def append(
        each: str,
        before: str,
        end: str,
        width: int,
        numbers: Mapping[str, Argument],
        blocks: int,
    ) -> None:
        writer.launch(
            f"""
  constexpr int W = {width}, S = {count};
  memcfg::sum_each_column<Index, S, W>(
      rows, groups, length, lanes, stride,
      [&](Index g) {{
        {before}
        return [=](Index r, double (&total)[S][W]) {{
          {each}
        }};
      }},
      [&](Index g, Index slice, const double (&total)[S][W]) {{{end}
      }});""",
            numbers,
            blocks,
        )

    numbers = {**parameters, **_numbers(writer, shape, length, lanes, stride)}
    if slices == 1:
        together = {**numbers, **out_parameters}
        append(each, before, outs, shape.width, together, tiles)
        return
    part = writer.scratch(8 * slices * count * shape.columns)
    numbers["double* part"] = part
    append(each, before, parts, shape.width, numbers, tiles * slices)
    joined = Columns(slices, shape.columns, 1)
    stride, lanes, tiles = joined.threads(_FEW_SIDE_BY_SIDE)
    append(
        "for (int i = 0; i < S; ++i) total[i][0] += part[(r * S + i) * groups + g];",
        "",
        outs,
        1,
        {
            "const double* part": part,
            **_numbers(writer, joined, slices, lanes, stride),
            **out_parameters,
        },
        tiles,
    )


def _numbers(
    writer: Writer, shape: Columns, length: int, lanes: int, stride: int
) -> dict[str, Argument]:
    return {
        "Index rows": writer.number(shape.rows),
        "Index groups": writer.number(shape.groups),
        "Index length": writer.number(length),
        "unsigned int lanes": u32(lanes),
        "unsigned int stride": u32(stride),
    }
