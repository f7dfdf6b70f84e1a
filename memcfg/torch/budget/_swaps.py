"""Functions that emitted graphs call to move tensors out and back.

In the graphs, a token stands for the bytes that a pass has elsewhere, or for a tensor
that has left.
"""

from __future__ import annotations

import warnings
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch

from memcfg._caller import outside
from memcfg.errors import ResourceExhaustedError
from memcfg.torch.spill._media import bytes_of
from memcfg.torch.trace._tokens import held_by, token_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.torch.spill._store import Copy, Extent, Store

_numbers = count(1)
_stores: WeakValueDictionary[int, Store] = WeakValueDictionary()


class _Pass:
    """The bytes that a pass has elsewhere."""

    __slots__ = ("__weakref__", "extent", "nbytes", "store")

    def __init__(self, store: Store, nbytes: int) -> None:
        self.store = store
        self.nbytes = nbytes
        self.extent = extent_of(store, nbytes)


class _Away:
    """A tensor that has left: where its bytes are, and its layout.

    Copies hold its memory, so it is not reused before a copy has been waited for.
    """

    __slots__ = (
        "__weakref__",
        "back",
        "device",
        "extent",
        "geometry",
        "nbytes",
        "offset",
        "out",
        "stays",
    )

    def __init__(self, extent: Extent, offset: int, tensors: Sequence[Any]) -> None:
        self.extent = extent
        self.device = tensors[0].device
        self.offset = offset
        self.nbytes = tensors[0].untyped_storage().nbytes()
        self.geometry = [
            (each.dtype, each.storage_offset(), tuple(each.shape), each.stride())
            for each in tensors
        ]
        self.out: Copy | None = None
        self.back: Copy | None = None
        self.stays: list[Any] | None = None  # it stays after all

    def view(self, number: int, storage: Any) -> torch.Tensor:
        """Return a tensor over the bytes that come back."""
        dtype, offset, shape, stride = self.geometry[number]
        made = torch.empty(0, dtype=dtype, device=self.device)
        return made.set_(storage, offset, shape, stride)


def register(store: Store) -> int:
    """Return the number by which emitted graphs find a store while it lives."""
    for number, each in _stores.items():
        if each is store:
            return number
    number = next(_numbers)
    _stores[number] = store
    return number


def _of(token: torch.Tensor) -> Any:
    """Return the object of a token; raise RuntimeError if it is gone."""
    result = held_by(token)
    if result is None:
        raise RuntimeError(
            "the place of a tensor that left is gone: the tensors that autograd saved "
            "were copied. Run a budgeted module without hooks on saved tensors"
        )
    return result


def extent_of(store: Store, nbytes: int) -> Extent:
    """Take the bytes of a pass; raise ResourceExhaustedError if others have them."""
    extent = store.take(nbytes)
    if extent is None:
        raise ResourceExhaustedError(
            f"The tier {store.medium.name!r} of planned steps is full: other steps "
            "have run forward, and not yet backward.",
            requested_bytes=nbytes,
            in_use_bytes=store.nbytes,
            limit_bytes=store.limit_bytes,
            device=str(store.medium.device),
            hint="Run backward before the next forward, or raise spill_limit.",
        )
    return extent


def spill_region(store: int, nbytes: int) -> torch.Tensor:
    """Begin the copies of a pass."""
    return token_of(_Pass(_stores[store], nbytes))


def spill_region_again(token: torch.Tensor) -> torch.Tensor:
    """Continue copies in backward, in new bytes if forward's may be read again."""
    now = _of(token)
    if torch._C._current_graph_task_id() == -1:
        return token
    if not torch._C._autograd._get_current_graph_task_keep_graph():
        return token
    return token_of(_Pass(now.store, now.nbytes))


def swap_out(
    token: torch.Tensor, tensors: Sequence[torch.Tensor], offset: int, nbytes: int
) -> torch.Tensor:
    """Begin to copy out the storage that tensors view."""
    now = _of(token)
    now.extent.check_process()
    away = _Away(now.extent, offset, tensors)
    if away.nbytes > nbytes:
        warnings.warn(
            f"a tensor of {away.nbytes} bytes was planned with {nbytes}, and stays: "
            "the peak may be above the limit",
            RuntimeWarning,
            stacklevel=outside("torch"),
        )
    if away.nbytes > nbytes or away.device != now.store.medium.device:
        away.stays = list(tensors)
    else:
        storage = tensors[0].untyped_storage()
        away.out = now.extent.copy_out(bytes_of(storage, away.device), offset)
    return token_of(away)


def swapped_out(token: torch.Tensor) -> torch.Tensor:
    """Wait for a copy out, and release the storage."""
    away = _of(token)
    if away.out is not None:
        away.out.wait()
        away.out = None
    return token


def swap_in(token: torch.Tensor) -> torch.Tensor:
    """Begin to copy a storage back into a new one."""
    away = _of(token)
    if away.stays is not None:
        return away.stays[0]
    away.extent.check_process()
    if away.out is not None:
        swapped_out(token)
    made = torch.empty(away.nbytes, dtype=torch.uint8, device=away.device)
    away.back = away.extent.copy_in(made, away.offset)
    return away.view(0, made.untyped_storage())


def swapped_in(first: torch.Tensor, token: torch.Tensor, number: int) -> torch.Tensor:
    """Wait for a copy back; return one of the tensors that viewed the storage."""
    away = _of(token)
    if away.stays is not None:
        return away.stays[number]
    if away.back is not None:
        away.back.wait()
        away.back = None
    return first if number == 0 else away.view(number, first.untyped_storage())
