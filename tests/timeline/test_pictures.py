"""Pictures of timelines: rectangles stand where the bytes are."""

from __future__ import annotations

import io
import re
import sys
from xml.etree import ElementTree

import pytest
from networks import chain, noisy
from swapping import Swapping

from memcfg.errors import MissingDependencyError
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import memory_timeline, share, sqrt_checkpoint
from memcfg.timeline import MemoryTimeline

SVG = "{http://www.w3.org/2000/svg}"


def swapped():
    graph = noisy(2, 1, 4, 2)
    return memory_timeline(graph, Swapping(("host",))(graph))


def large(count=8):
    """A chain of one-megabyte tensors, one second an op."""
    tensors = [Tensor("x", 2**20, "input")]
    tensors += [Tensor(f"t{i}", 2**20, "activation") for i in range(1, count)]
    ops = tuple(
        Op(f"op{i}", "relu", "forward", (i - 1,), (i,), seconds=1.0)
        for i in range(1, count)
    )
    return Graph("large", tuple(tensors), ops, keep=(count - 1,))


def named_rectangles(text):
    """The rectangles that have a title, by the tensor's name."""
    found = {}
    for each in ElementTree.fromstring(text).iter(f"{SVG}rect"):
        title = each.find(f"{SVG}title")
        if title is not None:
            sizes = [float(each.get(key)) for key in ("x", "y", "width", "height")]
            found[title.text.split(":")[0]] = sizes
    return found


def test_rectangles_are_as_long_as_their_time_and_as_high_as_their_bytes():
    graph = large()
    timeline = memory_timeline(graph, share()(graph))
    shown = named_rectangles(timeline.to_svg())
    assert shown.keys() == {box.name for box in timeline.boxes}
    left = min(x for x, *_ in shown.values())
    wide = max(x + w for x, _, w, _ in shown.values()) - left
    low = max(y + h for _, y, _, h in shown.values())
    high = low - min(y for _, y, _, _ in shown.values())
    top = max(box.offset + box.nbytes for box in timeline.boxes)
    for box in timeline.boxes:
        x, y, w, h = shown[box.name]
        begin, end = timeline.planned[box.begin], timeline.planned[box.end]
        whole = timeline.planned[-1]
        assert (x - left) / wide == pytest.approx(begin / whole, abs=0.01)
        assert w / wide == pytest.approx((end - begin) / whole, abs=0.01)
        assert (low - y - h) / high == pytest.approx(box.offset / top, abs=0.01)
        assert h / high == pytest.approx(box.nbytes / top, abs=0.01)


def test_files_are_what_their_names_say(tmp_path):
    timeline = swapped()
    assert isinstance(timeline, MemoryTimeline)
    timeline.save(tmp_path / "step.svg")
    ElementTree.parse(tmp_path / "step.svg")
    pytest.importorskip("matplotlib")
    timeline.save(tmp_path / "step.PNG")
    image = (tmp_path / "step.PNG").read_bytes()
    assert image.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = (int.from_bytes(image[at : at + 4]) for at in (16, 20))
    assert width > 1000
    assert height > 600
    with pytest.raises(ValueError, match=r"a timeline is \.html, \.svg"):
        timeline.save(tmp_path / "step.gif")
    assert {path.suffix for path in tmp_path.iterdir()} == {".svg", ".PNG"}


def test_a_png_has_names_within_their_boxes_and_a_key_of_phases(monkeypatch, tmp_path):
    figure = pytest.importorskip("matplotlib.figure").Figure
    drawn, save = [], figure.savefig
    monkeypatch.setattr(
        figure,
        "savefig",
        lambda self, *a, **k: (drawn.append(self), save(self, *a, **k)),
    )
    tensors = [Tensor("x", 2**20, "input")]
    names = [f"block{i}/conv2d/gradient_kernel" for i in range(1, 8)]
    tensors += [Tensor(name, 2**20, "activation") for name in names]
    phases = ["forward"] * 4 + ["backward"] * 2 + ["update"]
    ops = tuple(
        Op(f"op{i}", "relu", phase, (i,), (i + 1,), seconds=0.01)
        for i, phase in enumerate(phases)
    )
    graph = Graph("named", tuple(tensors), ops, keep=(7,))
    timeline = memory_timeline(graph, share()(graph))
    timeline.save(tmp_path / "step.png")
    (figure,) = drawn
    places, _, lanes = figure.axes
    known = {box.name: box for box in timeline.boxes}
    assert len(places.texts) > 4
    assert any("…" in text.get_text() for text in places.texts)
    for text in places.texts:
        begin, _, end = text.get_text().partition("…")
        (box,) = (
            box
            for name, box in known.items()
            if name.startswith(begin)
            and name.endswith(end)
            and timeline.planned[box.begin]
            <= text.get_position()[0]
            < timeline.planned[box.end]
        )
        right = text.get_window_extent().transformed(places.transData.inverted()).x1
        assert right <= timeline.planned[box.end]
    keys = [text.get_text() for text in lanes.get_legend().get_texts()]
    assert keys == ["forward", "backward", "update"]
    assert [text.get_text() for text in lanes.get_xticklabels()][1].endswith(" ms")


