"""What autograd saves: the bytes of a storage, and tensors that view them."""

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
    """Bytes elsewhere: of a code, or of the tensors as they are."""

    extent: Extent
    nbytes: int  # of what is there
    codec: str | None
    sizes: tuple[int, ...]  # of the code's pieces


@dataclass(frozen=True, slots=True)
class Ahead:
    """Bytes that are on their way from elsewhere."""

    buffer: torch.Tensor  # uint8
    copy: Copy
    charge: Charge


class SavedBytes:
    """The bytes of a storage, as they were when tensors over it were saved.

    They are kept by `aliases`, which share the storage, or in `code`, or `spilled`; or
    they were `lost`. What comes back is a copy of [start, stop).
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
        self.storage = StorageWeakRef(storage)  # no other one has its address meanwhile
        self.storage_bytes: int = storage.nbytes()
        self.device = tensor.device
        self.version = tensor._version
        self.is_float32 = True
        self.start: int = self.storage_bytes
        self.stop: int = 0
        self.aliases: dict[int, torch.Tensor] = {}  # by a number of the saved tensor
        self.spoiled: dict[int, int] = {}  # versions of what was changed since
        self.number = 0  # of the next
        self.waiting = 0  # saved tensors that were not read yet
        self.charge: Charge | None = None
        self.code: Code | None = None
        self.spilled: Spilled | None = None
        self.decoded: torch.Tensor | None = None  # uint8, kept for who reads them next
        self.decoded_charge: Charge | None = None
        self.ahead: Ahead | None = None
        self.leaving: Copy | None = None  # a copy of what is still kept
        self.record: tuple[int, Record] | None = None  # and its index in the pass
        self.lost = False

    @property
    def is_kept(self) -> bool:
        """Whether the storage itself is held."""
        return bool(self.aliases)

    @property
    def nbytes(self) -> int:
        """The bytes that tensors need of it."""
        return self.stop - self.start

    def add(self, tensor: torch.Tensor) -> SavedTensor | None:
        """Save a tensor over the same storage; None if what is there will not do."""
        start, stop = byte_range(tensor)
        is_float32 = bool(tensor.dtype == torch.float32)
        if tensor._version != self.version or self.lost:
            return None
        if self.is_kept or self.number == 0:
            self.aliases[self.number] = tensor.detach()
            if start < self.start or stop > self.stop:
                self.leaving = None  # it would not do
            self.start = min(self.start, start // _LINE * _LINE)
            self.stop = max(self.stop, stop)
            self.is_float32 &= is_float32
        elif not (
            (self.code is not None or self.spilled is not None)  # not all were changed
            and self.start <= start
            and stop <= self.stop
            and self.is_float32 <= is_float32
        ):
            return None
        self.number += 1
        self.waiting += 1
        return SavedTensor(self, self.number - 1, tensor)

    def spoil(self) -> bool:
        """Drop aliases of tensors that were changed since; whether others are left.

        To read those that were changed is an error.
        """
        for number, alias in list(self.aliases.items()):
            if alias._version != self.version:
                self.spoiled[number] = alias._version
                del self.aliases[number]
        if not self.aliases and self.code is None and self.spilled is None:
            self.charge = None
        return bool(self.aliases)

    def is_held_elsewhere(self) -> bool:
        """Return whether somebody else holds the storage."""
        alias = next(iter(self.aliases.values()))
        storage = alias.untyped_storage()  # holds it too, once
        count = int(torch._C._storage_Use_Count(storage._cdata))
        return count - 1 > len(self.aliases)

    def source(self) -> torch.Tensor:
        """Return the bytes that tensors need, of a storage that is kept."""
        alias = next(iter(self.aliases.values()))
        return bytes_of(alias.untyped_storage(), self.device)[self.start : self.stop]

    def lose(self) -> None:
        """Give everything back."""
        self.aliases = {}
        self.charge = self.code = self.spilled = self.ahead = self.leaving = None
        self.drop_copy()
        self.lost = True

    def drop_copy(self) -> None:
        """Forget what was decoded or read ahead; the bytes are elsewhere."""
        self.decoded = self.decoded_charge = self.ahead = None


class SavedTensor:
    """A tensor that autograd has saved: what a node of its graph holds instead."""

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
        self.charge: Charge | None = None  # of what cannot be packed
        self.version = tensor._version
        self.dtype = tensor.dtype
        self.shape = () if tensor.is_nested else tuple(tensor.shape)
        if saved is None:  # somebody else holds it, or it cannot be packed
            self.alias: torch.Tensor | None = tensor.detach()
            return
        self.alias = None
        self.owner = weakref.ref(tensor)
        self.stride, self.offset = tensor.stride(), tensor.storage_offset()
        self.is_conj, self.is_neg = tensor.is_conj(), tensor.is_neg()

    def check(self) -> torch.Tensor | None:
        """Return the tensor if it is held as it is; RuntimeError if it was changed."""
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
        """Return the tensor over a copy of the bytes."""
        assert self.saved is not None
        made = torch.empty(0, dtype=self.dtype, device=self.saved.device)
        offset = self.offset - self.saved.start // made.itemsize
        made.set_(copy.untyped_storage(), offset, self.shape, self.stride)
        if self.is_conj:
            made = torch._conj(made)
        return torch._neg_view(made) if self.is_neg else made


def byte_range(tensor: torch.Tensor) -> tuple[int, int]:
    """Return where in its storage a tensor begins and ends, in bytes."""
    start = tensor.storage_offset()
    if tensor.numel() == 0:
        return 0, 0
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = start + sum((size - 1) * stride for size, stride in strides)
    return start * tensor.itemsize, (last + 1) * tensor.itemsize
