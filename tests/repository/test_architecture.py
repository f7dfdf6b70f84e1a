"""The architecture page names what is there, and pages keep to their lengths."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "architecture.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
NAMED = re.compile(r"\[`([^`]+)`\]\(([^)#]+)\)")  # a name, and the file that defines it
LONGEST, DECISION = 300, 40  # lines


@cache
def definitions(path: Path) -> frozenset[str]:
    """Name what a Python file defines: functions, classes, methods, and variables."""
    found = set()

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            match node:
                case ast.FunctionDef(name=name):
                    found.add(prefix + name)
                case ast.ClassDef(name=name, body=inner):
                    found.add(prefix + name)
                    visit(inner, f"{prefix}{name}.")
                case ast.Assign(targets=targets):
                    found.update(t.id for t in targets if isinstance(t, ast.Name))
                case ast.AnnAssign(target=ast.Name(id=name)):
                    found.add(prefix + name)

    visit(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return frozenset(found)


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a name, such as `Class.method` or `Class::method`."""
    if path.suffix == ".py":
        found = definitions(path)
        return name in found or any(each.endswith(f".{name}") for each in found)
    text = path.read_text(encoding="utf-8")
    if "::" in name:
        return re.search(rf"^[^/\n]*\b{name}\(", text, re.MULTILINE) is not None
    return re.search(rf"\b(class|struct)\s+{name}\b", text) is not None


def named() -> list[tuple[str, Path]]:
    """List the names of the page and the files they are linked to."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        (name, (PAGE.parent / link).resolve()) for name, link in NAMED.findall(text)
    ]


def wrong(names: list[tuple[str, Path]]) -> list[str]:
    """List names whose file is missing, or does not define them."""
    found = []
    for name, path in names:
        if not path.exists():
            found.append(f"{path} does not exist")
        elif "/" in name or path.suffix == ".md" or path.is_dir():
            if "/" in name and not path.as_posix().endswith(name):
                found.append(f"{name} is linked to {path}")
        elif path.name != name and not defines(path, name):
            found.append(f"{path} does not define {name}")
    return found


def test_every_name_of_the_page_is_defined_where_it_is_linked_to():
    names = named()
    assert len(names) > 60
    assert wrong(names) == []


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("auto", "memcfg/plan/_nowhere.py"),
        ("automatic", "memcfg/plan/search/_auto.py"),
        ("Program::walk", "_native/src/program.cpp"),
        ("Pool", "_native/include/memcfg/lane.hpp"),
        ("memcfg/plan", "memcfg/nn"),
    ],
)
def test_a_name_that_has_moved_is_found(name, place):
    assert len(wrong([(name, ROOT / place)])) == 1


def test_pages_are_short():
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) <= LONGEST
    for path in DECISIONS:
        assert len(path.read_text(encoding="utf-8").splitlines()) <= DECISION, path.name


def test_decisions_are_numbered_and_listed():
    numbers = [int(path.name[:4]) for path in DECISIONS]
    assert len(set(numbers)) == len(numbers)
    index = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    heads = {
        path: path.read_text(encoding="utf-8").splitlines()[0] for path in DECISIONS
    }
    for path, head in heads.items():
        number, _, title = head.removeprefix("# ").partition(". ")
        assert int(number) == int(path.name[:4])
        assert f"| {number} | [{title}]({path.name}) |" in index
    parts = ["Context", "Decision", "What it costs", "What would change it"]
    for path in DECISIONS:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"^## (.*)$", text, re.MULTILINE) == parts, path.name


def test_code_cites_all_decisions_and_no_others():
    cited = re.compile(r"docs/decisions/([\w-]+\.md)")
    names = {
        name
        for folder in ("memcfg", "docs/site")
        for path in (ROOT / folder).rglob("*.py")
        for name in cited.findall(path.read_text(encoding="utf-8"))
    }
    assert names == {path.name for path in DECISIONS}
