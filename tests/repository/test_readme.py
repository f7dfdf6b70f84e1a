"""What the README, CONTRIBUTING, docs/ and bench/results/ show is what happens.

The blocks of a page run in their order, as one program. A block of `text` is what the
block before it prints, with `...` for what differs from run to run; in one of
`text measured` the numbers may differ, and on another machine some lines.
"""

from __future__ import annotations

import doctest
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from difflib import SequenceMatcher
from itertools import pairwise
from pathlib import Path

import pytest
from modules import HAS_TORCH

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "bench" / "results"
PAGES = [
    README,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(RESULTS.glob("*.md")),
]
GATE = ROOT / ".ci" / "gate.toml"
BLOCK = re.compile(
    r"^```(python|bash|text|text measured)\n(.*?)^```$", re.DOTALL | re.MULTILINE
)
PICTURE = re.compile(r"!\[[^]]*\]\(([^)\s]+)\)")
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
WIDTH, FRONT_PAGE = 88, 150  # columns of a line of prose, lines of the README
ALIKE = 0.8  # the part of the lines that is the same on every machine

# Runs blocks from its standard input; each output ends in a NUL.
UNASKED = "ignore:this processor has no instructions for bfloat16:RuntimeWarning"
RUNNER = """
import json, subprocess, sys
blocks, names = json.load(sys.stdin), {"__name__": "__main__"}
for language, source, place in blocks:
    if language == "python":
        exec(compile("\\n" * place + source, "the page", "exec"), names)
    else:
        sys.stdout.flush()
        subprocess.run(["bash", "-euc", source], check=True)
    print(end="\\0", flush=True)
"""


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path) -> list[tuple[str, str, int]]:
    """Language, source and lines before each block of a page."""
    text = path.read_text(encoding="utf-8")
    return [
        (found[1], found[2], text.count("\n", 0, found.start(2)))
        for found in BLOCK.finditer(text)
    ]


def programs(path: Path) -> list[tuple[str, str, int]]:
    """What runs of a page; what installs does not, `.ci/run` does that."""
    return [
        (language, source, place)
        for language, source, place in blocks(path)
        if language in ("python", "bash")
        and "pip install" not in source
        and (HAS_TORCH or path != README or "import torch" not in source)
    ]


def outputs(path: Path) -> dict[int, tuple[str, str]]:
    """What programs should print, by the lines before each: kind of block and text."""
    found = {}
    for before, (language, source, _) in pairwise(blocks(path)):
        if language.startswith("text"):
            assert not before[0].startswith("text")
            found[before[2]] = (language, source)
    return found


def agree(kind: str, wanted: str, got: str) -> bool:
    if kind == "text measured":
        alike = SequenceMatcher(None, *map(words, (wanted, got)), autojunk=False)
        return alike.ratio() > ALIKE
    return doctest.OutputChecker().check_output(wanted, got, doctest.ELLIPSIS)


def words(text: str) -> list[str]:
    """The lines of a text without numbers and bars."""
    lines = re.sub(r"[█*_]+", "", re.sub(r"[\d.,]+", "0", text)).splitlines()
    return [" ".join(line.split()) for line in lines]


def run(path: Path, folder: Path) -> list[str]:
    """What each program of a page prints, in a fresh interpreter."""
    where = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", UNASKED, "-c", RUNNER],
        cwd=folder,
        env=os.environ | {"PATH": f"{where}{os.pathsep}{os.environ['PATH']}"},
        input=json.dumps(programs(path)),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\0")[:-1]


def test_ci_runs_the_two_commands_of_the_readme():
    """The first with the wheel, of the sdist of this directory, in place of `.`."""
    first, second = blocks(README)[0][1].strip().splitlines()
    assert first == 'pip install ".[demo]" && memcfg demo'
    assert second == "pip install tox && tox run -e cpu"
    steps = tomllib.loads(GATE.read_text(encoding="utf-8"))["steps"]
    assert '"$(ls "$work"/dist/*.whl)[demo]" && memcfg demo' in steps["demo"]["run"]
    assert second in steps["cpu"]["run"]


