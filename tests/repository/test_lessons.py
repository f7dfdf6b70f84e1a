"""Pages of methods name every method; notebooks are short and use public names."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from memcfg.plan import NAMED_POLICIES

ROOT = Path(__file__).resolve().parents[2]
METHODS = ROOT / "docs" / "methods"
PAGES = [path for path in sorted(METHODS.glob("*.md")) if path.name != "README.md"]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SECTIONS = ["Numbers", "Drawbacks", "Use it", "Source"]
CELLS, BYTES = 15, 80_000


def test_every_method_has_a_page():
    text = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    missing = [name for name in NAMED_POLICIES if f"`{name}`" not in text]
    assert missing == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_a_page_of_a_method_has_all_that_the_others_have(path):
    text = path.read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    (picture,) = re.findall(r"\]\((\w[\w-]*\.svg)\)", text)
    assert (METHODS / picture).stat().st_size < 100_000
    assert path.name in (METHODS / "README.md").read_text(encoding="utf-8")


def test_every_picture_of_a_method_is_on_a_page():
    shown = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert all(f"({path.name})" in shown for path in METHODS.glob("*.svg"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_short_asks_questions_and_uses_public_names(path):
    assert path.stat().st_size < BYTES
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert len(cells) <= CELLS
    prose, code = (
        "\n".join(
            "".join(each["source"]) for each in cells if each["cell_type"] == kind
        )
        for kind in ("markdown", "code")
    )
    assert "## Questions" in prose
    assert "*Expect*" in prose or "*expect*" in prose
    assert "Before you" in prose
    assert not re.search(r"\._[a-z]|import _", code)
    assert max(map(len, code.splitlines())) <= 88
    for each in cells:
        assert (
            each["cell_type"] == "markdown"
            or each["outputs"]
            or "def " in each["source"]
        )


def test_there_are_six_notebooks():
    assert [path.name[:3] for path in NOTEBOOKS] == [f"0{i}-" for i in range(1, 7)]
