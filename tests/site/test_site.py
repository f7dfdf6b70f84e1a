"""The documentation site: its links, its names, and how it looks in a browser.

``python docs/site FOLDER`` builds it, and MEMCFG_SITE names its folder; `tox run -e
docs` does both. MEMCFG_SCREENSHOTS names a folder for screenshots to look at.
"""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from browser import PROGRAM, Browser

SITE = Path(os.environ.get("MEMCFG_SITE", "nowhere"), "html")
pytestmark = pytest.mark.skipif(
    not SITE.is_dir(), reason="MEMCFG_SITE names no site: tox run -e docs"
)
WIDTHS = 400, 900, 1400  # pixels
LINK = re.compile(r'<(?:a|link|script|img|iframe)\b[^>]*?\s(?:href|src)="([^"]*)"')
ID = re.compile(r'\sid="([^"]*)"')
COMMENT = re.compile(r"<!--.*?-->|<script.*?</script>", re.DOTALL)

# Elements that reach over the right edge, and that no box scrolls.
WIDE = """(() => {
  const width = document.documentElement.clientWidth;
  const scrolls = element => {
    for (let each = element.parentElement; each; each = each.parentElement) {
      const style = getComputedStyle(each);
      if (each.tagName != "BODY" && each.tagName != "HTML"
          && /auto|scroll/.test(style.overflowX)) return true;
      if (style.position == "fixed" || style.visibility == "hidden") return true;
    }
    return false;
  };
  const wide = [...document.querySelectorAll("article *, h1, p, table, img, pre")]
    .filter(each => each.getBoundingClientRect().right > width + 1)
    .filter(each => each.getBoundingClientRect().width > 0 && !scrolls(each))
    .slice(0, 5)
    .map(each => each.tagName + "." + each.className + ": "
         + (each.textContent || "").trim().slice(0, 60));
  const most = document.documentElement.scrollWidth;
  return most > width ? [`the page is ${most} pixels wide`, ...wide] : wide;
})()"""

# A page of each kind, which is looked at in all sizes, light and dark.
SHOWN = (
    *("index", "overview", "planning", "which-lever", "gallery", "speed"),
    *("methods/vdnn", "methods/index", "notebooks/03-recomputation", "results/compare"),
    *("notebooks/06-pytorch", "api/memcfg.plan", "api/memcfg.nn.layers", "timeline"),
    *(
        "source/examples/32_five_methods.py",
        "decisions/0039-the-site-is-made-by-sphinx",
    ),
)


def pages() -> list[Path]:
    return sorted(SITE.rglob("*.html"))


def name_of(page: Path) -> str:
    return page.relative_to(SITE).with_suffix("").as_posix()


@pytest.fixture(scope="module")
def browser():
    if PROGRAM is None:
        pytest.fail("needs Chromium: apt-get install chromium")
    with Browser() as opened:
        yield opened


def test_links_lead_to_pages_and_their_headings():
    texts = {page: page.read_text(encoding="utf-8") for page in pages()}
    ids = {page: {*ID.findall(text)} for page, text in texts.items()}
    wrong, count = [], 0
    for page, text in texts.items():
        for link in {*LINK.findall(COMMENT.sub("", text))}:
            if link.startswith(("https://", "data:", "#")) and link != "#":
                if link.startswith("#") and unquote(link[1:]) not in ids[page]:
                    wrong.append((name_of(page), link))
                continue
            path, _, anchor = unquote(link).partition("#")
            path = path.partition("?")[0]
            target = (page.parent / path).resolve() if path else page
            count += 1
            if not target.is_file() or (anchor and anchor not in ids.get(target, ())):
                wrong.append((name_of(page), link))
    assert wrong[:20] == []
    assert count > 1000


def test_nothing_is_loaded_from_elsewhere():
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|link)[^>]*(?:src|href)="https?:', text)


def test_every_exported_name_is_listed_and_described():
    """Each name of a module is a row of its page; what it leads to has an id."""
    found = 0
    for page in sorted((SITE / "api").glob("memcfg*.html")):
        module = page.stem
        if module.startswith("memcfg.torch"):
            continue  # needs PyTorch
        text = page.read_text(encoding="utf-8")
        for name in importlib.import_module(module).__all__:
            assert re.search(rf"<td><code>(?:<a [^>]*>)?{name}<", text), (module, name)
            found += 1
    assert found > 1500
    assert (SITE / "api" / "memcfg.torch.html").is_file()


def test_pages_fit_all_widths(browser):
    """Sources scroll in a box, and decisions are alike: those in `SHOWN` are enough."""
    wrong = []
    for page in pages():
        if name_of(page).startswith(("source/", "decisions/0")) and (
            name_of(page) not in SHOWN
        ):
            continue
        browser.open(page.as_uri())
        for width in WIDTHS:
            browser.resize(width, 900)
            wrong += [(name_of(page), width, each) for each in browser.evaluate(WIDE)]
    assert wrong[:20] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_follow_the_setting_of_the_system(browser, scheme, tmp_path):
    """Screenshots are for people; text and ground differ in lightness in each."""
    folder = Path(os.environ.get("MEMCFG_SCREENSHOTS", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    shade = """(() => {
      const light = value => value.match(/[\\d.]+/g).slice(0, 3)
        .reduce((sum, each) => sum + Number(each), 0) / 765;
      const style = getComputedStyle(document.querySelector("article p, article h1"));
      const ground = getComputedStyle(document.body).backgroundColor;
      return [light(style.color), light(ground)];
    })()"""
    for name in SHOWN:
        browser.open((SITE / f"{name}.html").as_uri(), scheme)
        ink, ground = browser.evaluate(shade)
        assert (ground > 0.8) if scheme == "light" else (ground < 0.2), name
        assert abs(ink - ground) > 0.5, name
        for width in WIDTHS:
            browser.resize(width, 1000)
            picture = folder / f"{name.replace('/', '-')}-{width}-{scheme}.png"
            browser.screenshot(picture)
            assert picture.stat().st_size > 5_000


def test_the_search_finds_pages_and_names(browser):
    for words, wanted in {
        "checkmate": "methods/checkmate",
        "chen_sqrt": "api/",
    }.items():
        browser.open((SITE / "search.html").as_uri() + f"?q={words}")
        browser.wait_for("document.querySelectorAll('ul.search li a').length > 1")
        links = browser.evaluate(
            "[...document.querySelectorAll('ul.search li a')].map(each => each.href)"
        )
        assert any(wanted in link for link in links), links
