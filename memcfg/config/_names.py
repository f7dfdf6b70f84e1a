"""The names of devices: ``"GPU:0"``, ``"/gpu:0"``, ``"/device:GPU:0"``.

Owns their grammar, which is TensorFlow's. Refuses to know which devices there are.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = ["DeviceName", "parse_name", "require_type"]

_PROCESS = (
    r"(?:/job:(?P<job>[A-Za-z0-9_.-]+))?"
    r"(?:/replica:(?P<replica>[0-9]+))?(?:/task:(?P<task>[0-9]+))?"
)
_THIS_PROCESS = {"job": "localhost", "replica": "0", "task": "0"}
_NUMBERED = r"(?P<type>[A-Za-z_][A-Za-z0-9_]*):(?:(?P<index>[0-9]{1,9})|\*)"
# A type without an index, "CPU" or "cpu"; any other word is likelier a mistake.
_ALONE = r"(?P<alone>[A-Z][A-Z0-9_]*|[a-z]pu)"
_NAME = re.compile(
    rf"(?:{_PROCESS}/)?(?:device:|(?P<physical>physical_device:))?"
    rf"(?:{_NUMBERED}|{_ALONE})"
)
_TYPE = re.compile(r"[A-Z][A-Z0-9_]*")


class DeviceName(NamedTuple):
    """A name that was read.

    Attributes
    ----------
    device_type : str
        Such as ``"GPU"``.
    number : int or None
        None when it was left out: the only device of the type is meant.
    physical : bool
        Whether it says that it names hardware.
    """

    device_type: str
    number: int | None
    physical: bool = False


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


def parse_name(name: str) -> DeviceName:
    """Read the name of a device.

    Parameters
    ----------
    name : str
        Such as ``"GPU:0"``, ``"/gpu:0"``, ``"/device:GPU:0"`` or
        ``"/job:localhost/replica:0/task:0/device:GPU:0"``, which are one name; or
        ``"/physical_device:GPU:0"``. The index may be left out.

    Returns
    -------
    DeviceName
        Its type in capital letters, and its number.

    Raises
    ------
    ValueError
        If it cannot be read, or names another process.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        raise ValueError(f"Failed parsing device name {name!r}; write it like 'CPU:0'")
    for part, here in _THIS_PROCESS.items():
        if found[part] not in (None, here):
            raise ValueError(
                f"No matching devices found for {name!r}: the devices are those of "
                "this process, /job:localhost/replica:0/task:0"
            )
    index = None if found["index"] is None else int(found["index"])
    kind = (found["alone"] or found["type"]).upper()
    return DeviceName(kind, index, physical=found["physical"] is not None)
