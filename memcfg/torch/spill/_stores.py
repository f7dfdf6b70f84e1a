"""The stores of tensors that leave: files of those of the CPU, the host's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes

from memcfg._core import Lane, ScratchFile, Transfer
from memcfg.graph import NOMINAL_COPY
from memcfg.torch.saved._saved_bytes import flat
from memcfg.torch.spill._page_locked import PageLocked, Streams, bytes_of, measured_rate
from memcfg.torch.spill._spill_file import check_disk
from memcfg.torch.spill._spill_store import Store

if TYPE_CHECKING:
    from memcfg.devices import SpillPlace
    from memcfg.torch.spill._spill_store import Copy, Region


class _FileCopy:
    """A copy by a lane; it ends before it is garbage-collected."""

    __slots__ = ("_transfer",)

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def wait(self) -> None:
        """Wait; OSError if it failed."""
        self._transfer.wait()

    def settle(self) -> None:
        """Do nothing: who drops it waits."""


class FileStore(Store):
    """Files without names, and a thread for each direction: of tensors on the CPU."""

    name = "file"
    device = torch.device("cpu")

    def __init__(self, spill: SpillPlace) -> None:
        assert spill.folder is not None
        self._folder = spill.folder
        self._bandwidth = spill.bandwidth
        super().__init__(spill, spill.bandwidth or NOMINAL_COPY[self.name])
        self.start()

    def start(self) -> None:
        """Make the lanes."""
        self._in, self._out = Lane(self._bandwidth), Lane(self._bandwidth)

    def make(self, nbytes: int) -> ScratchFile:
        """Make a file whose bytes the disk has given."""
        check_disk(self._folder, nbytes, "the tensors of a step")
        return ScratchFile(self._folder, nbytes)

    def copy_out(self, region: Region, offset: int, storage: Any) -> Copy:
        """Write a storage."""
        source = flat(storage, 0, storage.nbytes())
        lane = self._out
        return _FileCopy(Transfer.write(region.memory, offset, source.data, lane))

    def copy_in(self, region: Region, offset: int, storage: Any) -> Copy:
        """Read a storage."""
        target = flat(storage, 0, storage.nbytes())
        return _FileCopy(Transfer.read(region.memory, offset, target.data, self._in))


class PageLockedStore(Store):
    """Page-locked memory of the host, and a stream each way: of tensors on a GPU.

    No stream's allocator hears of another (``record_stream``), which would free bytes
    later than planned: the computing stream waits for a copy before its bytes end.
    """

    name = "host"

    def __init__(
        self, spill: SpillPlace, device: torch.device, *, measured: bool
    ) -> None:
        self.device = device
        self.start()
        rate = NOMINAL_COPY[self.name]
        if measured:
            with unset_fake_temporarily(), _disable_current_modes():  # while traced
                rate = measured_rate(device, self._streams)
        super().__init__(spill, rate)

    def start(self) -> None:
        """Make the streams."""
        self._streams = Streams(self.device)

    def make(self, nbytes: int) -> PageLocked:
        """Lock pages of the host."""
        with unset_fake_temporarily(), _disable_current_modes():  # while traced
            return PageLocked(nbytes)

    def copy_out(self, region: Region, offset: int, storage: Any) -> Copy:
        """Copy a storage to the host."""
        there = region.memory.tensor[offset : offset + storage.nbytes()]
        return self._streams.copy_out(there, bytes_of(storage, self.device))

    def copy_in(self, region: Region, offset: int, storage: Any) -> Copy:
        """Copy a storage from the host."""
        there = region.memory.tensor[offset : offset + storage.nbytes()]
        return self._streams.copy_in(bytes_of(storage, self.device), there)


class SpillRefusedError(ValueError):
    """What was asked for where tensors go is not for their device."""


class Stores:
    """The stores of a module's steps, by the device that they run on.

    A store, with its threads, lives as long as a step that was planned with it.

    Parameters
    ----------
    spill : SpillPlace
        What the user said.
    measured : bool
        Whether a GPU's copies are timed.
    """

    def __init__(self, spill: SpillPlace, *, measured: bool) -> None:
        self.spill = spill
        self._measured = measured
        self._made: WeakValueDictionary[torch.device, Store] = WeakValueDictionary()

    @property
    def nbytes(self) -> int:
        """The bytes of all regions."""
        return sum(store.nbytes for store in self._made.values())

    def of(self, devices: set[torch.device]) -> Store | None:
        """Return the store of what runs on these; None: nothing need leave.

        SpillRefusedError if it cannot be where the user said.
        """
        gpus = {each for each in devices if each.type == "cuda"}
        if gpus and self.spill.folder is not None:
            raise SpillRefusedError(
                "tensors of a GPU leave for the memory of the host: spill_to='host'"
            )
        if gpus and self.spill.bandwidth is not None:
            raise SpillRefusedError(
                "lane_bandwidth is not for a GPU, whose copies are as fast as they are"
            )
        if not gpus and self.spill.folder is None:
            return None  # they are in the host's memory
        device = min(gpus, key=str, default=torch.device("cpu"))
        others = devices - {device, torch.device("cpu")}
        if others:
            names = ", ".join(sorted(map(str, {device, *others})))
            raise SpillRefusedError(f"spill_to is for one device, not {names}")
        store = self._made.get(device)
        if store is None:
            if device.type == "cuda":
                store = PageLockedStore(self.spill, device, measured=self._measured)
            else:
                store = FileStore(self.spill)
            self._made[device] = store
        return store
