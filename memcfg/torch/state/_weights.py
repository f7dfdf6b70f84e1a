"""Weights that lie in files, and the ops by which planned steps read them.

The op ``memcfg::read_weight`` makes a tensor in memory from the bytes of a file. It is
one like others of a plan: its result is freed after its last use, and made again where
it is needed again.
"""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary, ref

import torch

from memcfg.graph import NOMINAL_COPY
from memcfg.torch.spill._tensor_files import place_of
from memcfg.torch.trace._costs import told_by

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import fx

    from memcfg.torch.spill._tensor_files import Copies, Place

_numbers = count(1)
_weights: WeakValueDictionary[int, Weight] = WeakValueDictionary()


class Weight:
    """A parameter whose bytes lie in a file.

    Parameters
    ----------
    parameter : torch.Tensor
        The parameter.
    place : Place
        Where its bytes lie.
    reader : Reader
        Copies them.
    """

    def __init__(self, parameter: torch.Tensor, place: Place, reader: Reader) -> None:
        self.number = next(_numbers)
        self.place = place
        self.reader = reader
        self.dtype = parameter.dtype
        self.shape = tuple(parameter.shape)
        self.nbytes = parameter.nbytes
        self._parameter = ref(parameter)
        self._version = parameter._version
        _weights[self.number] = self

    def check(self) -> None:
        """Raise RuntimeError if the values in memory are others than in the file."""
        parameter = self._parameter()
        if parameter is None or self.place.file.is_ours:
            return
        if parameter._version != self._version or place_of(parameter) != self.place:
            raise RuntimeError(
                "a weight that is read from its file was changed in memory: load the "
                "weights by memcfg.torch.map_weights again, or take the budget off"
            )

    def empty(self) -> torch.Tensor:
        """Return memory for it."""
        return torch.empty(self.shape, dtype=self.dtype, device="cpu")


class Reader:
    """Reads weights from files, the next ones ahead while there is room.

    Parameters
    ----------
    copies : Copies
        What copies.
    ahead_bytes : int
        The most bytes of weights that are read before they are needed.
    """

    def __init__(self, copies: Copies, ahead_bytes: int = 0) -> None:
        self.copies = copies
        self.ahead_bytes = ahead_bytes
        self.ahead_peak_bytes = 0
        self._ahead: deque[tuple[int, torch.Tensor, Future[int]]] = deque()

    def take(self, weight: Weight, following: list[int]) -> torch.Tensor:
        """Return a weight in memory, and begin to read those that follow."""
        weight.check()
        known = list(self._ahead)
        while known and known[0][0] != weight.number:
            known.pop(0)
        if len(known) < len(self._ahead):  # another step than was expected
            self.drop(len(self._ahead) - len(known))
        if self._ahead:
            _, made, copy = self._ahead.popleft()
        else:
            made = weight.empty()
            copy = self.copies.read(weight.place, made)
        self._read_ahead(following)
        self.copies.traffic.wait(copy)
        return made

    def _read_ahead(self, following: list[int]) -> None:
        begun = [number for number, _, _ in self._ahead]
        held = sum(made.nbytes for _, made, _ in self._ahead)
        if begun != following[: len(begun)]:
            self.drop(len(begun))
            begun, held = [], 0
        for number in following[len(begun) :]:
            weight = _weights.get(number)
            if weight is None or held + weight.nbytes > self.ahead_bytes:
                break
            made = weight.empty()
            self._ahead.append((number, made, self.copies.read(weight.place, made)))
            held += weight.nbytes
        self.ahead_peak_bytes = max(self.ahead_peak_bytes, held)

    def drop(self, number: int | None = None) -> None:
        """Forget the first weights that were read ahead; None means all."""
        for _ in range(len(self._ahead) if number is None else number):
            self._ahead.popleft()[2].result()


def read_weight(number: int, following: list[int]) -> torch.Tensor:
    """Return a weight in memory."""
    weight = _weights[number]
    return weight.reader.take(weight, following)


def _fake_weight(number: int, following: list[int]) -> torch.Tensor:
    return _weights[number].empty()


_library = torch.library.Library("memcfg", "FRAGMENT")
_library.define("read_weight(int number, int[] following) -> Tensor")
_library.impl("read_weight", read_weight, "CompositeExplicitAutograd")
torch.library.register_fake("memcfg::read_weight", _fake_weight, lib=_library)
READ = torch.ops.memcfg.read_weight.default


def _seconds(node: fx.Node) -> tuple[float, int]:
    weight = _weights[node.args[0]]
    rate = weight.reader.copies.bandwidth or NOMINAL_COPY["file"]
    return weight.nbytes / rate, 0


told_by[READ] = _seconds


def follow(*graphs: fx.Graph, length: int = 16) -> None:
    """Tell each read of a weight which reads follow, over graphs that run in order."""
    nodes = [node for graph in graphs for node in graph.nodes if node.target is READ]
    numbers: list[Any] = [node.args[0] for node in nodes]
    for at, node in enumerate(nodes, 1):
        node.args = (node.args[0], numbers[at : at + length])