def test_ci_runs_every_promise():
    steps = tomllib.loads(GATE.read_text(encoding="utf-8"))["steps"]
    for name in ("cpu", "docs", "reference", "lint", "types", "native", "parity"):
        assert f"tox run -e {name}" in steps[name]["run"]


@pytest.mark.parametrize(
    "path", [path for path in PAGES if programs(path)], ids=page_name
)
def test_the_programs_of_a_page_run_and_print_what_it_says(path, tmp_path):
    if path.name == "torch.md" and not HAS_TORCH:
        pytest.skip("needs PyTorch: tox run -e parity")
    wanted = outputs(path)
    for (_, _, place), got in zip(programs(path), run(path, tmp_path), strict=True):
        told = f"{page_name(path)}:{place} prints:\n{got}"
        assert place not in wanted or agree(*wanted[place], got), told


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_the_links_of_a_page_lead_somewhere(path):
    for link in LINK.findall(path.read_text(encoding="utf-8")):
        if not link.startswith("https://"):
            target, _, heading = link.partition("#")
            found = (path.parent / target).resolve() if target else path
            assert found.exists(), link
            assert not heading or heading in headings(found), link


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_the_pictures_of_a_page_are_files_beside_it(path):
    for picture in PICTURE.findall(path.read_text(encoding="utf-8")):
        assert (path.parent / picture).is_file(), picture


def headings(path: Path) -> set[str]:
    """The anchors of a page, as its host makes them."""
    lines = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return set(map(anchor, lines))


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=page_name)
def test_a_page_of_several_sections_begins_with_links_to_them(path):
    """The architecture is exempt, which is read from the top, and the list of pages."""
    front, *sections = re.split(r"^## (.*)$", path.read_text(), flags=re.MULTILINE)
    titles = sections[::2]
    linked = {link[1:] for link in LINK.findall(front) if link.startswith("#")}
    exempt = path.name in ("architecture.md", "README.md")
    if linked or (len(titles) > 4 and not exempt):
        assert {*map(anchor, titles)} <= linked


@pytest.mark.parametrize(
    "path", [path for path in PAGES if not path.name.startswith("cuda-")], ids=page_name
)
def test_lines_are_short(path):
    """The reports of GPUs are exempt: a script writes them."""
    for line in path.read_text(encoding="utf-8").splitlines():
        assert len(line) <= WIDTH or line.startswith("|"), line


def test_the_readme_is_a_front_page_from_which_all_others_are_found():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= FRONT_PAGE
    found, new = set(), [README]
    while new:
        path = new.pop()
        found.add(path)
        links = {link.partition("#")[0] for link in LINK.findall(path.read_text())}
        pages = {(path.parent / link).resolve() for link in links}
        new += (pages & set(PAGES)) - found
    assert found == set(PAGES)


def test_tables_and_pictures_are_those_of_the_committed_results():
    module = runpy.run_path(str(ROOT / "bench" / "tables" / "__main__.py"))
    for path, wanted in module["files"]().items():
        assert path.read_text(encoding="utf-8") == wanted, page_name(path)
    marks = sum(len(module["MARKED"].findall(path.read_text())) for path in PAGES)
    assert marks == sum(path.read_text().count("<!-- table: ") for path in PAGES) > 4


@pytest.fixture(scope="module")
def front_page():
    return runpy.run_path(str(ROOT / "docs" / "draw_front_page.py"))


def test_badges_are_those_of_the_metadata(front_page):
    assert front_page["BADGES"].read_text(encoding="utf-8") == front_page["badges"]()
    assert ("licence", "Apache-2.0") in front_page["facts"]()


@pytest.mark.slow  # plans ResNet-50 in a process
def test_the_picture_of_the_front_page_is_that_of_its_plan(front_page, tmp_path):
    front_page["draw_timeline"](tmp_path / "timeline.svg")
    drawn = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    assert drawn == front_page["TIMELINE"].read_text(encoding="utf-8")
