"""Text in columns of a terminal.

Owns how wide a text is there, and what of it may be shown: letters of two columns count
as two, and what would move the cursor or change colours is written as its code.
"""

from __future__ import annotations

from rich.cells import cell_len

__all__ = ["fit", "fit_name", "printable"]


def printable(text: str) -> str:
    r"""Write what no terminal should be sent, such as ``\x1b``, as its code."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii")
        for each in text
    )


def fit(text: str, columns: int, *, right: bool = False, tail: bool = False) -> str:
    """Pad or cut a text to so many columns; the cut shows as an ellipsis.

    `right` moves it to the right, `tail` keeps its end rather than its beginning.
    """
    text = _cut(printable(text), columns, tail=tail)
    space = " " * (columns - cell_len(text))
    return space + text if right else text + space


def fit_name(name: str, columns: int) -> str:
    """Pad or cut a resource's name; of a path the end is kept."""
    return fit(name, columns, tail=name.startswith("/"))


def _cut(text: str, columns: int, *, tail: bool) -> str:
    if cell_len(text) <= columns:
        return text
    left = columns - 1  # one for the ellipsis
    kept: list[str] = []
    for letter in reversed(text) if tail else text:
        left -= cell_len(letter)
        if left < 0:
            break
        kept.append(letter)
    return "…" + "".join(reversed(kept)) if tail else "".join(kept) + "…"
