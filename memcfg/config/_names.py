"""The names of devices: ``"GPU:0"``, ``"/GPU:0"``, ``"/device:GPU:0"``.

Owns their grammar. Refuses to know which devices there are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["DeviceName", "parse_name", "require_type"]

_NUMBERED = r"(?P<type>[A-Za-z_][A-Za-z0-9_]*):(?P<index>[0-9]{1,9})"
_ALONE = r"(?P<alone>[A-Z][A-Z0-9_]*)"  # a type; anything else is likelier a mistake
_LOGICAL = re.compile(rf"(?:/?device:|/)?(?:{_NUMBERED}|{_ALONE})")
_PHYSICAL = re.compile(rf"(?:/?physical_device:|/)?(?:{_NUMBERED}|{_ALONE})")


_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")


class DeviceName(NamedTuple):
    """A name that was read.

    Attributes
    ----------
    device_type : str
        Such as ``"GPU"``.
    number : int or None
        None when it was left out: the only device of the type is meant.
    """

    device_type: str
    number: int | None


def require_type(device_type: str) -> str:
    """Return a type of devices, or say what is wrong with it.

    Parameters
    ----------
    device_type : str
        Such as ``"GPU"``; there need not be such devices.

    Returns
    -------
    str
        The same.

    Raises
    ------
    TypeError
        If it is no string.
    ValueError
        If it is no word in capital letters.
    """
    if not isinstance(device_type, str):
        raise TypeError(f"a device type is a word like 'GPU', not {device_type!r}")
    if not _TYPE.fullmatch(device_type):
        raise ValueError(f"a device type is a word like 'GPU', not {device_type!r}")
    return device_type


def parse_name(name: str, *, physical: bool = False) -> DeviceName:
    """Read the name of a device.

    Parameters
    ----------
    name : str
        Such as ``"GPU:0"``; the index may be left out.
    physical : bool, default False
        Whether hardware is meant, whose full name is ``"/physical_device:GPU:0"``,
        or a logical device, whose full name is ``"/device:GPU:0"``.

    Returns
    -------
    DeviceName
        Its type and number.

    Raises
    ------
    ValueError
        If it cannot be read.
    """
    found = (_PHYSICAL if physical else _LOGICAL).fullmatch(name)
    if found is None:
        raise ValueError(f"Failed parsing device name {name!r}; write it like 'CPU:0'")
    if found["alone"] is not None:
        return DeviceName(found["alone"], None)
    return DeviceName(found["type"], int(found["index"]))
