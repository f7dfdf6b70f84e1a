"""What commands read: files and sizes.

Owns the promise that an error names the file. Refuses formats.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, TypeVar

from memcfg.errors import FormatError, GraphError
from memcfg.files import read_file
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read", "size"]

_Value = TypeVar("_Value")

_MOST = 2**28  # bytes of a file; a graph of a million ops has about as many


def read(path: str, parse: Callable[[str], _Value]) -> _Value:
    """Read a text file and parse it.

    Parameters
    ----------
    path : str
        The file, of at most 256 MiB.
    parse : callable
        From its text to a value.

    Returns
    -------
    object
        What `parse` returned.

    Raises
    ------
    OSError
        If the file cannot be read, is larger, or is no regular file.
    FormatError
        If it is not text or `parse` refuses it; the message names the file.
    """
    try:
        return parse(read_file(path, _MOST).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text: {error}") from error
    except (FormatError, GraphError) as error:
        raise FormatError(f"{path}: {error}") from error


def size(text: str) -> int:
    """Read a size on the command line: a number is bytes, or it carries its unit.

    Parameters
    ----------
    text : str
        Such as ``"4194304"`` or ``"4MiB"``.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    argparse.ArgumentTypeError
        If it is not a positive size below 2**63 bytes.
    """
    try:
        bare = text.isascii() and text.isdecimal()
        nbytes = parse_bytes(int(text) if bare else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if nbytes >= 2**63:
        raise argparse.ArgumentTypeError("a size is below 2**63 bytes")
    if nbytes == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return nbytes
