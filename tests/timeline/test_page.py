"""The page of a timeline: self-contained, of bounded size, with the plan's numbers."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from networks import chain, noisy
from swapping import Swapping
from timelines import overlaps

import memcfg.timeline
from memcfg import models, nn
from memcfg.graph import Graph, Op, Tensor
from memcfg.plan import memory_timeline, share, simulate, sqrt_checkpoint
from memcfg.timeline import Box

HOSTILE = "</script><script>alert('x')</script><!-- <script> & \x1b[31m\u2028"
FOLDER = Path(memcfg.timeline.__file__).parent


class Reader(HTMLParser):
    """Reads the data, the tags, and what the page refers to."""

    def __init__(self):
        super().__init__()
        self.tags, self.ids, self.data, self.refers = [], set(), "", []
        self._in_data = False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        values = dict(attrs)
        self.ids |= {values["id"]} if "id" in values else set()
        self.refers += [v for k, v in attrs if k in ("src", "href", "action", "data")]
        self._in_data = values.get("id") == "data"

    def handle_data(self, data):
        if self._in_data:
            self.data += data
            self._in_data = False


def read(timeline):
    reader = Reader()
    reader.feed(timeline.to_html())
    reader.close()
    return reader, json.loads(reader.data)


def swapped():
    graph = noisy(2, 1, 4, 2)
    return graph, Swapping(("host",))(graph)


def step_of(model, batch):
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    return model.graph(batch)


@pytest.mark.parametrize("make", [swapped, lambda: (chain(), share()(chain()))])
def test_the_numbers_of_the_page_are_the_plans(make):
    graph, plan = make()
    timeline = memory_timeline(graph, plan)
    _, data = read(timeline)
    boxes, events = data["boxes"], data["events"]
    live = [0] * len(events["kind"])
    for begin, end, nbytes in zip(
        boxes["begin"], boxes["end"], boxes["bytes"], strict=True
    ):
        for event in range(begin, end):
            live[event] += nbytes
    assert live == events["live"]
    computed = [
        nbytes
        for kind, nbytes in zip(events["kind"], live, strict=True)
        if data["kinds"][kind] in ("forward", "backward", "update")
    ]
    assert computed == [nbytes for _, nbytes in simulate(graph, plan).timeline]
    ends = map(sum, zip(boxes["offset"], boxes["bytes"], strict=True))
    assert max(ends) == data["peak"] == plan.peak_bytes
    names = [data["text"][name] for name in boxes["name"]]
    assert names == [box.name for box in timeline.boxes]
    placed = [
        Box(name, "", *place)
        for name, *place in zip(
            names,
            *(boxes[key] for key in ("offset", "bytes", "begin", "end")),
            strict=True,
        )
    ]
    assert overlaps(placed) == []
    clock = [round(time * 1e9) for time in timeline.planned]
    assert data["clocks"] == {"planned": clock}
    assert len(data["copies"]["name"]) == len(timeline.copies)
    assert len(data["roleColours"]) == len(data["roles"])
    assert len(data["layerColours"]) == len(data["layers"])


def test_the_page_has_the_bytes_and_times_that_were_measured():
    model = nn.Sequential([nn.Input((8,)), nn.Dense(16, "relu"), nn.Dense(3)])
    model.compile("sgd", "mse")
    model.train_on_batch(np.ones((4, 8)), np.ones((4, 3)))
    report = model.memory_report(verify=True)
    timeline = model.memory_timeline(verify=True)
    _, data = read(timeline)
    assert data["measuredPeak"] == data["peak"] == report.measured_peak_bytes
    clock = [round(time * 1e9) for time in timeline.measured]
    assert data["clocks"]["measured"] == clock
    assert clock[-1] > 0
    model.close()


def test_the_page_refers_to_nothing_and_its_text_is_data():
    tensors = (Tensor(HOSTILE, 64, "input"), Tensor(f"y{HOSTILE}", 64, "output"))
    op = Op(HOSTILE, "relu", "forward", (0,), (1,), group=HOSTILE)
    graph = Graph(HOSTILE, tensors, (op,), keep=(1,))
    reader, data = read(memory_timeline(graph, share()(graph)))
    assert reader.refers == []
    assert reader.tags.count("script") == 2  # the data, and what draws them
    assert HOSTILE in data["text"]
    assert HOSTILE in data["title"]
    page = memory_timeline(graph, share()(graph)).to_html()
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(", page)


def test_the_script_finds_its_elements_and_is_short():
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    reader, _ = read(memory_timeline(chain(), share()(chain())))
    assert set(re.findall(r'\$\("([^"]+)"\)', script)) <= reader.ids
    assert script.count("\n") < 600
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    for name in reader.ids - {"data", "help"}:
        assert f'"{name}"' in script or f"#{name}" in page


def test_controls_have_names_for_those_who_do_not_see_them():
    page = (FOLDER / "page.html").read_text(encoding="utf-8")
    for control in re.findall(r"<(?:input|select)[^>]*>", page):
        before = page[: page.index(control)]
        assert before.rfind("<label") > before.rfind("</label"), control
    for button in re.findall(r"<button[^>]*>[^<]*<", page):
        assert "aria-label" in button or re.search(r">\w[^<]+<", button), button
    assert 'role="application"' in page
    assert 'aria-live="polite"' in page


def test_a_page_of_resnet50_has_less_than_two_megabytes():
    graph = step_of(models.resnet50(), 32)
    timeline = memory_timeline(graph, sqrt_checkpoint()(graph))
    assert len(timeline.to_html()) < 2e6
    assert len(timeline.to_svg()) < 1e6
    assert any(arrow.kind == "recomputed" for arrow in timeline.arrows)
    line = next(box.line for box in timeline.boxes if box.name == "conv1/conv2d")
    assert re.fullmatch(r"(.*/)?memcfg/models/\w+\.py:\d+", line)


@pytest.mark.slow
def test_a_page_of_a_thousand_layers_has_less_than_five_megabytes():
    graph = step_of(models.resnet(depth=1001), 4)
    timeline = memory_timeline(graph, share()(graph))
    assert len(timeline.boxes) > 20_000
    assert len(timeline.to_html()) < 5e6
    assert len(timeline.to_svg()) < 2e6


BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
# What a reader does: searches, steps to a box, zooms to it, switches all there is.
VISIT = """<script>
const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
const visit = { whole: view.x1 - view.x0, colours: new Set() };
const keys = $("keys").querySelectorAll("button");
visit.roles = Array.from(keys, (key) => key.textContent);
$("search").value = "relu"; search(); press(".");
visit.found = $("found").textContent;
visit.about = $("status").textContent;
press("Enter"); visit.near = view.x1 - view.x0; press("0");
visit.again = view.x1 - view.x0; press("s"); visit.low = view.y0; press("Escape");
for (const key of "c x a m + - ArrowLeft ArrowUp , n N *".split(" ")) press(key);
draw();
const seen = new Uint32Array(pen.getImageData(0, 0, 800, 600).data.buffer);
for (const colour of seen) visit.colours.add(colour);
visit.colours = visit.colours.size;
visit.by = [$("by").value, $("axis").value, $("arrows").checked];
document.documentElement.dataset.visit = JSON.stringify(visit);
</script>"""
FAILED = "<script>addEventListener('error', (e) => document.title = e.message)</script>"


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_browser_draws_the_page_and_obeys_its_keys(tmp_path):
    graph, plan = swapped()
    page = memory_timeline(graph, plan).to_html()
    path = tmp_path / "step.html"
    page = page.replace("<style>", FAILED + "<style>", 1)
    path.write_text(page.replace("</body>", VISIT + "</body>"), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,800"]
    done = subprocess.run(
        [BROWSER, *options, path.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "<title>Memory of " in done.stdout, done.stdout[:300]
    (found,) = re.findall(r'data-visit="([^"]*)"', done.stdout)
    visit = json.loads(unescape(found))
    timeline = memory_timeline(graph, plan)
    every = timeline.boxes
    live = [event.live_bytes for event in timeline.events]
    peak = live.index(max(live))
    sizes = dict.fromkeys((box.role for box in every), 0)
    for box in every:
        sizes[box.role] += box.nbytes if box.begin <= peak < box.end else 0
    assert 0 in sizes.values()  # a role without bytes at the peak has a colour, too
    for words in visit["roles"]:
        role, size, unit = words.rsplit(" ", 2)
        exact = sizes.pop(role.replace(" ", "_"))
        unit_bytes = 1024 ** ("B", "KiB").index(unit)
        assert abs(float(size) * unit_bytes - exact) <= 0.005 * unit_bytes
    assert sizes == {}
    boxes = [b for b in every if "relu" in b.name + b.op]
    assert visit["found"] == f"{len(boxes)} boxes"
    assert "relu" in visit["about"]
    assert visit["near"] < visit["whole"] == visit["again"]
    assert visit["low"] > 0  # the state is below
    assert visit["by"] == ["layer", "ops", False]
    assert visit["colours"] > 20
