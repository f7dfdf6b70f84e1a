"""The page of a timeline in a browser: what is drawn, and what keys and mouse do.

What the page writes on its canvas is noted, so that its places can be compared.
MEMCFG_SCREENSHOTS names a folder for screenshots to look at.
"""

from __future__ import annotations

import os
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from browser import PROGRAM, Browser
from networks import chain
from swapping import Swapping

from memcfg import memory
from memcfg.plan import memory_timeline, sqrt_checkpoint

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs Chromium")
WIDTHS = 400, 900, 1400  # pixels
HEIGHT = 900
LETTERS = 10  # pixels of the smallest that can be read

# Notes the words that are drawn since the canvas was cleared, with their boxes.
NOTE = """(() => {
  window.written = [];
  const own = CanvasRenderingContext2D.prototype, write = own.fillText;
  const fill = own.fillRect;
  own.fillText = function (words, x, y) {
    const width = this.measureText(words).width, size = parseFloat(this.font);
    const part = {right: 1, center: 0.5}[this.textAlign] || 0;
    window.written.push({words, x: x - part * width, y: y - size / 2, width, size});
    return write.apply(this, arguments);
  };
  own.fillRect = function (x, y, w, h) {
    if (this.canvas.id == "canvas" && x === 0 && y === 0) window.written = [];
    return fill.apply(this, arguments);
  };
})()"""

# Boxes of what stands around the canvas, by what they are.
PARTS = """[...document.querySelectorAll(
  "h1, dl div, .bar label, .bar button, #keys > small, canvas, summary")].map(each => {
    const {left, top, right, bottom} = each.getBoundingClientRect();
    const name = each.tagName + " " + each.textContent.slice(0, 30);
    return {name, left, top, right, bottom};
  }).filter(each => each.right > each.left && each.bottom > each.top)"""


def recorded():
    pools = [memory.Pool(limit="1MiB", name=name) for name in ("first", "second pool")]
    with memory.MemoryHistory(*pools) as history:
        blocks = []
        for number in range(60):
            tag = f"a holder with quite a long name, number {number % 9}"
            pool = pools[number % 2]
            blocks.append(pool.allocate(1000 * (1 + number % 7), tag=tag))
            if number % 3 == 0:
                blocks.pop(0).free()
    for block in blocks:
        block.free()
    return history.timeline()


def swapped():
    graph = chain(batch=8, depth=5)
    return memory_timeline(graph, Swapping(("host",))(graph), limit_bytes=None)


def recomputed():
    graph = chain(batch=8, depth=12)
    plan = sqrt_checkpoint()(graph)
    return memory_timeline(graph, plan)


MAKERS = {"recorded": recorded, "swapped": swapped, "recomputed": recomputed}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    made = {}
    for name, make in MAKERS.items():
        timeline = make()
        timeline.save(folder / f"{name}.html")
        made[name] = timeline, (folder / f"{name}.html").as_uri()
    return made


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        opened.call("Page.addScriptToEvaluateOnNewDocument", source=NOTE)
        yield opened


def painted(browser):
    """Wait until the next frames are drawn."""
    frame = "requestAnimationFrame"
    browser.evaluate(f"new Promise(d => {frame}(() => {frame}(() => d(true))))")


def show(browser, page, width, scheme="light"):
    browser.resize(width, HEIGHT)
    browser.open("about:blank")
    browser.open(page, scheme)
    painted(browser)


def overlap(a, b):
    across = min(a["right"], b["right"]) - max(a["left"], b["left"])
    down = min(a["bottom"], b["bottom"]) - max(a["top"], b["top"])
    return across > 1 and down > 1


def words_of(browser):
    """Return what is written on the canvas, as boxes."""
    return [
        {
            "name": each["words"],
            "left": each["x"],
            "right": each["x"] + each["width"],
            "top": each["y"],
            "bottom": each["y"] + each["size"],
            "size": each["size"],
        }
        for each in browser.evaluate("window.written")
        if each["words"]
    ]


def view(browser):
    return browser.evaluate("({...view})")


def key(browser, name, **more):
    text = name if len(name) == 1 else ""
    browser.call("Input.dispatchKeyEvent", type="keyDown", key=name, text=text, **more)
    browser.call("Input.dispatchKeyEvent", type="keyUp", key=name, **more)
    painted(browser)


def mouse(browser, kind, x, y, **more):
    browser.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)


