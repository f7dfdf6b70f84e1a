"""The timeline of a step's memory: a value that draws, writes and prints itself."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from memcfg._html import Row, Section, report
from memcfg._terminal import in_notebook, write
from memcfg.files import write_atomically
from memcfg.timeline._timeline_page import page_of
from memcfg.timeline._timeline_png import png_of
from memcfg.timeline._timeline_svg import svg_of
from memcfg.timeline._timeline_text import text_of
from memcfg.timeline._timeline_values import TimelineValues
from memcfg.timeline._trace_events import trace_events_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SUFFIXES", "MemoryTimeline"]

_HEIGHT = 760  # pixels of a page within a notebook


class MemoryTimeline(TimelineValues):
    """Which tensor had which bytes when, over one step.

    ``print`` shows a map of addresses over time. A notebook shows a picture as the last
    value of a cell, and `show` the page on which one can zoom and search.

    Parameters
    ----------
    title : str
        What it shows, such as ``"Step of 'resnet50, batch 32'"``.
    events : tuple of Event
        What happens one after another, in order.
    boxes : tuple of Box
        The bytes, in order of their allocation.
    planned : tuple of float
        Seconds at which each event begins by the simulator's clock, and at which the
        last one ends. In the record of a resource, the times of the record.
    measured : tuple of float, default ()
        The same in a measured step; empty if it was not measured.
    copies : tuple of Copy, default ()
        Copies and collectives beside the events.
    arrows : tuple of Arrow, default ()
        Tensors that leave and come back.
    limit_bytes : int or None, default None
        The limit; None if there is none.
    peak_bytes : int, default 0
        The predicted peak.
    measured_peak_bytes : int or None, default None
        The measured peak; None if it was not measured.
    measured_bytes : tuple of int, default ()
        Bytes of the pool at each event of a measured step that takes and frees buffers;
        empty for a planned step, whose arena is reserved once.
    has_places : bool, default True
        Whether offsets are addresses. Otherwise an allocator chooses these, and boxes
        are packed for the picture.
    is_recorded : bool, default False
        Whether it is the record of a resource, which has no plan.
    facts : mapping of str to str, default {}
        What else a reader wants to know, such as the device and the method.
    runs : sequence of (int, int), default ((0, 0),)
        Offsets from which on addresses are contiguous, and their addresses: unused
        addresses of a resource are left out.

    Notes
    -----
    A timeline of a plan needs no recording: the plan says where each tensor lies and
    when. Only measured times come from a step that is run for them, apart from
    training.
    """

    def __str__(self) -> str:
        """Return a map of addresses over time, of at most 80 columns."""
        return text_of(self)

    def __repr__(self) -> str:
        return (
            f"<MemoryTimeline: {len(self.boxes)} boxes, {len(self.events)} events, "
            f"peak {self.peak_bytes} B>"
        )

    def _repr_html_(self) -> str:
        """Return a picture and the numbers, without scripts."""
        rows = [Row(label, value) for label, value in self.numbers().items()]
        return report(self.title, [Section("", rows)], svg_of(self, alone=False))

    def to_html(self) -> str:
        """Return the page: one document, which refers to no other file.

        Returns
        -------
        str
            HTML.
        """
        return page_of(self)

    def to_svg(self) -> str:
        """Return the picture as SVG, for light and dark pages.

        Returns
        -------
        str
            A document of its own, which refers to no other file.
        """
        return svg_of(self, alone=True)

    def to_trace_events(self) -> str:
        """Return the events, copies and tensors for Perfetto.

        Returns
        -------
        str
            JSON in Chrome's trace-event format, which https://ui.perfetto.dev opens.
        """
        return trace_events_of(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to a file, as a whole or not at all.

        Parameters
        ----------
        path : str or os.PathLike
            A name that ends in ``.html`` (a page to zoom and search), ``.svg`` or
            ``.png`` (a picture; matplotlib draws the PNG), ``.json`` (for Perfetto) or
            ``.txt`` (``str`` of the timeline).

        Raises
        ------
        ValueError
            If the name has another ending.
        MissingDependencyError
            If the file is a PNG and matplotlib is not installed.
        OSError
            If the file cannot be written.
        """
        suffix = Path(path).suffix.lower()
        if suffix not in SUFFIXES:
            known = ", ".join(SUFFIXES)
            raise ValueError(f"a timeline is {known}, not {os.fspath(path)!r}")
        makers: dict[str, Callable[[], bytes]] = {
            ".html": lambda: self.to_html().encode(),
            ".svg": lambda: self.to_svg().encode(),
            ".png": lambda: png_of(self),
            ".json": lambda: self.to_trace_events().encode(),
            ".txt": lambda: f"{self}\n".encode(),
        }
        write_atomically(path, makers[suffix]())

    def show(self) -> None:
        """Show the page: in the notebook, else in the browser.

        If there is no browser, the text is printed. The page of the browser is a
        temporary file, whose name is printed.

        Raises
        ------
        OSError
            If the temporary file cannot be written.
        """
        if in_notebook():
            from IPython.display import HTML, display

            page = escape(self.to_html(), quote=True)
            style = f"width:100%;height:{_HEIGHT}px;border:0"
            frame = f'<iframe srcdoc="{page}" style="{style}"></iframe>'
            display(HTML(f"<div>{frame}</div>"))
            return
        import tempfile
        import webbrowser

        folder = tempfile.mkdtemp(prefix="memcfg-")
        page_file = Path(folder, "timeline.html")
        self.save(page_file)
        if not webbrowser.open(page_file.as_uri()):
            write(self)
        write(f"The page is {page_file}")


SUFFIXES = (".html", ".svg", ".png", ".json", ".txt")
"""The endings of files that `MemoryTimeline.save` writes."""
