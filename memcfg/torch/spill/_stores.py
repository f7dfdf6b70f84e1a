"""The place that a user names for tensors that leave, and the stores of a model."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch

from memcfg._core._machine import machine_bytes
from memcfg.devices import SpillPlace
from memcfg.torch.spill._media import Files, HostMemory
from memcfg.torch.spill._store import Store
from memcfg.units import parse_bytes

if TYPE_CHECKING:
    from memcfg.torch.spill._media import Medium


def spill_of(
    spill_to: str | os.PathLike[str] | None,
    spill_limit: int | str | None,
    lane_bandwidth: int | str | None,
    *,
    inductor: bool,
) -> SpillPlace | None:
    """Return the place for tensors, or None; raise TypeError or ValueError."""
    limit = _some_bytes(spill_limit, "spill_limit")
    bandwidth = _some_bytes(lane_bandwidth, "lane_bandwidth")
    if spill_to is None:
        for name, value in (("spill_limit", limit), ("lane_bandwidth", bandwidth)):
            if value is not None:
                raise ValueError(f"{name} is for spill_to: give 'host' or a folder")
        return None
    if inductor:
        raise ValueError("what inductor compiles has no copies: leave spill_to out")
    folder = folder_of(spill_to)
    if folder is None:
        return SpillPlace("host", None, limit, bandwidth)
    if not os.path.isdir(folder):
        raise ValueError(f"spill_to: there is no folder {folder!r}")
    return SpillPlace("file", os.path.abspath(folder), limit, bandwidth)


def folder_of(spill_to: str | os.PathLike[str]) -> str | None:
    """Return the folder that `spill_to` names, or None if it names the host."""
    try:
        folder = os.fspath(spill_to)
    except TypeError:
        raise TypeError(
            f"spill_to is 'host', a folder's path or None, not {spill_to!r}"
        ) from None
    return None if folder == "host" else folder


def _some_bytes(value: int | str | None, what: str) -> int | None:
    nbytes = None if value is None else parse_bytes(value, total_bytes=machine_bytes())
    if nbytes == 0:
        raise ValueError(f"{what} is at least a byte")
    return nbytes


class SpillRefusedError(ValueError):
    """The requested place for tensors does not fit their device."""


class Stores:
    """The stores of a model's steps, by the device that they run on.

    A store and its threads live as long as any step that was planned with it.

    Parameters
    ----------
    spill : SpillPlace
        The place that the user named.
    measured : bool
        Whether a GPU's copies are timed.
    """

    def __init__(self, spill: SpillPlace, *, measured: bool) -> None:
        self.spill = spill
        self._measured = measured
        self._made: WeakValueDictionary[torch.device, Store] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """The bytes of all memory of the stores."""
        return sum(store.nbytes for store in self._made.values())

    def of(self, devices: set[torch.device]) -> Store | None:
        """Return the store for steps on these devices; None if nothing need leave.

        Raises SpillRefusedError if the named place does not fit the device.
        """
        gpus = {each for each in devices if each.type == "cuda"}
        if gpus and self.spill.folder is not None:
            raise SpillRefusedError(
                "tensors of a GPU leave for the memory of the host: "
                "budget(..., spill_to='host')"
            )
        if gpus and self.spill.bandwidth is not None:
            raise SpillRefusedError(
                "lane_bandwidth is not for a GPU, whose copies are as fast as they are"
            )
        if not gpus and self.spill.folder is None:
            return None  # tensors of the CPU are in the host's memory already
        device = min(gpus, key=str, default=torch.device("cpu"))
        others = devices - {device, torch.device("cpu")}
        if others:
            names = ", ".join(sorted(map(str, {device, *others})))
            raise SpillRefusedError(f"spill_to is for one device, not {names}")
        store = self._made.get(device)
        if store is None:
            store = Store(self._medium(device), self.spill.limit_bytes)
            self._made[device] = store
        return store

    def _medium(self, device: torch.device) -> Medium:
        folder = self.spill.folder
        if folder is None:
            return HostMemory(device, measured=self._measured)
        return Files(folder, self.spill.bandwidth)
