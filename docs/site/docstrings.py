"""Docstrings in NumPy's format as HTML."""

from __future__ import annotations

import builtins
import re
from html import escape
from typing import TYPE_CHECKING, Any

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonConsoleLexer, PythonLexer

if TYPE_CHECKING:
    from collections.abc import Callable

SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n", re.MULTILINE)
LISTS = ("Parameters", "Attributes", "Returns", "Yields", "Raises", "Warns", "See Also")
CITATION = re.compile(r"^\.\. \[(\w+)\] ", re.MULTILINE)
CITED = re.compile(r"\[(\w+)\]_")
CONSOLE = re.compile(r"^>>> .*(?:\n(?!\n).*)*", re.MULTILINE)
HTML = HtmlFormatter(nowrap=True)


class Docstrings:
    """Renders docstrings; ``link`` returns where a name is documented, or None."""

    def __init__(self, link: Callable[[str, str], str | None]) -> None:
        self.link = link
        self.place = ""  # the name whose docstring is rendered
        self.markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
        self.markdown.add_render_rule("code_inline", lambda _, *rest: self._code(*rest))
        self.markdown.add_render_rule("fence", _fence)

    def render(self, text: str, place: str) -> str:
        """Return a whole docstring."""
        self.place = place
        first, *sections = SECTION.split(text)
        parts = [self.block(first)]
        for title, body in zip(sections[::2], sections[1::2], strict=True):
            made = self._entries(body) if title in LISTS else self.block(body)
            parts.append(f'<p class="rubric">{escape(title)}</p>{made}')
        return "".join(parts)

    def block(self, text: str) -> str:
        """Return paragraphs, lists and examples."""
        text = CITATION.sub(r"\n\\[\1\\] ", text.strip("\n"))
        text = CITED.sub(r"\\[\1\\]", text)
        text = CONSOLE.sub(lambda found: f"```pycon\n{found[0]}\n```", text)
        made: str = self.markdown.render(text)
        return made

    def line(self, text: str, place: str) -> str:
        """Return a text without paragraphs."""
        self.place = place
        made: str = self.markdown.renderInline(text)
        return made

    def _entries(self, body: str) -> str:
        """Return the list of a section: a name and its type, and what it is."""
        rows: list[tuple[str, list[str]]] = []
        for line in body.strip("\n").splitlines():
            if line[:1].strip():
                rows.append((line, []))
            elif rows:
                rows[-1][1].append(line.removeprefix("    "))
        parts = []
        for head, lines in rows:
            name, colon, kind = head.partition(" : ")
            words = f"<code>{escape(name)}</code>" if colon else self._type(name)
            more = f" <span>{self._type(kind)}</span>" if colon else ""
            described = self.block("\n".join(lines))
            parts.append(f"<dt>{words}{more}</dt><dd>{described}</dd>")
        return f'<dl class="fields">{"".join(parts)}</dl>'

    def _type(self, text: str) -> str:
        """Return a type; names of memcfg are links."""
        text = text.replace("`", "")
        return re.sub(
            r"[A-Za-z_][\w.]*", lambda found: self._linked(found[0]), escape(text)
        )

    def _linked(self, name: str) -> str:
        target = None if hasattr(builtins, name) else self.link(name, self.place)
        return f'<a href="{target}">{name}</a>' if target else name

    def _code(self, tokens: Any, index: int, *_: Any) -> str:
        """Return code; what is between single backticks may be a name."""
        token = tokens[index]
        code = f"<code>{escape(token.content)}</code>"
        if token.markup == "`" and (target := self.link(token.content, self.place)):
            return f'<a href="{target}">{code}</a>'
        return code


def _fence(renderer: Any, tokens: Any, index: int, *_: Any) -> str:
    """Return a block of code with colours."""
    token = tokens[index]
    lexer = PythonConsoleLexer() if token.info == "pycon" else PythonLexer()
    code = highlight(token.content, lexer, HTML)
    return f'<div class="highlight"><pre>{code}</pre></div>'
