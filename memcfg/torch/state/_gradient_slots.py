"""Gradients that leave for a file as soon as backward has computed them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from memcfg.graph import NOMINAL_COPY
from memcfg.torch.spill._tensor_files import Place, TensorFile
from memcfg.torch.trace._costs import told_by

if TYPE_CHECKING:
    from torch import fx

    from memcfg.torch.spill._tensor_files import Copies

_numbers = count(1)
_slots: WeakValueDictionary[int, Slot] = WeakValueDictionary()
PIECE = 2**20  # elements that are copied or updated at a time: a multiple of a vector's


class Slot:
    """The place of a parameter's gradient.

    Gradients of earlier steps may be held while another is made: each then has bytes of
    its own.

    Parameters
    ----------
    parameter : torch.Tensor
        The parameter.
    file : TensorFile
        Has room for its gradient.
    folder : str
        Where files for further gradients are made.
    copies : Copies
        What copies.
    """

    def __init__(
        self, parameter: torch.Tensor, file: TensorFile, folder: str, copies: Copies
    ) -> None:
        self.number = next(_numbers)
        self.shape, self.stride = tuple(parameter.shape), parameter.stride()
        self.dtype, self.nbytes = parameter.dtype, parameter.nbytes
        self._folder, self.copies = folder, copies
        self._places = [Place(file, file.take(self.nbytes))]
        self._held: list[StorageWeakRef | None] = [None]
        _slots[self.number] = self

    def put(self, gradient: torch.Tensor) -> torch.Tensor:
        """Write a gradient to a file, and return a tensor over its bytes there."""
        at = self._free()
        place = self._places[at]
        # Whole rows of about a piece: a gradient may be a view in another layout.
        rows = gradient.reshape(-1) if gradient.dim() == 0 else gradient
        width = max(1, rows[0].numel()) if rows.dim() > 1 else 1
        step, offset = max(1, PIECE // width), place.offset
        for part in rows.split(step):
            part = part.contiguous()
            copy = self.copies.write(Place(place.file, offset), part)
            self.copies.traffic.wait(copy)
            offset += part.nbytes
        made = place.file.tensor(place.offset, self.dtype, self.shape)
        self._held[at] = StorageWeakRef(made.untyped_storage())
        return made

    def _free(self) -> int:
        """Return the number of a place that no gradient has."""
        for at, held in enumerate(self._held):
            if held is None or held.expired():
                return at
        file = TensorFile.scratch(self._folder, self.nbytes)
        self._places.append(Place(file, file.take(self.nbytes)))
        self._held.append(None)
        return len(self._held) - 1


def put_gradient(gradient: torch.Tensor, number: int) -> torch.Tensor:
    """Write a gradient to its file, and return it there."""
    return _slots[number].put(gradient)


def _fake_gradient(gradient: torch.Tensor, number: int) -> torch.Tensor:
    slot = _slots[number]
    return torch.empty_strided(slot.shape, slot.stride, dtype=slot.dtype, device="cpu")


_library = torch.library.Library("memcfg", "FRAGMENT")
_library.define("put_gradient(Tensor gradient, int number) -> Tensor")
_library.impl("put_gradient", put_gradient, "CompositeExplicitAutograd")
torch.library.register_fake("memcfg::put_gradient", _fake_gradient, lib=_library)
PUT = torch.ops.memcfg.put_gradient.default


def _seconds(node: fx.Node) -> tuple[float, int]:
    slot = _slots[node.args[1]]
    rate = slot.copies.bandwidth or NOMINAL_COPY["file"]
    # of a part that is made contiguous
    return slot.nbytes / rate, min(PIECE * slot.dtype.itemsize, slot.nbytes)


told_by[PUT] = _seconds
