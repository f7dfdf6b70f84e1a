"""Files that commands read and write.

Owns two promises: an error names the file, and a file is written whole or not at
all. Refuses formats.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from memcfg.errors import FormatError, GraphError
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["read", "size", "write"]

_Value = TypeVar("_Value")


def read(path: str, parse: Callable[[str], _Value]) -> _Value:
    """Read a text file and parse it.

    Parameters
    ----------
    path : str
        The file.
    parse : callable
        From its text to a value.

    Returns
    -------
    object
        What `parse` returned.

    Raises
    ------
    OSError
        If the file cannot be read.
    FormatError
        If it is not text or `parse` refuses it; the message names the file.
    """
    try:
        return parse(Path(path).read_bytes().decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise FormatError(f"{path}: not UTF-8 text: {error}") from error
    except (FormatError, GraphError) as error:
        raise FormatError(f"{path}: {error}") from error


def write(path: str, text: str) -> None:
    """Write a text file: whole, or, when anything fails, not at all.

    Parameters
    ----------
    path : str
        The file; one that is there is replaced and keeps its permissions.
    text : str
        Its text.

    Raises
    ------
    OSError
        If it cannot be written.
    """
    target = Path(path).resolve()
    if target.exists() and not target.is_file():  # a device, a pipe: nothing to replace
        target.write_text(text, encoding="utf-8")
        return
    mode = target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask()
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as stream:
            stream.write(text)
        Path(temporary).chmod(mode)
        Path(temporary).replace(target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
        If it is not a positive size.
    """
    try:
        nbytes = parse_bytes(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if nbytes == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive size")
    return nbytes
