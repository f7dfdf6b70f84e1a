"""Datasets and iterables as batches that come one by one.

Owns the check of each batch before its step, and that no batch is held longer than its
step. Refuses to start threads; origins do.
"""

from __future__ import annotations

from collections import deque
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.inputs._array_checks import check_labels, check_shape, check_x, check_y
from memcfg.nn.inputs._batch import Batch
from memcfg.nn.inputs._elements import unpack
from memcfg.nn.inputs._stream_specs import BATCH_FIRST, check_spec, sample_shape_of
from memcfg.runtime import with_margin
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Never, Self

    from memcfg.data import PipelineReport
    from memcfg.memory import Resource
    from memcfg.nn.inputs._origins import Items, Origin
    from memcfg.nn.inputs._source import Target
    from memcfg.nn.layers._symbolic import Shape

__all__ = ["StreamSource"]

_FLOAT = 4  # bytes of a number
_LABEL = 8  # bytes of a label, as most datasets have them


class StreamSource:
    """Batches of an origin; see `Source`.

    Parameters
    ----------
    origin : Origin
        Where they come from.
    resource : callable
        Gives the resource that is to hold what is read ahead.
    labelled : bool
        Whether labels are read.
    """

    def __init__(
        self, origin: Origin, resource: Callable[[], Resource], *, labelled: bool
    ) -> None:
        self._origin = origin
        self._resource = resource
        self._labelled = labelled
        self._target: Target | None = None
        self._begun: _StreamPass | None = None
        self._last: _StreamPass | None = None
        known = origin.outlook
        self.sizes = list(known.sizes)
        self.sample_shape: Shape | None = sample_shape_of(known.spec)

    @property
    def steps(self) -> int | None:
        """How many batches a pass has; None where that is not known."""
        return self._origin.outlook.batches

    @property
    def endless(self) -> bool:
        """Whether a pass has no end."""
        return self._origin.outlook.endless

    @property
    def restartable(self) -> bool:
        """Whether there can be more than one pass."""
        return self._origin.restartable

    def count(self, steps: int | None) -> None:
        """Return None: batches may be of any size."""

    def promised(self, target: Target) -> int:
        """Return what the blocks of a thread take that is not at work yet."""
        if self._begun is not None or not (self._origin.threaded and self.sizes):
            return 0
        size, blocks = max(self.sizes), self._origin.outlook.blocks
        x = align_up(_FLOAT * size * prod(target.shape))
        y = 0 if target.classes is None else align_up(_LABEL * size)
        return with_margin(blocks * (x + y), blocks) if blocks else 0

    def buffer_that_fits(self, target: Target, missing: int) -> int | None:
        """Take as many blocks away as bytes are missing."""
        known, promised = self._origin.outlook, self.promised(target)
        if not promised:
            return None
        fits = known.buffer_size + -missing * known.blocks // promised
        return fits if fits > 0 else None

    def look(self) -> None:
        """Learn from the first batch; see `Source.look`.

        With a thread, two are taken: it has its memory when the second is there, so
        that a plan that comes afterwards knows what is left.
        """
        self._begun = self._made()
        size, self.sample_shape = self._begun.look(2 if self._origin.threaded else 1)
        self.sizes = self.sizes or [size]

    def aim(self, target: Target) -> None:
        """Compare with what is known; batches are looked at one by one."""
        self._target = target
        check_spec(self._origin.outlook.spec, target)

    def begin(self) -> _StreamPass:
        """Take over what `look` began, or begin a pass."""
        begun, self._begun = self._begun, None
        return self._made() if begun is None else begun

    def close(self) -> None:
        """Close what `look` began, if nobody took it over."""
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.close()

    def report(self) -> PipelineReport | None:
        """Tell what was chosen; see `Source.report`."""
        return None if self._last is None else self._last.report

    def _made(self) -> _StreamPass:
        items = self._origin.begin(self._resource())
        self._last = _StreamPass(items, self._as_batch, once=not self.restartable)
        return self._last

    def _as_batch(self, element: Any) -> Batch:
        """Check an element, against the model too if that is known."""
        x, y = unpack(element, labelled=self._labelled)
        if isinstance(y, np.generic | int):
            raise ValueError(f"y is one label, {y}, and x one sample: {BATCH_FIRST}")
        samples, target = check_x(x), self._target
        if target is not None:
            check_shape(samples, target.shape)
        if self._labelled:
            y = check_y(y, len(samples))
            if target is not None and target.classes is not None:
                y = check_labels(y, target.classes)
        return Batch(samples, y, slice(0, len(samples)), in_place=True)


class _StreamPass:
    """A pass over a stream; what it hands out it lets go before the next.

    An error says which batch it is of, and has no frame that keeps the batch's arrays.
    """

    def __init__(
        self, items: Items, as_batch: Callable[[Any], Batch], *, once: bool
    ) -> None:
        self._items = items
        self._once = once  # it cannot begin anew
        self._as_batch = as_batch
        self._ahead: deque[Any] = deque()  # elements that were taken, not handed out
        self._handed: Batch | None = None
        self._number = 1  # of the next batch
        self.report: PipelineReport | None = None  # once it is closed
        self._over = False
        self._failure: BaseException | None = None  # behind what was taken

    def look(self, count: int) -> tuple[int, Shape]:
        """Take elements ahead; tell size and sample shape of the first.

        An error behind the first is told behind its step, unless it is an interrupt or
        a lack of memory, with which no step should begin.
        """
        self._take()
        if not self._ahead:
            raise ValueError(
                "the data is empty: it has no batch"
                + (" left, or never had one" if self._once else "")
            )
        try:
            while len(self._ahead) < count and not self._over:
                self._take()
        except (KeyboardInterrupt, MemoryError):
            raise
        except BaseException as error:
            self._over, self._failure = True, error
        batch = self._checked(self._ahead[0])
        batch.let_go()  # the failure's frames would keep it
        return batch.size, batch.sample_shape

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Batch:
        self._let_go()
        if not self._ahead:
            self._take()
        if not self._ahead:
            self._end()
        self._handed = self._checked(self._ahead.popleft())
        self._number += 1
        return self._handed

    def close(self) -> None:
        """Let everything go, and end the pass."""
        if self.report is None:
            self.report = self._items.report()
        self._over, self._failure = True, None
        self._let_go()
        self._ahead.clear()
        self._items.close()

    def _take(self) -> None:
        if self._over:
            return
        try:
            self._ahead.append(next(self._items))
        except StopIteration:
            self._over = True

    def _end(self) -> Never:
        failure, self._failure = self._failure, None
        try:
            raise StopIteration if failure is None else failure
        finally:
            del failure  # it refers to this frame by now

    def _let_go(self) -> None:
        handed, self._handed = self._handed, None
        if handed is not None:
            handed.let_go()

    def _checked(self, element: Any) -> Batch:
        try:
            return self._as_batch(element)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            problem = kind(f"batch {self._number}: {error}")
        del element
        try:
            raise problem
        finally:
            del problem  # it refers to this frame by now
