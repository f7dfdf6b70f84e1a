"""The device of a model, by the name that it remembers.

Owns what is said when the device is gone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import config

if TYPE_CHECKING:
    from memcfg.devices import Device

__all__ = ["device_of"]


def device_of(model: str, name: str | None) -> Device:
    """Return a model's device.

    Parameters
    ----------
    model : str
        The model's name, for the message.
    name : str or None
        The device's name; None is the default device of this moment.

    Returns
    -------
    Device
        The device.

    Raises
    ------
    RuntimeError
        If it is no longer configured.
    """
    try:
        return config.logical_device(name)
    except ValueError as error:
        raise RuntimeError(
            f"{model!r} was compiled for {name}, which is no longer configured: "
            f"compile it again ({error})"
        ) from error
