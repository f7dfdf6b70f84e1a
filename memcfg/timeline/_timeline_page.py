"""The page of a timeline: one HTML document with its data and its script.

The data are columns of numbers; names are indices of tables. So a step of a thousand
layers stays small. What is too small to see is merged when it is drawn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcfg._html import as_html
from memcfg.timeline._timeline_colours import KINDS, colour_of_queue, colours_of
from memcfg.timeline._timeline_text import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.timeline._timeline_values import TimelineValues

__all__ = ["data_of", "page_of"]

_NANO = 1e9  # nanoseconds of a second


class _Names:
    """A table of names; equal ones have one index."""

    def __init__(self, known: Iterable[str] = ()) -> None:
        self._places = {name: i for i, name in enumerate(known)}

    def __getitem__(self, name: str) -> int:
        return self._places.setdefault(name, len(self._places))

    def __iter__(self) -> Any:
        return iter(self._places)


def page_of(timeline: TimelineValues) -> str:
    """Return the page; it refers to no other file."""
    page, script = (
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("page.html", "page.js")
    )
    data = json.dumps(data_of(timeline), separators=(",", ":"), allow_nan=False)
    # The only sequences that end or nest a script element begin with this character.
    data = data.replace("<", "\\u003c")
    head, _, rest = page.partition("@DATA@")
    before, _, after = rest.partition("@SCRIPT@")
    title = as_html(timeline.title)
    return "".join((head.replace("@TITLE@", title), data, before, script, after))


def data_of(timeline: TimelineValues) -> dict[str, Any]:
    """Return what the page draws, as JSON has it; times are nanoseconds."""
    text, layers, roles = _Names([""]), _Names([""]), _Names()
    origins, queues = _Names([""]), _Names()
    events, boxes, copies = timeline.events, timeline.boxes, timeline.copies
    seen = {each.kind for each in events}
    kinds = _Names(kind for kind in KINDS if kind in seen)
    clocks = {"planned": _nanoseconds(timeline.planned)}
    if timeline.measured:
        clocks["measured"] = _nanoseconds(timeline.measured)
    measured = [each.measured for each in copies if each.measured is not None]
    if len(measured) < len(copies):
        measured = []
    columns: dict[str, Any] = {
        "events": {
            "name": [text[each.name] for each in events],
            "kind": [kinds[each.kind] for each in events],
            "live": [each.live_bytes for each in events],
            "again": [int(each.again) for each in events],
            "layer": [layers[each.layer] for each in events],
            "line": [text[each.line] for each in events],
        },
        "boxes": {
            "name": [text[each.name] for each in boxes],
            "role": [roles[each.role] for each in boxes],
            "offset": [each.offset for each in boxes],
            "bytes": [each.nbytes for each in boxes],
            "begin": [each.begin for each in boxes],
            "end": [each.end for each in boxes],
            "origin": [origins[each.origin] for each in boxes],
            "op": [text[each.op] for each in boxes],
            "layer": [layers[each.layer] for each in boxes],
            "line": [text[each.line] for each in boxes],
            "requested": [each.requested_bytes or 0 for each in boxes],
            "form": [text[each.form] for each in boxes],
        },
        "copies": {
            "name": [text[each.name] for each in copies],
            "queue": [queues[each.queue] for each in copies],
            "bytes": [each.nbytes for each in copies],
            "begin": _nanoseconds(each.planned[0] for each in copies),
            "end": _nanoseconds(each.planned[1] for each in copies),
            "mbegin": _nanoseconds(begin for begin, _ in measured),
            "mend": _nanoseconds(end for _, end in measured),
            "box": [-1 if each.box is None else each.box for each in copies],
        },
        "arrows": [
            [origins[each.kind], each.source, each.target, list(each.copies)]
            for each in timeline.arrows
        ],
    }
    return {
        "title": timeline.title,
        "facts": [list(pair) for pair in timeline.numbers().items()],
        "limit": timeline.limit_bytes,
        "peak": timeline.peak_bytes,
        "measuredPeak": timeline.measured_peak_bytes,
        "measuredBytes": list(timeline.measured_bytes),
        "recorded": timeline.is_recorded,
        "places": timeline.has_places,
        "runs": [list(run) for run in timeline.runs],
        "clocks": clocks,
        **columns,
        "text": list(text),
        "roles": list(roles),
        "layers": list(layers),
        "kinds": list(kinds),
        "origins": list(origins),
        "queues": list(queues),
        "roleColours": colours_of(roles),
        "layerColours": colours_of(layers),
        "kindColours": [KINDS[kind] for kind in kinds],
        "queueColours": [colour_of_queue(queue) for queue in queues],
        "asText": text_of(timeline),
    }


def _nanoseconds(seconds: Iterable[float]) -> Sequence[int]:
    return [round(each * _NANO) for each in seconds]
