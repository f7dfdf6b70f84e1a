"""What a memory limit says, in bytes.

Owns the two ways of writing one: a number of MiB in a configuration, a number of
bytes elsewhere; strings carry their unit in both, ``"50%"`` is a share of the
device's memory. Refuses to know a device: its memory is passed in.
"""

from __future__ import annotations

import math
from fractions import Fraction
from numbers import Rational, Real
from operator import index

from memcfg.units import parse_bytes, warn_of_few_bytes

__all__ = ["LARGEST", "limit_from_bytes", "limit_from_mib"]

LARGEST = 2**63 - 1  # bytes; what a signed 64-bit size can hold
_MIB = 2**20  # bytes


def limit_from_bytes(
    limit: int | str | None,
    *,
    total_bytes: int,
    name: str = "memory_limit",
    stacklevel: int | None = None,
) -> int | None:
    """Read a limit in which a number is bytes.

    Parameters
    ----------
    limit : int, str or None
        Bytes, a string with its unit, or None for no limit.
    total_bytes : int
        What a percentage is of, in bytes.
    name : str, default "memory_limit"
        What the limit is called in errors.
    stacklevel : int or None, default None
        Whose line a warning of few bytes names, as `warnings.warn` counts from the
        caller; None: nobody is warned.

    Returns
    -------
    int or None
        The limit in bytes.

    Raises
    ------
    TypeError
        If it is none of these, or a bool.
    ValueError
        If it is not positive, or a string that is no size.

    Warns
    -----
    RuntimeWarning
        If it is a number below 1 KiB, which is probably meant in MiB.
    """
    if limit is None:
        return None
    if hasattr(limit, "__index__") and not isinstance(limit, bool):
        nbytes = _positive(index(limit), limit, name)  # NumPy's integers too
        if stacklevel is not None:
            warn_of_few_bytes(nbytes, f"{name}={nbytes}", stacklevel=stacklevel + 1)
        return nbytes
    try:
        nbytes = parse_bytes(limit, total_bytes=total_bytes)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None
    return _positive(nbytes, limit, name)


def limit_from_mib(limit: float | str | None, *, total_bytes: int) -> int | None:
    """Read a limit in which a number is MiB.

    Parameters
    ----------
    limit : int, float, str or None
        MiB, a string with its unit, or None for no limit.
    total_bytes : int
        What a percentage is of, in bytes.

    Returns
    -------
    int or None
        The limit in bytes.

    Raises
    ------
    TypeError
        If it is none of these, or a bool.
    ValueError
        If it is not positive and finite, is not a whole number of bytes, or is a
        string that is no size.
    """
    if limit is None or isinstance(limit, str):
        return limit_from_bytes(limit, total_bytes=total_bytes)
    nbytes = _finite(limit) * _MIB
    if nbytes.denominator != 1:
        raise ValueError(
            f"memory_limit={limit!r} MiB is not a whole number of bytes; write the "
            "limit as a string, such as '4100031B'"
        )
    return _positive(nbytes.numerator, limit, "memory_limit")


def _finite(limit: object) -> Fraction:
    if isinstance(limit, bool) or not isinstance(limit, Real):
        raise TypeError(
            "memory_limit is a number of MiB, a string like '4100031B' or None, "
            f"not {limit!r}"
        )
    if isinstance(limit, Rational):  # in Python's own integers, which do not overflow
        return Fraction(int(limit.numerator), int(limit.denominator))
    if not math.isfinite(limit):
        raise ValueError(f"memory_limit must be finite, not {limit!r}")
    return Fraction(float(limit))


def _positive(nbytes: int, limit: object, name: str) -> int:
    if nbytes <= 0:
        raise ValueError(f"{name} must be positive, not {limit!r}")
    if nbytes > LARGEST:
        raise ValueError(f"{name}={limit!r} is beyond the address space")
    return nbytes