def test_a_png_without_matplotlib_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"memcfg\[plots\]"):
        swapped().save(tmp_path / "step.png")
    assert list(tmp_path.iterdir()) == []


def test_the_limit_and_the_peak_are_named():
    graph = large()
    plan = share()(graph, 2**22)
    svg = memory_timeline(graph, plan).to_svg()
    assert "limit 4.00 MiB" in svg
    assert "predicted peak 2.00 MiB" in svg
    assert "(above)" in svg  # it is out of the picture
    measured = memory_timeline(graph, plan, measured_peak_bytes=plan.peak_bytes)
    assert "peak, predicted and measured 2.00 MiB" in measured.to_svg()


def test_a_notebook_gets_a_picture_without_scripts():
    html = memory_timeline(chain(), share()(chain()))._repr_html_()
    assert "<svg" in html
    assert not re.search(r"<script|<style|\son\w+=|href=|src=", html)
    ElementTree.fromstring(html)  # all its tags are closed


def test_text_is_a_map_of_at_most_80_columns(monkeypatch):
    timeline = memory_timeline(large(), share()(large()))
    lines = str(timeline).splitlines()
    assert max(map(len, lines)) <= 80
    rows = [line for line in lines if "│" in line]
    assert len(rows) == 16
    letters = [letter for row in rows for letter in row.split("│")[1]]
    drawn = sum(letter in "IA" for letter in letters) / (16 * 66)
    area = sum(box.nbytes * (box.end - box.begin) for box in timeline.boxes)
    top, events = timeline.peak_bytes, len(timeline.events)
    assert drawn == pytest.approx(area / (top * events), abs=0.03)
    plain = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", plain)
    str(timeline).encode("ascii")


def test_nothing_is_drawn_of_an_empty_step(tmp_path):
    graph = Graph("empty", (), ())
    timeline = memory_timeline(graph, share()(graph))
    assert "nothing was allocated" in str(timeline)
    for suffix in ("html", "svg", "json", "txt"):
        timeline.save(tmp_path / f"step.{suffix}")
    timeline._repr_html_()


def test_show_opens_the_page_in_a_browser_or_prints(monkeypatch, capsys, tmp_path):
    opened = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda url: opened.append(url) or True)
    timeline = memory_timeline(large(), share()(large()))
    timeline.show()
    (page,) = tmp_path.glob("memcfg-*/timeline.html")
    assert opened == [page.as_uri()]
    assert capsys.readouterr().out.split() == ["The", "page", "is", str(page)]
    monkeypatch.setattr("webbrowser.open", lambda url: False)
    timeline.show()
    assert "Memory of 'large'" in capsys.readouterr().out


def lane_of(text):
    """The fills of the first lane's rectangles, which are as high as no others."""
    rectangles = ElementTree.fromstring(text).iter(f"{SVG}rect")
    return [each.get("fill") for each in rectangles if each.get("height") == "12"]


def test_ops_that_run_again_are_striped_in_the_lane_too():
    graph = large(24)
    plain = lane_of(memory_timeline(graph, share()(graph)).to_svg())
    assert not any(fill.startswith("url") for fill in plain)
    graph = chain(depth=12)
    plan = sqrt_checkpoint()(graph)
    timeline = memory_timeline(graph, plan)
    again = [event for event in timeline.events if event.again]
    assert again
    striped = [f for f in lane_of(timeline.to_svg()) if f.startswith("url")]
    assert 0 < len(striped) <= len(again)


def test_a_phase_that_takes_no_time_is_not_named():
    tensors = (
        Tensor("x", 64, "input"),
        Tensor("y", 64, "activation"),
        Tensor("z", 64, "output"),
    )
    ops = (
        Op("a", "relu", "forward", (0,), (1,), seconds=1.0),
        Op("b", "relu", "update", (1,), (2,), seconds=0.0),
    )
    graph = Graph("short", tensors, ops, keep=(2,))
    text = memory_timeline(graph, share()(graph)).to_svg()
    assert ">forward<" in text
    assert ">update<" not in text
