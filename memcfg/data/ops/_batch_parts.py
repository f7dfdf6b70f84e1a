"""Parts of batches, as threads make them.

Owns where everything lies meanwhile: a batch in a block of its own, what is made on
the way in a workspace of the thread's. Refuses to know which parts there are, and what
becomes of them.
"""

from __future__ import annotations

from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.data._closing import closing
from memcfg.data.elements._columns import Columns
from memcfg.data.elements._structure import map_structure
from memcfg.data.elements._user_functions import apply, is_unpacked, stopped
from memcfg.data.engine._block_pool import Blocks, Scratches
from memcfg.data.ops._pending_batch import Part

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.data.elements._form import Form
    from memcfg.data.engine._run import Run
    from memcfg.data.engine._shared_source import Tap
    from memcfg.data.ops._pending_batch import Draft
    from memcfg.data.rows._readers import Drawer

__all__ = ["Shop"]


class Shop:
    """What threads need to make parts of batches.

    Parameters
    ----------
    run : Run
        The pass.
    tap : Tap
        What elements are made of.
    function : callable or None
        Applied to each element.
    room : int
        Elements a batch, at most.
    name : str
        Of the step.

    Attributes
    ----------
    form : Form or None
        What elements are like, if that is known, they have no text, and there are
        elements for a whole batch. None: elements are collected.
    refused : bool
        Whether there was no memory for a batch. Nothing is drawn any more then.
    blocks : Blocks
        Where batches lie.
    """

    def __init__(
        self,
        run: Run,
        tap: Tap[Drawer],
        function: Callable[..., Any] | None,
        room: int,
        name: str,
    ) -> None:
        self.form: Form | None = None
        self.refused = False
        self.blocks = Blocks(run, name)
        self._scratches = Scratches(run)
        self._run = run
        self._tap = tap
        self._function = function
        self._room = room

    def part(self, draft: Draft, begin: int, size: int, number: int) -> Part:
        """Make a part.

        Parameters
        ----------
        draft : Draft
            Of which batch.
        begin : int
            The first row.
        size : int
            How many rows.
        number : int
            Of the turn in which its elements are drawn.

        Returns
        -------
        Part
            With what was raised, if anything was.
        """
        part = Part(begin)
        workspace = self._scratches.borrow()
        try:
            with self._run.allocator(), workspace:  # it tells why there is no memory
                self._make(part, draft, size, number)
        except BaseException as error:
            part.failure = error
            self._tap.ended = True
        self._scratches.give_back(workspace)
        return part

    def _make(self, part: Part, draft: Draft, size: int, number: int) -> None:
        draw = partial(self._draw, draft, part.begin, size)
        found = self._tap.read(number, draw)
        if not (found and found[0]):
            return
        drawn, elements = found
        began = perf_counter()
        part.count = len(drawn)
        with closing(elements):
            if draft.columns is None:
                with self._run.outside():
                    part.elements = [self._applied(element) for element in elements]
            else:
                self._write(part, draft.columns, elements)
        part.seconds = (perf_counter() - began) / part.count

    def _draw(
        self, draft: Draft, begin: int, size: int, drawer: Drawer
    ) -> tuple[list[Any], Iterator[Any]] | None:
        """Draw what a part is made of, while nobody else draws."""
        if not begin and not self.refused:
            self._open(draft)
        if self.refused or self._tap.ended:
            return None
        if draft.columns is None:
            with self._run.outside():  # elements outlive this cycle of the workspace
                drawn = drawer.draw(size)
        else:
            drawn = drawer.draw(size)
        if len(drawn) < size:
            self._tap.ended = True
        return drawn, drawer.elements(drawn)

    def _open(self, draft: Draft) -> None:
        """Make the arrays of a batch, if it is known what its elements are like."""
        form = self.form
        if form is None:
            return
        block = self.blocks.borrow(form.nbytes(self._room))
        if block is None:
            self.refused = True
            return
        with block:
            draft.columns = Columns(form, self._room)
        self.blocks.give_back(block)

    def _write(self, part: Part, columns: Columns, elements: Iterator[Any]) -> None:
        first = next(elements)
        unpack = is_unpacked(first)
        first = self._applied(first)
        if not columns.form.fits(first):  # a batch of another form, or an error
            self._copy(part, first, elements)
            return
        columns.put(part.begin, first)
        del first  # its room is the next element's
        row, end = part.begin + 1, part.begin + part.count
        try:
            columns.fill(row, elements, self._function, unpack=unpack, stop=end)
        except StopIteration as error:
            raise stopped() from error

    def _copy(self, part: Part, first: Any, elements: Iterator[Any]) -> None:
        """Collect elements, some of which lie in the workspace that is current."""
        results = (first, *map(self._applied, elements))
        with self._run.outside():
            copies = [map_structure(np.copy, result) for result in results]
        part.elements = [map_structure(lambda leaf: leaf[()], each) for each in copies]

    def _applied(self, element: Any) -> Any:
        return element if self._function is None else apply(self._function, element)

    def trim(self) -> None:
        """Let go of the memory that threads keep for their next parts."""
        self._scratches.trim()

    def stop(self, *, wait: bool) -> bool:
        """Let go of all memory.

        Parameters
        ----------
        wait : bool
            Not used.

        Returns
        -------
        bool
            True.
        """
        self.blocks.close()
        self._scratches.close()
        return True
