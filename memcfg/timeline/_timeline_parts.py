"""The parts of a timeline: events of the program, boxes of bytes, copies and arrows."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Arrow", "Box", "Copy", "Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """One of the actions that follow each other in a step.

    Parameters
    ----------
    name : str
        The name of the op, or of the tensor that is waited for, encoded or decoded.
    kind : str
        ``"forward"``, ``"backward"`` or ``"update"`` for an op, or ``"wait"``,
        ``"encode"``, ``"decode"``; in the record of a resource ``"allocate"``,
        ``"free"`` or ``"refused"``.
    live_bytes : int
        Bytes in use meanwhile, scratch included.
    again : bool, default False
        Whether the op has been computed before.
    layer : str, default ""
        The layer of the op.
    line : str, default ""
        File and line of the user's program, such as ``"train.py:12"``; empty if it is
        not known.
    """

    name: str
    kind: str
    live_bytes: int
    again: bool = False
    layer: str = ""
    line: str = ""


@dataclass(frozen=True, slots=True)
class Box:
    """Bytes that a tensor has from one event to another.

    Parameters
    ----------
    name : str
        The name of the tensor, or of the op whose scratch it is.
    role : str
        A role of `memcfg.graph.ROLES`, ``"scratch"`` or ``"encoded"``; in the record of
        a resource, the tag of the block.
    offset, nbytes : int
        The first byte and the number of bytes, as they are reserved.
    begin, end : int
        The box is there during the events ``begin`` to ``end - 1``.
    origin : str, default ""
        Where the value comes from: ``"before the step"``, ``"computed"``,
        ``"recomputed"``, ``"swapped in"``, ``"encoded"``, ``"decoded"`` or
        ``"in place"``; empty for scratch.
    op : str, default ""
        The op that makes it; empty if none does.
    layer : str, default ""
        The layer of this op or, if none makes it, of the first that reads it.
    line : str, default ""
        As of `Event`.
    requested_bytes : int or None, default None
        The bytes before rounding; None if they are the same.
    form : str, default ""
        Its dtype and shape, such as ``"float32 (32, 10)"``; empty if unknown.
    """

    name: str
    role: str
    offset: int
    nbytes: int
    begin: int
    end: int
    origin: str = ""
    op: str = ""
    layer: str = ""
    line: str = ""
    requested_bytes: int | None = None
    form: str = ""


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy on a lane, or a collective on the network.

    Parameters
    ----------
    name : str
        The name of the tensor, or of the op.
    queue : str
        The tier and direction of the lane, such as ``"host out"``, or ``"network"``.
    nbytes : int
        The bytes that move, encoded if they are.
    planned : tuple of (float, float)
        When it begins and ends by the simulator's clock, in seconds.
    measured : tuple of (float, float) or None, default None
        The same in the measured step.
    box : int or None, default None
        The index of the box that it reads or writes; None for a collective.
    """

    name: str
    queue: str
    nbytes: int
    planned: tuple[float, float]
    measured: tuple[float, float] | None = None
    box: int | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """A tensor that leaves its bytes and comes back into others.

    Parameters
    ----------
    kind : str
        ``"recomputed"``, ``"swapped in"`` or ``"decoded"``.
    source, target : int
        The indices of the two boxes.
    copies : tuple of int, default ()
        The indices of its copies out and in.
    """

    kind: str
    source: int
    target: int
    copies: tuple[int, ...] = ()
