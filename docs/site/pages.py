"""Pages of the site from those of the repository, with their links mapped."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from notebooks import as_markdown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[2]
TOP = {
    "README.md": "overview.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
CODE = re.compile(r"(`+)(?:(?!\1).)+?\1", re.DOTALL)
LINK = re.compile(
    r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<to>[^)\s]+)\)"
)
PICTURES = (".svg", ".png")


def stage_pages(folder: Path) -> None:
    """Write all pages but those of the API to a folder, as sources for Sphinx."""
    for path in sorted(pages()):
        target = folder / staged(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in PICTURES:
            shutil.copyfile(path, target)
            continue
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".ipynb":
            text = as_markdown(json.loads(text))
        text = with_links(text, path)
        target.write_text(text + contents(path), encoding="utf-8")
    (folder / "examples.md").write_text(examples(), encoding="utf-8")


def pages() -> Iterator[Path]:
    """Yield the pages, notebooks and pictures of the site."""
    yield from (ROOT / name for name in TOP)
    for folder in ("docs", "bench/results"):
        for path in (ROOT / folder).rglob("*"):
            if "site" not in path.relative_to(ROOT).parts and path.suffix in (
                ".md",
                ".ipynb",
                *PICTURES,
            ):
                yield path


def staged(path: Path) -> Path:
    """Return where a page of the repository is on the site, or a source file's page."""
    name = path.relative_to(ROOT)
    if name.as_posix() in TOP:
        return Path(TOP[name.as_posix()])
    if name.as_posix() == "examples":
        return Path("examples.md")
    is_page = path.suffix in (".md", ".ipynb", *PICTURES)
    if not is_page or not name.as_posix().startswith(("docs/", "bench/results/")):
        page = name / "index" if path.is_dir() else name
        return Path("source", f"{page}.html")
    name = Path(*name.parts[1:])
    if name.name == "README.md":
        name = name.with_name("index.md")
    return name.with_suffix(".md") if name.suffix == ".ipynb" else name


def with_links(text: str, path: Path) -> str:
    """Return the text of a page with links that are right on the site."""
    here = staged(path).parent

    def mapped(link: re.Match[str]) -> str:
        to, _, anchor = link["to"].partition("#")
        if not to or ":" in to:
            return link[0]
        target = (path.parent / to).resolve()
        if not target.exists():
            raise SystemExit(f"{path}: {to} does not exist")
        page = staged(target)
        relative = Path(os.path.relpath(page, here)).as_posix()
        words = LINK.sub(mapped, link["text"])
        if page.parts[0] == "source":
            return f'<a class="source" href="{relative}">{words}</a>'
        relative += f"#{anchor}" if anchor else ""
        return f"{link['image']}[{words}]({relative})"

    return outside_of_code(text, lambda part: LINK.sub(mapped, part))


def outside_of_code(text: str, change: Callable[[str], str]) -> str:
    """Return a text with its prose changed, and its blocks of code as they were.

    A link may have code in its text: code is put back after the change.
    """
    result: list[str] = []
    prose: list[str] = []
    fence = ""

    def end_prose() -> None:
        code: list[str] = []

        def keep(found: re.Match[str]) -> str:
            code.append(found[0])
            return f"\0{len(code) - 1}\0"

        hidden = CODE.sub(keep, "".join(prose))
        result.append(
            re.sub(r"\0(\d+)\0", lambda found: code[int(found[1])], change(hidden))
        )
        prose.clear()

    for line in text.splitlines(keepends=True):
        mark = FENCE.match(line)
        if not fence and mark:
            end_prose()
            fence = mark[1]
            result.append(line)
        elif fence:
            result.append(line)
            if mark and mark[1].startswith(fence) and not line.strip(" `~\n"):
                fence = ""
        else:
            prose.append(line)
    end_prose()
    return "".join(result)


def contents(path: Path) -> str:
    """Return the tables of contents of an index page, from its links to pages."""
    if path.name != "README.md" or path.parent == ROOT:
        return ""
    parts: list[str] = []
    listed: set[Path] = set()
    whole = path.parent == ROOT / "docs"
    sections = re.split(r"^## (.*)$", path.read_text(encoding="utf-8"), flags=re.M)
    captioned = zip(["", *sections[1::2]], sections[::2], strict=True)
    for caption, text in captioned:
        entries = []
        for link in LINK.finditer(text):
            target = (path.parent / link["to"].partition("#")[0]).resolve()
            page = staged(target) if target.is_relative_to(ROOT) else target
            inside = target.is_relative_to(path.parent) or whole
            if page.suffix == ".md" and inside and page not in listed:
                listed.add(page)
                entries.append(f"/{page.with_suffix('')}")
        if caption == "Reference" and whole:
            entries.append("/api/index")
        if entries:
            named = f":caption: {caption}\n" if caption and whole else ""
            rows = "\n".join(entries)
            parts.append(f"\n```{{toctree}}\n:hidden:\n{named}\n{rows}\n```\n")
    return "".join(parts)


def examples() -> str:
    """Return the page that lists the examples."""
    rows = []
    for path in sorted((ROOT / "examples").glob("[0-9]*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(doc.partition("\n\n")[0].split())
        rows.append(
            f"- <a class='source' href='{staged(path)}'>{path.stem}</a>: {first}"
        )
    return (
        "# Examples\n\nEach is a program of less than 80 lines that runs as it is; a "
        "test runs them all.\n\n" + "\n".join(rows) + "\n"
    )
