"""The order along the last axis, and elements by their places along it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.devices.cuda._sources._writer import Writer

__all__ = ["FAMILY"]


def _write_order(writer: Writer) -> None:
    """Write `order`: a thread counts what comes before its element."""
    writer.need(["float32"], ["int32"])
    writer.loop(
        """
        const Index first = i / length * length, own = i - first;
        const float value = x[i];
        Index place = 0;
        for (Index j = 0; j < length; ++j) {
          const float other = x[first + j];
          const float a = descending ? value : other;
          const float b = descending ? other : value;
          const bool before = a < b || (b != b && a == a);
          const bool after = b < a || (a != a && b == b);
          place += before || (!after && j < own);
        }
        y[first + place] = static_cast<int>(own);
        """,
        {
            "const float* x": writer.operand(0),
            "int* y": writer.output(),
            "Index length": writer.number(writer.inputs[0].shape[-1]),
            "Index descending": writer.number(
                int(bool(writer.attributes.get("descending")))
            ),
        },
        writer.outputs[0].size,
    )


def _write_take_along(writer: Writer) -> None:
    writer.need(["float32", "int32"], ["float32"])
    writer.loop(
        """
        const long long index = indices[i];
        const long long place = index < 0 ? index + static_cast<long long>(length)
                                          : index;
        const bool known = place >= 0 && place < static_cast<long long>(length);
        const Index row = i / taken * length;
        y[i] = known ? x[row + static_cast<Index>(place)]
                     : __int_as_float(0x7fc00000);
        """,
        {
            "const float* x": writer.operand(0),
            "const int* indices": writer.operand(1),
            "float* y": writer.output(),
            "Index length": writer.number(writer.inputs[0].shape[-1]),
            "Index taken": writer.number(writer.inputs[1].shape[-1]),
        },
        writer.outputs[0].size,
    )


def _write_put_along(writer: Writer) -> None:
    """Write `put_along`: a thread adds what belongs to its element, in order."""
    writer.need(["int32", "float32"], ["float32"])
    writer.loop(
        """
        const Index row = i / length, own = i - row * length;
        float total = 0;
        for (Index j = row * taken; j < (row + 1) * taken; ++j) {
          const long long index = indices[j];
          const long long place = index < 0 ? index + static_cast<long long>(length)
                                            : index;
          if (place == static_cast<long long>(own)) total += values[j];
        }
        y[i] = total;
        """,
        {
            "const int* indices": writer.operand(0),
            "const float* values": writer.operand(1),
            "float* y": writer.output(),
            "Index length": writer.number(writer.outputs[0].shape[-1]),
            "Index taken": writer.number(writer.inputs[0].shape[-1]),
        },
        writer.outputs[0].size,
    )


FAMILY: dict[str, Callable[[Writer], None]] = {
    "order": _write_order,
    "take_along": _write_take_along,
    "put_along": _write_put_along,
}