def middle(browser):
    """Return a point in the middle of the addresses, in pixels of the window."""
    return browser.evaluate(
        """(() => {
          const { left, top } = canvas.getBoundingClientRect();
          return [left + LEFT + shape.wide / 2, top + TOP + shape.main / 2];
        })()"""
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", MAKERS)
def test_nothing_overlaps_and_all_can_be_read(browser, pages, name, width, scheme):
    show(browser, pages[name][1], width, scheme)
    folder = os.environ.get("MEMCFG_SCREENSHOTS")
    if folder:
        browser.screenshot(Path(folder, f"timeline-{name}-{width}-{scheme}.png"))
    parts = browser.evaluate(PARTS)
    assert len(parts) > 10
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    for one in parts:
        assert one["left"] >= 0, one
        assert one["right"] <= width + 1, one
    for one, other in combinations(parts, 2):
        assert not overlap(one, other), (one, other)
    words = words_of(browser)
    assert len(words) > 10
    canvas = browser.evaluate("shape.width")
    for one in words:
        assert one["size"] >= LETTERS, one
        assert one["left"] >= 0, one
        assert one["right"] <= canvas, one
    for one, other in combinations(words, 2):
        assert not overlap(one, other), (one, other)
    back, ink = browser.evaluate('[paint("back"), paint("soft")]')
    assert contrast(back, ink) > 4.5  # of normal text, by WCAG 2


def contrast(*colours):
    """Return the contrast of two colours by WCAG 2, from 1 to 21."""
    found = []
    for colour in colours:
        parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
        low = parts / 12.92
        linear = np.where(parts <= 0.03928, low, ((parts + 0.055) / 1.055) ** 2.4)
        found.append(float(linear @ (0.2126, 0.7152, 0.0722)) + 0.05)
    return max(found) / min(found)


def test_the_wheel_zooms_where_the_pointer_is(browser, pages):
    show(browser, pages["recomputed"][1], 900)
    x, y = middle(browser)
    at = f"ux({x} - canvas.getBoundingClientRect().left)"
    whole, time = view(browser), browser.evaluate(at)
    mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=-240)
    painted(browser)
    near = view(browser)
    assert near["x1"] - near["x0"] < 0.5 * (whole["x1"] - whole["x0"])
    assert (near["y0"], near["y1"]) == (whole["y0"], whole["y1"])
    assert browser.evaluate(at) == pytest.approx(time, rel=0.01)
    mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=-240, modifiers=8)  # Shift
    painted(browser)
    assert view(browser)["y1"] - view(browser)["y0"] < 0.5 * whole["y1"]
    for _ in range(9):
        mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=240)
        mouse(browser, "mouseWheel", x, y, deltaX=0, deltaY=240, modifiers=8)
    painted(browser)
    assert view(browser) == pytest.approx(whole)


def test_keys_zoom_move_and_choose(browser, pages):
    show(browser, pages["recomputed"][1], 900)
    whole = view(browser)
    key(browser, "+")
    near = view(browser)
    assert near["x1"] - near["x0"] == pytest.approx(0.6 * whole["x1"], rel=0.01)
    key(browser, "ArrowRight")
    assert view(browser)["x0"] > near["x0"]
    key(browser, "*")
    assert view(browser)["y1"] - view(browser)["y0"] == pytest.approx(
        0.6 * whole["y1"], rel=0.01
    )
    key(browser, "0")
    assert view(browser) == whole
    key(browser, ".")
    first = browser.evaluate("state.box")
    assert browser.evaluate('$("status").textContent')
    key(browser, ".")
    assert browser.evaluate("state.box") != first
    key(browser, ",")
    key(browser, ",")  # to the last one, which is short
    key(browser, "Enter", windowsVirtualKeyCode=13)
    assert view(browser)["x1"] - view(browser)["x0"] < whole["x1"]
    key(browser, "c")
    assert browser.evaluate("state.by") == "layer"
    key(browser, "x")
    assert browser.evaluate("state.axis") == "ops"
    key(browser, "a")
    assert browser.evaluate("state.arrows") is False


def test_what_is_searched_is_found_and_the_rest_fades(browser, pages):
    timeline, page = pages["recomputed"]
    show(browser, page, 900)
    key(browser, "/")
    assert browser.evaluate("document.activeElement.id") == "search"
    for letter in "conv":
        browser.call("Input.insertText", text=letter)
    painted(browser)

    def has(box):
        texts = (box.name, box.op, box.line, box.layer, box.role)
        return any("conv" in text.lower() for text in texts)

    wanted = sum(map(has, timeline.boxes))
    assert 0 < wanted < len(timeline.boxes)
    assert browser.evaluate('$("found").textContent') == f"{wanted} boxes"
    key(browser, "Enter", windowsVirtualKeyCode=13)
    assert has(timeline.boxes[browser.evaluate("state.box")])
    key(browser, "Escape", windowsVirtualKeyCode=27)
    assert browser.evaluate('$("found").textContent') == ""


def test_the_pointer_names_a_box_and_drags_the_view(browser, pages):
    timeline, page = pages["recomputed"]
    show(browser, page, 900)
    largest = max(range(len(timeline.boxes)), key=lambda i: timeline.boxes[i].nbytes)
    x, y = browser.evaluate(
        f"""(() => {{ const [x, y, w, h] = boxAt({largest});
        const box = canvas.getBoundingClientRect();
        return [box.left + x + w / 2, box.top + y + h / 2]; }})()"""
    )
    mouse(browser, "mouseMoved", x, y)
    painted(browser)
    tip = browser.evaluate('$("tip").innerText')
    box = timeline.boxes[largest]
    assert box.name in tip
    assert f"{box.nbytes:,} B" in tip
    inside = browser.evaluate('$("tip").getBoundingClientRect().right')
    assert inside <= 900
    key(browser, "+")
    before = view(browser)
    mouse(browser, "mousePressed", x, y, button="left", clickCount=1)
    mouse(browser, "mouseMoved", x - 50, y, button="left", buttons=1)
    mouse(browser, "mouseReleased", x - 50, y, button="left", clickCount=1)
    painted(browser)
    assert view(browser)["x0"] > before["x0"]


def test_it_prints_black_on_white_whatever_the_screen_shows(browser, pages):
    show(browser, pages["recomputed"][1], 900, "dark")
    dark = browser.evaluate('paint("back")')
    pdf = browser.call("Page.printToPDF", printBackground=True)["data"]
    assert len(pdf) > 10_000
    browser.evaluate(
        "addEventListener('beforeprint', () => { window.printed = ["
        "paint('back'), [...pen.getImageData(1, 1, 1, 1).data], shape.height] })"
    )
    browser.call("Page.printToPDF", printBackground=True)
    back, pixel, height = browser.evaluate("window.printed")
    assert (back, pixel) == ("#ffffff", [255, 255, 255, 255])
    assert height <= 660  # with the text above it, on one sheet
    painted(browser)
    assert browser.evaluate('paint("back")') == dark != "#ffffff"
