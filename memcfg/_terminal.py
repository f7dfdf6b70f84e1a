"""Text of at most 80 columns, in characters that standard output can encode.

Wide letters count as two columns. Control characters are written as escapes, and so are
characters that the encoding of standard output lacks, except for lines and marks, which
have an ASCII replacement.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len

if TYPE_CHECKING:
    from collections.abc import Iterable

# columns that fit every table, and the fewest that a table needs
WIDTH, _LEAST = 80, 50
# Each is replaced by one character of one column.
_ASCII = str.maketrans("─━│┃…█×µ", "--||~#xu")


def width() -> int:
    """Return the number of columns, from COLUMNS or the terminal, at most 80."""
    # standard output is missing or closed
    with suppress(AttributeError, ValueError):
        if "COLUMNS" in os.environ or sys.stdout.isatty():
            return max(min(shutil.get_terminal_size().columns, WIDTH), _LEAST)
    return WIDTH


def writable(text: str) -> str:
    """Return a text that standard output can encode; memcfg's own keep their width."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        known = text.translate(_ASCII)
        return known.encode(encoding, "backslashreplace").decode(encoding)
    except LookupError:  # only the stream knows the encoding
        pass
    return text


def write(text: object) -> None:
    """Print one or several lines on standard output."""
    print(writable(str(text)))


def printable(text: str) -> str:
    r"""Return a text with unprintable characters, such as ``\x1b``, as escapes."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def shorten(
    text: str, columns: int, *, keep: Literal["start", "end", "ends"] = "ends"
) -> str:
    """Shorten a text to so many columns, with an ellipsis for the cut."""
    text = writable(printable(text))
    if cell_len(text) <= columns:
        return text
    left = columns - 1  # one for the ellipsis
    head = {"start": left, "end": 0, "ends": left - left // 2}[keep]
    start = _first(text, head)
    end = _first(text[::-1], left - cell_len(start) if keep != "start" else 0)
    return start + writable("…") + end[::-1]


def _first(text: str, columns: int) -> str:
    """Return the beginning that fits."""
    for count, letter in enumerate(text):
        columns -= cell_len(letter)
        if columns < 0:
            return text[:count]
    return text


def fit(
    text: str,
    columns: int,
    *,
    right: bool = False,
    keep: Literal["start", "end", "ends"] = "start",
) -> str:
    """Pad or shorten a text to so many columns; `right` aligns it to the right."""
    text = shorten(text, columns, keep=keep)
    space = " " * (columns - cell_len(text))
    return space + text if right else text + space


def fit_name(name: str, columns: int) -> str:
    """Pad or shorten a resource's name; the end of a path is kept."""
    return fit(name, columns, keep="end" if name.startswith("/") else "start")


def paragraph(start: str, words: Iterable[str]) -> str:
    """Wrap words after a prefix, without breaking any."""
    indent, columns = cell_len(start), width()
    lines = [start]
    used = indent
    for word in words:
        short = shorten(word, columns - indent)
        space = " " * (used > indent)
        if used + len(space) + cell_len(short) > columns:
            lines.append(" " * indent)
            used, space = indent, ""
        lines[-1] += space + short
        used += len(space) + cell_len(short)
    return "\n".join(line.rstrip() for line in lines)


def in_notebook() -> bool:
    """Return whether this is a notebook kernel, whose outputs can be replaced."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return type(shell).__name__ == "ZMQInteractiveShell"
