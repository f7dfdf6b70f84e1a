"""Reports in notebooks: whole HTML, escaped, of bounded size, of the rows of text."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from long_names import LONG, a_plan, a_report

import memcfg as mc
from memcfg import memory, nn
from memcfg.runtime import TimelineEntry

HOSTILE = "</td><script>alert('x')</script><img src=x onerror=\"y\"> & \x1b[31m\u202e"
EMPTY = {"rect", "polyline", "img", "br"}


class Reader(HTMLParser):
    """Reads a page, and refuses one whose tags are not closed in their order."""

    def __init__(self):
        super().__init__()
        self.open, self.tags, self.text = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert "url(" not in value
            assert name not in ("src", "href", "class", "id")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def read(thing):
    reader = Reader()
    reader.feed(thing._repr_html_())
    reader.close()
    assert not reader.open
    assert reader.tags <= {
        *("div", "strong", "table", "tr", "th", "td", "span", "pre"),
        *("svg", "rect", "title", "polyline"),
    }
    return " ".join(reader.text)


def a_history(epochs=3, name="accuracy", count=1):
    history = nn.callbacks.History()
    for epoch in range(epochs):
        more = {f"{name}_{i}": 0.5 for i in range(count)}
        loss = float("nan") if epoch == 1 else 1 / (epoch + 1)
        history.on_epoch_end(epoch, {"loss": loss, "val_loss": 2.0, **more})
    return history


MAKERS = {
    "plan": a_plan,
    "report": a_report,
    "history": lambda name: a_history(name=name),
}


@pytest.mark.parametrize("name", [HOSTILE, LONG, "短い" * 90, "", "a  b"])
@pytest.mark.parametrize("kind", MAKERS)
def test_names_are_text_and_no_page(kind, name):
    thing = MAKERS[kind](name)
    text = read(thing)
    assert "\x1b" not in text
    assert "\u202e" not in text
    if name == HOSTILE:
        assert "<script>alert('x')" in text
        assert "\\x1b[31m" in text


@pytest.mark.parametrize("kind", ["plan", "report"])
def test_what_the_text_tells_is_there(kind):
    thing = MAKERS[kind]("net")
    shown = read(thing)
    for word in str(thing).replace("█", " ").split():
        assert word in shown


@pytest.mark.parametrize(
    "thing",
    [
        a_history(5000, "x" * 500, 300),
        replace(
            a_report("net"),
            timeline=tuple(
                TimelineEntry("x" * 500, f"phase {i % 3}", i, i, 0.1)
                for i in range(20_000)
            ),
            by_role={f"role {i}": i for i in range(500)},
        ),
    ],
    ids=["history", "report"],
)
def test_a_page_of_thousands_is_summarised(thing):
    assert "more" in read(thing)
    assert len(thing._repr_html_()) < 80_000


def test_nothing_is_shown_of_nothing():
    assert "History of 0 epochs" in read(nn.callbacks.History())
    assert "0 ops" in read(replace(a_report("net"), timeline=(), by_role={}))


ROOMS = (
    "compression",
    "data",
    "evaluation",
    "memory",
    "nn",
    "parallel",
    "plan",
    "runtime",
)
PARTS = {"StageReport"}  # rows of a report


def test_every_report_can_be_the_last_value_of_a_cell():
    found = set()
    for room in ROOMS:
        module = importlib.import_module(f"memcfg.{room}")
        for name in module.__all__:
            kind = getattr(module, name)
            ending = re.search(r"(Report|Estimate|Timeline|History|^Plan)$", name)
            if isinstance(kind, type) and ending and name not in PARTS:
                assert callable(getattr(kind, "_repr_html_", None)), f"{room}.{name}"
                found.add(name)
    assert {"PipelineReport", "ReplayReport", "RanksEstimate", "Report"} <= found


def test_a_report_of_text_has_all_its_lines():
    trace = memory.Trace(action=[0, 1], address=[64, 64], nbytes=[10, 10])
    replayed = memory.replay(trace, memory.Pool(name=HOSTILE))
    elements = iter(mc.data.Dataset.range(20).batch(4).prefetch(2))
    list(elements)
    for each in (replayed, elements.report()):
        shown = read(each)
        for word in re.findall(r"\w+", str(each)):
            assert word in shown
    assert "<script" not in replayed._repr_html_()
    assert "Steps of a pipeline" in read(elements.report())


def test_a_pool_shows_its_numbers_and_who_holds_them():
    pool = memory.Pool(limit="1MiB", name=HOSTILE)
    block = pool.allocate(4096, tag="images")
    shown = read(pool)
    for word in ("current_bytes", "4.00 KiB", "limit_bytes", "1.00 MiB", "images"):
        assert word in shown
    for each in (pool.stats(), memory.StatisticsResource(pool)):
        assert "peak_bytes" in read(each)
    block.free()
    assert "held by" not in read(pool)


def test_a_workspace_shows_its_numbers():
    workspace = mc.workspace("images")
    with workspace:
        workspace.empty((3, 4))
    for each in (workspace, workspace.stats()):
        assert "last_cycle_bytes 128 B" in " ".join(read(each).split())
