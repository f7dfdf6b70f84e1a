"""Conversion of sizes from and to text: ``"64MiB"`` is 67,108,864 bytes."""

from __future__ import annotations

import re
import warnings
from fractions import Fraction

__all__ = [
    "ALIGNMENT",
    "align_up",
    "format_bytes",
    "format_seconds",
    "parse_bytes",
    "parse_seconds",
    "parse_share",
    "warn_of_few_bytes",
]

ALIGNMENT = 64  # bytes; every buffer in an arena or pool starts and ends on it

_UNITS = {
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]+)\s*")
_EXPONENTS = {"s": "", "ms": "e-3", "us": "e-6", "µs": "e-6"}
_TIME = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(s|ms|us|µs)\s*")
_SHARE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")


def align_up(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round a size up to the smallest multiple of the alignment.

    Parameters
    ----------
    nbytes : int
        A size in bytes.
    alignment : int, default 64
        A positive number of bytes.
    """
    return -(-nbytes // alignment) * alignment


def parse_bytes(size: int | str, *, total_bytes: int | None = None) -> int:
    """Read a size: an int is in bytes, a string has a unit.

    Parameters
    ----------
    size : int or str
        ``4096``, ``"4096B"``, ``"4MiB"``, ``"1.5 GiB"``, ``"2MB"``, and with a total
        ``"50%"``.
    total_bytes : int or None, default None
        The total that a share refers to; None refuses shares.

    Returns
    -------
    int
        The size in bytes; a share, or a part of a unit such as ``"3.7GiB"``, is rounded
        down to a whole byte.

    Raises
    ------
    TypeError
        If `size` is neither an int nor a string.
    ValueError
        If the string has no number or no known unit, the size is negative, it is a
        part of a byte, or it is a share above 100 % or without a total.

    Examples
    --------
    >>> parse_bytes("4MiB")
    4194304
    >>> parse_bytes("12.5%", total_bytes=1000)
    125
    """
    if isinstance(size, bool) or not isinstance(size, int | str):
        raise TypeError(f"a size is an int or a string like '4MiB', not {size!r}")
    if isinstance(size, int):
        if size < 0:
            raise ValueError(f"a size cannot be negative: {size}")
        return size
    share = parse_share(size)
    if share is None:
        return _parse_text(size)
    if total_bytes is None:
        raise ValueError(f"{size!r} is a share, and a size in bytes is needed here")
    return int(share * total_bytes)


def parse_share(size: str) -> Fraction | None:
    """Read a share of a total.

    Parameters
    ----------
    size : str
        Such as ``"50%"`` or ``"12.5 %"``.

    Returns
    -------
    Fraction or None
        At most 1; None if it is not written with a percent sign after a number.

    Raises
    ------
    ValueError
        If it is more than 100 %.

    Examples
    --------
    >>> parse_share("12.5%")
    Fraction(1, 8)
    >>> parse_share("4MiB")
    """
    match = _SHARE.fullmatch(size)
    if match is None:
        return None
    share = Fraction(match.group(1)) / 100
    if share > 1:
        raise ValueError(f"a share is at most 100%, not {size.strip()!r}")
    return share


def warn_of_few_bytes(number: int, what: str, *, stacklevel: int = 2) -> None:
    """Warn of a size without a unit that was probably meant in a larger unit.

    Parameters
    ----------
    number : int
        A size in bytes that was written without a unit.
    what : str
        The setting as it was written: ``"memory_limit=512"``.
    stacklevel : int, default 2
        The frame that the warning names, as in `warnings.warn`, counted from the
        caller.

    Warns
    -----
    RuntimeWarning
        Below 1 KiB.
    """
    if 0 < number < 1024:
        warnings.warn(
            f"{what} is {number} bytes: write '{number}MiB' if MiB are meant, or "
            f"'{number}B'",
            RuntimeWarning,
            stacklevel=stacklevel + 1,
        )


def _parse_text(size: str) -> int:
    match = _SIZE.fullmatch(size)
    unit = _UNITS.get(match.group(2).lower()) if match else None
    if match is None or unit is None:
        raise ValueError(
            f"cannot read {size!r} as a size: write a number and one of B, KiB, MiB, "
            "GiB, TiB, KB, MB, GB, TB"
        )
    nbytes = Fraction(match.group(1)) * unit
    if unit == 1 and nbytes.denominator != 1:
        raise ValueError(f"{size!r} is not a whole number of bytes")
    return int(nbytes)


def format_bytes(nbytes: int, *, exact: bool = False) -> str:
    """Return a size as text in binary units.

    Parameters
    ----------
    nbytes : int
        A size in bytes.
    exact : bool, default False
        Whether to write every byte, followed by the rounded size.

    Returns
    -------
    str
        Such as ``"512 B"``, ``"4.00 MiB"``.

    Examples
    --------
    >>> format_bytes(4194304)
    '4.00 MiB'
    >>> format_bytes(4194303, exact=True)
    '4194303 B (4.00 MiB)'
    """
    size, unit = float(nbytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if round(abs(size), 2) < 1024:  # in the precision that is written below
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{nbytes} B"
    rounded = f"{size:.2f} {unit}"
    return f"{nbytes} B ({rounded})" if exact else rounded


def format_seconds(value: float) -> str:
    """Return a time as text with three digits.

    Parameters
    ----------
    value : float
        A time in seconds.

    Returns
    -------
    str
        Such as ``"1.5 s"``, ``"12.3 ms"``, ``"0.05 ms"``, ``"4.2 µs"``, ``"95 ns"``.
    """
    if value >= 0.9995:
        return f"{value:.3g} s"
    if value >= 9.995e-6 or not value:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs" if value >= 9.995e-7 else f"{value * 1e9:.3g} ns"


def parse_seconds(value: float | str) -> float:
    """Read a time: a number is in seconds, a string has a unit.

    Parameters
    ----------
    value : float or str
        ``0.5``, ``"5us"``, ``"5 µs"``, ``"20ms"``, ``"1.5s"``.

    Returns
    -------
    float
        The time in seconds.

    Raises
    ------
    TypeError
        If `value` is neither a number nor a string.
    ValueError
        If the string has no number or no known unit, or the time is negative or not
        finite.
    """
    if isinstance(value, str):
        match = _TIME.fullmatch(value)
        if match is None:
            raise ValueError(f"a time is a number with s, ms or us, not {value!r}")
        return float(match.group(1) + _EXPONENTS[match.group(2)])
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"a time is a number or a string like '5us', not {value!r}")
    if not 0 <= value < float("inf"):
        raise ValueError(f"a time is 0 or more seconds, not {value}")
    return float(value)


def exact(nbytes: int) -> str:
    """Format a size with every byte, as requests and limits often differ by a few."""
    return format_bytes(nbytes, exact=True)
