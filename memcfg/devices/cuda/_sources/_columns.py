"""Loops over matrices whose columns are channels, four columns a thread if divisible.

A thread stays in its columns, so values that depend only on the channel are computed
once, and several sums of a column are computed in one pass. Lanes and slices, and so
the order of sums, depend only on lengths.
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
_SIDE_BY_SIDE = 32  # adjacent threads along a row
_FEW_SIDE_BY_SIDE = 8  # the same when slices are added, so that more threads do it
_LEAST_STEPS = 16  # min. rows of a thread in sums
_ENOUGH = 1024  # max. blocks by slicing rows in sums
_STEPS, _MANY = 8, 1 << 14  # min. rows and max. blocks of loops without sums


class Columns(NamedTuple):
    """The shape of a matrix, and the number of columns of a thread."""

    rows: int
    columns: int
    width: int

    @classmethod
    def of(cls, rows: int, columns: int, *pitches: int) -> Columns:
        """Choose the width; `pitches` are other numbers that it must divide."""
        fits = all(number % _WIDE == 0 for number in (columns, *pitches))
        return cls(rows, columns, _WIDE if fits else 1)

    @property
    def groups(self) -> int:
        """Number of threads for a row."""
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
    """Append a launch that runs `each` for each row r of each group of columns g.

    `before` and `each` are statements. `before` runs once before the rows of a group,
    whose columns are ``g * W`` to ``g * W + W - 1``.
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
    """Append the launches that compute `count` sums of each column.

    `before` and `each` are as for `each_column`; `each` adds to the doubles
    ``total[sum][j]`` of column ``g * W + j``. The statements `out` use the sums
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
