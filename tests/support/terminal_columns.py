"""How many columns of a terminal a text takes, by a table that memcfg does not read."""

from __future__ import annotations

import unicodedata

from hypothesis import strategies as st

__all__ = ["LETTERS", "columns"]

# Letters of whose width every version of Unicode and every terminal says the same: not
# marks that go with the letter before, parts of Korean syllables, or hexagrams.
LETTERS = st.one_of(
    st.characters(max_codepoint=0x2FF),
    st.characters(min_codepoint=0x400, max_codepoint=0x47F),
    st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF),
    st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3),
    st.characters(min_codepoint=0xE000, max_codepoint=0xE0FF),  # private: as codes
    st.sampled_from("\u202e\u2028\ufeff\U0001f600…─█"),
)


def columns(text: str) -> int:
    """Count a terminal's columns."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)
