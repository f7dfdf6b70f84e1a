"""Sizes on the command line: numbers of bytes, or numbers with a unit."""

from __future__ import annotations

import argparse
import sys

from memcfg.units import parse_bytes

_FEW = 2**20  # bytes; a smaller number without a unit may be meant in MiB


def is_bare(text: str) -> bool:
    """Return whether a size has no unit."""
    return text.isascii() and text.isdecimal()


def size(text: str) -> int:
    """Parse a positive size."""
    try:
        nbytes = parse_bytes(int(text) if is_bare(text) else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if nbytes >= 2**63:
        raise argparse.ArgumentTypeError("a size is below 2**63 bytes")
    if nbytes == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return nbytes


def limit(text: str) -> int:
    """Parse the value of ``--limit``, and warn if a unit may be missing."""
    nbytes = size(text)
    if is_bare(text):
        warn_of_few("--limit", nbytes)
    return nbytes


def warn_of_few(option: str, nbytes: int) -> None:
    """Warn of a small bare number, which may be meant in another unit."""
    if nbytes < _FEW:
        hint = f"write '{nbytes}MiB' if MiB are meant, or '{nbytes}B'"
        print(f"memcfg: {option} {nbytes} is {nbytes} bytes: {hint}", file=sys.stderr)
