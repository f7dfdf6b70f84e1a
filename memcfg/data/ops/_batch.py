"""Elements stacked along a new first axis: `Dataset.batch`."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._checks import count, flag
from memcfg.data._closing import closing
from memcfg.data.elements._spec import stacked
from memcfg.data.engine._parallel_step import checked_calls, is_ordered
from memcfg.data.ops._batch_maker import Filler
from memcfg.data.ops._map import Map, ParallelMap, unmapped
from memcfg.data.ops._node import INFINITE, UNKNOWN, Node
from memcfg.data.ops._parallel_batch import Order, ParallelBatches
from memcfg.data.rows._readers import ElementDrawer, RowDrawer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from memcfg.data.engine._run import Run
    from memcfg.data.ops._batch_maker import Maker
    from memcfg.data.ops._node import RowStream
    from memcfg.data.rows._readers import Drawer

__all__ = ["Batch", "batches", "cardinality_of_batches", "regrouped"]


@dataclass(frozen=True, eq=False)
class Batch(Node):
    """Elements in batches.

    Parameters
    ----------
    source : Node
        The step before.
    batch_size : int
        Elements a batch, at least 1.
    drop_remainder : bool
        Whether a last batch with fewer elements is left out.
    calls : int or None
        Threads that make batches; -1 is AUTOTUNE, None makes one after the other.
    deterministic : bool or None
        Whether batches keep their order; None: as the options say.
    name : str
        For messages.

    Raises
    ------
    TypeError
        If an argument is of another type.
    ValueError
        If a number is too small.
    """

    source: Node
    batch_size: int
    drop_remainder: bool
    calls: int | None
    deterministic: bool | None
    name: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", count(self.batch_size, "batch_size"))
        flag(self.drop_remainder, "drop_remainder")
        object.__setattr__(self, "calls", checked_calls(self.calls, self.deterministic))

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The step before."""
        return (self.source,)

    @property
    def element_spec(self) -> Any:
        """That of the step before, with an axis in front."""
        size = self.batch_size if self.drop_remainder else None
        return stacked(self.source.element_spec, size)

    @property
    def cardinality(self) -> int:
        """The number of batches."""
        return cardinality_of_batches(
            self.source, self.batch_size, drop_remainder=self.drop_remainder
        )

    def elements(self, run: Run) -> Iterator[Any]:
        """Begin a pass.

        Parameters
        ----------
        run : Run
            What the nodes of this pass share.

        Returns
        -------
        iterator
            Over the batches.
        """
        source, function = self._unmapped()
        calls, deterministic = self._how()
        if function is None and calls is None and source.has_rows:
            return _gathered(source.rows(run), self._room, self._least, run)
        drawer = drawer_of(source, run)
        is_certain = self.source.cardinality >= 0
        if calls is None:
            filler = Filler(
                run, self._room, self._least, function, is_certain=is_certain
            )
            return batches(filler, drawer)
        order = Order(
            self._room,
            self._least,
            self.cardinality,
            is_certain,
            is_ordered(run, deterministic),
        )
        is_map = isinstance(self.source, ParallelMap)
        name = f"{self.source.name}+{self.name}" if is_map else self.name
        return ParallelBatches(run, drawer, function, calls, name, order)

    def _unmapped(self) -> tuple[Node, Callable[..., Any] | None]:
        """Take over what maps do, unless one thread is to do it and several batch."""
        if self.calls is not None and type(self.source) is Map:
            return self.source, None
        return unmapped(self.source)

    def _how(self) -> tuple[int | None, bool | None]:
        """Tell how many threads there are, and whether the order is kept."""
        if isinstance(self.source, ParallelMap):
            return self.source.calls, self.source.deterministic
        return self.calls, self.deterministic

    @property
    def _room(self) -> int:
        """How many elements a batch has at most."""
        total = self.source.cardinality
        return self.batch_size if total < 0 else max(1, min(self.batch_size, total))

    @property
    def _least(self) -> int:
        """How many elements a batch has at least."""
        return self.batch_size if self.drop_remainder else 1


def cardinality_of_batches(
    source: Node, batch_size: int, *, drop_remainder: bool
) -> int:
    """Count the batches of a pass.

    Parameters
    ----------
    source : Node
        What is batched.
    batch_size : int
        Elements a batch.
    drop_remainder : bool
        Whether a last batch with fewer elements is left out.

    Returns
    -------
    int
        As for `Node.cardinality`.
    """
    total = source.cardinality
    if total in (INFINITE, UNKNOWN):
        return total
    return total // batch_size if drop_remainder else -(-total // batch_size)


def drawer_of(source: Node, run: Run) -> Drawer:
    """Begin a pass over what batches are made of.

    Parameters
    ----------
    source : Node
        The step before.
    run : Run
        The pass.

    Returns
    -------
    Drawer
        Over row numbers if the step has them, else over elements.
    """
    if source.has_rows:
        return RowDrawer(source.rows(run), run)
    return ElementDrawer(source.elements(run))


def batches(maker: Maker, drawer: Drawer) -> Iterator[Any]:
    """Make batches until the end.

    Parameters
    ----------
    maker : Maker
        Makes them; its memory is given back at the end.
    drawer : Drawer
        Where the elements come from; closed at the end.

    Yields
    ------
    nest of numpy.ndarray
        A batch.
    """
    with contextlib.closing(drawer), maker:
        while (batch := maker.make(drawer)) is not None:
            yield batch
            del batch  # its block is needed


def _gathered(stream: RowStream, room: int, least: int, run: Run) -> Iterator[Any]:
    take = stream.source.take
    for rows in regrouped(stream.chunks, room, run):
        if len(rows) >= least:
            yield take(rows)


def regrouped(
    chunks: Iterator[npt.NDArray[np.int64]], size: int, run: Run
) -> Iterator[npt.NDArray[np.int64]]:
    """Cut a stream of row numbers into groups of one size.

    Parameters
    ----------
    chunks : iterator of numpy.ndarray
        Of any lengths; a chunk is not looked at again once the next was asked for.
    size : int
        Numbers a group.
    run : Run
        The pass.

    Yields
    ------
    numpy.ndarray
        int64; the last one may be shorter. It is written again for the next.
    """
    with run.outside():
        group = np.empty(size, np.int64)
    filled = 0
    for chunk in _kept(chunks, run):
        begin = 0
        while begin < len(chunk):
            end = begin + size - filled
            if not filled and end <= len(chunk):
                yield chunk[begin:end]
            else:
                part = chunk[begin:end]
                group[filled : filled + len(part)] = part
                filled += len(part)
                if filled == size:
                    yield group
                    filled = 0
            begin = end
    if filled:
        yield group[:filled]


def _kept(
    chunks: Iterator[npt.NDArray[np.int64]], run: Run
) -> Iterator[npt.NDArray[np.int64]]:
    """Pull chunks that lie in no workspace: groups are cut from one for a while."""
    with closing(chunks):
        while True:
            with run.outside():
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield chunk
