"""Numbers on the command line."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """Parse a positive integer."""
    return _integer(text, 1)


def natural(text: str) -> int:
    """Parse an integer that is not negative."""
    return _integer(text, 0)


def _integer(text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        wanted = "a positive integer" if least else "an integer of zero or more"
        raise argparse.ArgumentTypeError(f"must be {wanted}, not {text}")
    return number
