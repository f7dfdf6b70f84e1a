"""Adding hardware that is only said to exist.

Owns the call; the environment variable ``MEMCFG_SIMULATED_DEVICES`` does the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.config._environment import LARGEST_DEVICE, check_type
from memcfg.config._limits import limit_from_bytes
from memcfg.config._state import registry

if TYPE_CHECKING:
    from memcfg.config._types import PhysicalDevice

__all__ = ["add_simulated_device"]


def add_simulated_device(
    device_type: str = "GPU", *, memory: int | str
) -> PhysicalDevice:
    """Add a physical device of addresses without memory.

    It stands in every listing. Models can be planned on it and pools work there, so
    the rules of GPUs can be tried on any machine; running a program on it is an
    error.

    Parameters
    ----------
    device_type : str, default "GPU"
        A word in capital letters, not ``"CPU"``.
    memory : int or str
        How much memory it is to have: bytes, or a string with its unit
        (``"16GiB"``).

    Returns
    -------
    PhysicalDevice
        The device.

    Raises
    ------
    TypeError
        If the type is no string, or the memory neither an int nor a string.
    ValueError
        If the type is no such word, or the memory is not positive, no size, or beyond
        2**62 bytes.
    RuntimeError
        If a device was used already.
    FormatError
        If ``MEMCFG_SIMULATED_DEVICES`` cannot be read.

    Warns
    -----
    RuntimeWarning
        If the memory is a number below 1 KiB: it is bytes, and MiB were probably meant.
    """
    check_type(device_type)
    if memory is None:
        raise TypeError("a simulated device needs a memory, such as '16GiB'")
    nbytes = limit_from_bytes(memory, total_bytes=0, name="memory", stacklevel=2)
    assert nbytes is not None, "a size was given"
    if nbytes > LARGEST_DEVICE:
        raise ValueError(f"a simulated device has at most 2**62 bytes, not {memory!r}")
    return registry.add_simulated(device_type, nbytes)
