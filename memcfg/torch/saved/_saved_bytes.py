"""The bytes of storages that autograd saves, and the tensors that view them."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcfg.torch.spill._media import bytes_of

if TYPE_CHECKING:
    from memcfg.torch.saved._account import Charge
    from memcfg.torch.saved._codes import Code
    from memcfg.torch.saved._passes import Record
    from memcfg.torch.spill._store import Copy, Extent

_LINE = 64  # bytes: tensors keep their alignment, or sums may round differently


@dataclass(frozen=True, slots=True)
class Spilled:
    """Bytes of a code, or of the tensors themselves, in a store."""

    extent: Extent
    nbytes: int  # in the store
    codec: str | None
    sizes: tuple[int, ...]  # of the pieces of the code


@dataclass(frozen=True, slots=True)
class Ahead:
    """Bytes that are being read from a store."""

    buffer: torch.Tensor  # uint8
    copy: Copy
    charge: Charge


class SavedBytes:
    """The bytes of a storage, as they were when tensors over it were saved.

    They are held by `aliases`, which share the storage, in `code`, or in `spilled`; or
    they were `lost`. Reading them back gives a copy of [start, stop).
    """

    __slots__ = (
        "__weakref__",
        "ahead",
        "aliases",
        "charge",
        "code",
        "decoded",
        "decoded_charge",
        "device",
        "is_float32",
        "leaving",
        "lost",
        "number",
        "record",
        "spilled",
        "spoiled",
        "start",
        "stop",
        "storage",
        "storage_bytes",
        "version",
        "waiting",
    )

    def __init__(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        # keeps its address from being reused meanwhile
        self.storage = StorageWeakRef(storage)
        self.storage_bytes: int = storage.nbytes()
        self.device = tensor.device
        self.version = tensor._version
        self.is_float32 = True
        self.start: int = self.storage_bytes
        self.stop: int = 0
        self.aliases: dict[int, torch.Tensor] = {}  # by the number of the saved tensor
        self.spoiled: dict[int, int] = {}  # versions of tensors that were changed since
        self.number = 0  # the number of the next saved tensor
        self.waiting = 0  # saved tensors that have not been read yet
        self.charge: Charge | None = None
        self.code: Code | None = None
        self.spilled: Spilled | None = None
        # uint8, kept for the saved tensors that are still to be read
        self.decoded: torch.Tensor | None = None
        self.decoded_charge: Charge | None = None
        self.ahead: Ahead | None = None
        self.leaving: Copy | None = None  # a copy of the storage that is still held
        self.record: tuple[int, Record] | None = None  # with its index in the pass
        self.lost = False

    @property
    def is_kept(self) -> bool:
        """Whether the storage itself is held."""
        return bool(self.aliases)

    @property
    def nbytes(self) -> int:
        """The bytes of the storage that tensors need."""
        return self.stop - self.start

    def add(self, tensor: torch.Tensor) -> SavedTensor | None:
        """Save a tensor over the same storage; None if the held bytes lack some."""
        start, stop = byte_range(tensor)
        is_float32 = bool(tensor.dtype == torch.float32)
        if tensor._version != self.version or self.lost:
            return None
        if self.is_kept or self.number == 0:
            self.aliases[self.number] = tensor.detach()
            if start < self.start or stop > self.stop:
                self.leaving = None  # it does not include all bytes
            self.start = min(self.start, start // _LINE * _LINE)
            self.stop = max(self.stop, stop)
            self.is_float32 &= is_float32
        elif not (
            # not all of them were changed
            (self.code is not None or self.spilled is not None)
            and self.start <= start
            and stop <= self.stop
            and self.is_float32 <= is_float32
        ):
            return None
        self.number += 1
        self.waiting += 1
        return SavedTensor(self, self.number - 1, tensor)

    def spoil(self) -> bool:
        """Drop aliases of tensors that were changed since; return whether any are left.

        Reading a tensor that was changed is an error.
        """
        for number, alias in list(self.aliases.items()):
            if alias._version != self.version:
                self.spoiled[number] = alias._version
                del self.aliases[number]
        if not self.aliases and self.code is None and self.spilled is None:
            self.charge = None
        return bool(self.aliases)

    def is_held_elsewhere(self) -> bool:
        """Return whether others hold the storage, too."""
        alias = next(iter(self.aliases.values()))
        storage = alias.untyped_storage()  # this is one more reference
        count = int(torch._C._storage_Use_Count(storage._cdata))
        return count - 1 > len(self.aliases)

    def source(self) -> torch.Tensor:
        """Return the bytes that tensors need, from the storage itself."""
        alias = next(iter(self.aliases.values()))
        return bytes_of(alias.untyped_storage(), self.device)[self.start : self.stop]

    def lose(self) -> None:
        """Release everything."""
        self.aliases = {}
        self.charge = self.code = self.spilled = self.ahead = self.leaving = None
        self.drop_copy()
        self.lost = True

    def drop_copy(self) -> None:
        """Drop bytes that were decoded or read ahead; they are also held elsewhere."""
        self.decoded = self.decoded_charge = self.ahead = None


class SavedTensor:
    """A tensor that autograd has saved, as held by a node of its graph."""

    __slots__ = (
        "__weakref__",
        "alias",
        "charge",
        "dtype",
        "is_conj",
        "is_neg",
        "number",
        "offset",
        "owner",
        "read",
        "saved",
        "shape",
        "stride",
        "version",
    )

    def __init__(
        self, saved: SavedBytes | None, number: int, tensor: torch.Tensor
    ) -> None:
        self.saved = saved
        self.number = number
        self.read = False
        self.charge: Charge | None = None  # of a tensor that cannot be packed
        self.version = tensor._version
        self.dtype = tensor.dtype
        self.shape = () if tensor.is_nested else tuple(tensor.shape)
        if saved is None:  # others hold its memory, or it cannot be packed
            self.alias: torch.Tensor | None = tensor.detach()
            return
        self.alias = None
        self.owner = weakref.ref(tensor)
        self.stride, self.offset = tensor.stride(), tensor.storage_offset()
        self.is_conj, self.is_neg = tensor.is_conj(), tensor.is_neg()

    def check(self) -> torch.Tensor | None:
        """Return the tensor if it is held; raise RuntimeError if it was changed."""
        saved = self.saved
        alias = self.alias if saved is None else saved.aliases.get(self.number)
        version = self.version
        if alias is not None:
            version = alias._version
        elif saved is not None and self.number in saved.spoiled:
            version = saved.spoiled[self.number]
        elif saved is not None and (owner := self.owner()) is not None:
            version = owner._version
        if version != self.version:
            kind = torch.empty(0, dtype=self.dtype).type()
            raise RuntimeError(
                "one of the variables needed for gradient computation has been "
                f"modified by an inplace operation: [{kind} {list(self.shape)}] is at "
                f"version {version}; expected version {self.version} instead."
            )
        if saved.lost if saved is not None else alias is None:
            raise RuntimeError(
                "a saved tensor is gone: all were released when the limit of "
                "saved_tensors was exceeded. Run forward again"
            )
        return alias

    def view(self, copy: torch.Tensor) -> torch.Tensor:
        """Return the tensor as a view of a copy of the bytes."""
        assert self.saved is not None
        made = torch.empty(0, dtype=self.dtype, device=self.saved.device)
        offset = self.offset - self.saved.start // made.itemsize
        made.set_(copy.untyped_storage(), offset, self.shape, self.stride)
        if self.is_conj:
            made = torch._conj(made)
        return torch._neg_view(made) if self.is_neg else made


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the byte range of a tensor in its storage."""
    start = tensor.storage_offset()
    if tensor.numel() == 0:
        return 0, 0
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = start + sum((size - 1) * stride for size, stride in strides)
    return start * tensor.itemsize, (last + 1) * tensor.itemsize
