"""Batches that several threads make: a parallel map, or a parallel batch.

Owns how a batch is divided among threads: into parts of so many rows that handing a
part over costs little against the function, which for a quick function is the whole
batch. What is mapped is written straight into its row, and a batch lies in a block that
is used again when its consumer has let go of it.
"""

from __future__ import annotations

from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from memcfg.data.elements._form import Form
from memcfg.data.elements._structure import flatten
from memcfg.data.engine._parallel_step import Crew
from memcfg.data.engine._shared_source import Tap
from memcfg.data.ops._batch_maker import Filler
from memcfg.data.ops._batch_parts import Shop
from memcfg.data.ops._parallel_map import pace
from memcfg.data.ops._pending_batch import Draft

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn, Self

    from memcfg.data.engine._run import Run
    from memcfg.data.rows._readers import Drawer

__all__ = ["Order", "ParallelBatches"]

FIRST_PARTS, MOST_PARTS = 8, 64  # of a batch


@dataclass(frozen=True, slots=True)
class Order:
    """What batches are wanted.

    Parameters
    ----------
    room : int
        Elements a batch, at most.
    least : int
        Elements a batch, at least.
    batches : int
        How many there are; negative where that is not known.
    is_certain : bool
        Whether it is known that there are elements for a whole batch.
    is_ordered : bool
        Whether batches come in the order of their elements.
    """

    room: int
    least: int
    batches: int
    is_certain: bool
    is_ordered: bool


class ParallelBatches:
    """An iterator over batches.

    Parameters
    ----------
    run : Run
        The pass.
    drawer : Drawer
        What batches are made of; closed at the end.
    function : callable or None
        Applied to each element.
    calls : int
        Threads; -1 is AUTOTUNE.
    name : str
        Of the step.
    order : Order
        What batches are wanted.
    """

    def __init__(
        self,
        run: Run,
        drawer: Drawer,
        function: Callable[..., Any] | None,
        calls: int,
        name: str,
        order: Order,
    ) -> None:
        self._run = run
        self._order = order
        self._tap = Tap(drawer)
        self._crew = Crew(run, calls, name, self._tap)
        self._shop = shop = Shop(run, self._tap, function, order.room, name)
        run.on_close(shop)
        blocks = shop.blocks  # a report must not keep the function
        blocks.budgeted = self._crew.tuned is not None
        self._crew.held = lambda: blocks.most_bytes
        self._filler = Filler(  # of the consumer's own thread
            run, order.room, order.least, function, is_certain=order.is_certain
        )
        self._drafts: deque[Draft] = deque()  # in the order of their elements
        self._left = order.batches if order.batches >= 0 else 1 << 62
        self._parts = min(FIRST_PARTS, order.room)  # of a batch
        self._most = 1 << 30  # drafts at a time, as far as there was memory

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        began = perf_counter()
        if self._crew.works:
            self._submit()
        if not self._drafts:
            return self._made_alone(began)
        draft = self._chosen()
        if draft.has_failed:
            self._fail(draft)
        if draft.count >= self._order.least:
            return self._finished(draft, began)
        if not self._shop.refused:
            self._end()
        self._do_with_less()
        return self._made_alone(began)

    def _submit(self) -> None:
        """Have as many rows in work as there are threads for, and one batch more."""
        room, parts = self._order.room, self._parts
        size = -(-room // parts)
        self._crew.ahead = min(self._most, -(-self._crew.parallelism // parts) + 1)
        most = min(self._crew.ahead, self._left)
        while len(self._drafts) < most and not self._tap.ended:
            draft = Draft()
            for begin in range(0, room, size):
                rows = min(size, room - begin)
                task = partial(self._shop.part, draft, begin, rows)
                draft.tickets.append(self._crew.submit(task))
            self._drafts.append(draft)

    def _chosen(self) -> Draft:
        """Wait for a draft that is to be handed on next."""
        if self._order.is_ordered:
            return self._drafts.popleft().wait()
        while True:
            for draft in self._drafts:
                if draft.is_done and draft.wait().count == self._order.room:
                    self._drafts.remove(draft)
                    return draft
            open_ = [one for draft in self._drafts for one in draft.tickets]
            left = [ticket for ticket in open_ if not ticket.done]
            if not left:  # the last ones: too few elements, a failure, a refusal
                return self._drafts.popleft().wait()
            if not self._crew.first(left).done:
                raise StopIteration

    def _finished(self, draft: Draft, began: float) -> Any:
        """Make a batch of a draft."""
        batch = draft.batch()
        if draft.columns is None:
            self._learn(Form(draft.first()), draft.count)
        now = perf_counter()
        self._note(draft.count, draft.seconds, now - began)
        return batch

    def _made_alone(self, began: float) -> Any:
        """Make a batch in the consumer's thread."""
        batch = self._tap.read_alone(self._make_here)
        if batch is None:
            self._end()
        rows = [len(leaf) for leaf in flatten(batch)]
        seconds = perf_counter() - began
        self._note(rows[0] if rows else 1, seconds, seconds)
        return batch

    def _make_here(self, drawer: Drawer) -> Any:
        filler, shop = self._filler, self._shop
        if shop.form is None:
            known = filler.form is not None
            with nullcontext() if known else self._run.outside():
                batch = filler.make(drawer)
            if filler.is_certain and filler.form is not None:
                self._learn(filler.form, self._order.room)
            return batch
        block = shop.blocks.borrow(shop.form.nbytes(self._order.room))
        if block is None:
            return filler.make(drawer)
        try:
            with block:
                return filler.make(drawer)
        finally:
            shop.blocks.give_back(block)

    def _learn(self, form: Form, count: int) -> None:
        """Note what elements are like, if batches can be made without looking first."""
        whole = self._order.is_certain or count == self._order.room
        if whole and not form.has_text:
            self._shop.form = form
            nbytes = form.nbytes(self._order.room)
            self._run.budget.note_item(nbytes)
            if self._crew.tuned is not None:
                self._crew.tuned.item_bytes = nbytes

    def _note(self, count: int, seconds: float, waited: float) -> None:
        """Note what a batch took, and divide the next ones by it."""
        room = self._order.room
        size = pace(seconds / count, room)
        self._parts = min(-(-room // size), MOST_PARTS)
        self._crew.delivered(count, waited)
        self._left -= 1

    def _do_with_less(self) -> None:
        """Begin fewer batches: there was no memory for so many."""
        for draft in self._drafts:
            draft.wait()
        self._drafts.clear()
        self._shop.refused = False
        self._shop.trim()
        self._most = max(1, self._crew.ahead - 1)
        if self._crew.tuned is not None:
            self._crew.tuned.refused()

    def _fail(self, draft: Draft) -> None:
        self.close()
        try:
            draft.throw()
        finally:
            del draft  # its failure refers to this frame by now

    def _end(self) -> NoReturn:
        self.close()
        raise StopIteration

    def close(self) -> None:
        """End the threads, without waiting, and let go of all memory."""
        self._crew.stop(wait=False)
        self._shop.stop(wait=False)
        self._drafts.clear()
