"""The names of devices: ``"GPU:0"``, ``"/GPU:0"``, ``"/device:GPU:0"``.

Owns their grammar. Refuses to know which devices there are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["DeviceName", "parse_name"]

_NUMBERED = r"(?P<type>[A-Za-z_][A-Za-z0-9_]*):(?P<index>[0-9]{1,9})"
_ALONE = r"(?P<alone>[A-Z][A-Z0-9_]*)"  # a type; anything else is likelier a mistake
_LOGICAL = re.compile(rf"(?:/?device:|/)?(?:{_NUMBERED}|{_ALONE})")
_PHYSICAL = re.compile(rf"(?:/?physical_device:|/)?(?:{_NUMBERED}|{_ALONE})")


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
