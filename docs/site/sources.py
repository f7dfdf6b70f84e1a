"""An extension of Sphinx: files of the repository that pages link to, as pages."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_for_filename

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(
    r'<a class=["\']source["\'] href=["\'](?:\.\./)*source/([^"\']+)\.html'
)
LONGEST, BRIEF = 100_000, 20_000  # letters that are shown, and with colours
COLOURED = (".py", ".pyx", ".cpp", ".hpp", ".h", ".cu")


def linked(staged: Path) -> list[Path]:
    """Return the files and folders that pages link to."""
    found = set()
    for page in staged.rglob("*.md"):
        for name in LINK.findall(page.read_text(encoding="utf-8")):
            path = ROOT / name
            found.add(path.parent if path.name == "index" else path)
    return sorted(found)


def collect(app: Sphinx) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield the pages: name, context and template."""
    formatter = HtmlFormatter(nowrap=True)
    shown = linked(Path(app.srcdir))
    for path in shown:
        name = path.relative_to(ROOT).as_posix()
        if path.is_dir():
            rows = "".join(
                f'<li><a href="{each.name}.html">{escape(each.name)}</a></li>'
                if each in shown and each.is_file()
                else f"<li>{escape(each.name)}</li>"
                for each in sorted(path.iterdir())
                if not each.name.startswith((".", "__pycache__"))
            )
            body, page = f"<ul>{rows}</ul>", f"source/{name}/index"
        else:
            text = path.read_text(encoding="utf-8")
            text = f"{text[:LONGEST]}\n…" if len(text) > LONGEST else text
            code = escape(text)
            if path.suffix in COLOURED and len(text) < BRIEF:
                code = highlight(text, get_lexer_for_filename(path.name), formatter)
            body = f'<div class="highlight"><pre>{code}</pre></div>'
            page = f"source/{name}"
        context = {"title": name, "body": f"<h1>{escape(name)}</h1>{body}"}
        yield page, context, "page.html"


def setup(app: Sphinx) -> dict[str, Any]:
    """Connect the extension."""
    app.connect("html-collect-pages", collect)
    return {"version": "1", "parallel_read_safe": True}
