"""The state of a model: what its programs must agree on, and the arena that has it.

Owns the arena, where each state tensor lies in it, and the checks before a load.

See docs/decisions/0001-one-arena-a-model.md.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from memcfg._core.engine import Arena, drop_ended
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memcfg.devices import Device, TierSpace
    from memcfg.graph import Graph
    from memcfg.memory import Pool

__all__ = [
    "ModelArena",
    "PackedState",
    "TierMemory",
    "check_load",
    "model_tag",
    "read_state",
    "state_bytes",
    "state_offsets",
    "write_state",
]


class ModelArena:
    """The arena of a model, made when it is first needed."""

    def __init__(self, pool: Pool, owner: str) -> None:
        self._pool = pool
        self._owner = owner
        self._arena: Arena | None = None

    @property
    def nbytes(self) -> int:
        """Its size in bytes; 0 while there is none."""
        result = self.now
        return 0 if result is None else result.nbytes

    @property
    def now(self) -> Arena | None:
        """The arena, if there is one: a freed one is none."""
        result = self._arena
        return None if result is None or result.freed else result

    def get(self) -> Arena:
        """Return the arena."""
        result = self.now
        if result is None:
            drop_ended()  # which may hold what there is no room for
            result = self._arena = self._pool.arena(tag=model_tag(self._owner))
        return result

    def has_room(self, nbytes: int) -> bool:
        """Return whether it can be so large where it is; a block cannot grow."""
        found = self.now
        room = 0 if found is None else found.reserved_addresses
        return room == 0 or nbytes <= room  # 0: that is open

    def grow(self, nbytes: int) -> None:
        """Make it at least so large; pre: it has room."""
        self.get().grow(nbytes)

    def replace(self, nbytes: int) -> None:
        """Give it back and have one so large; where that is refused, one as before.

        What was in it is lost. There are never both, since the limit is on their sum.
        """
        before = self.nbytes
        self.free()
        try:
            self.get().grow(nbytes)
        except ResourceExhaustedError:
            with suppress(ResourceExhaustedError):  # another may have taken it
                self.get().grow(before)
            raise

    def shrink(self, nbytes: int) -> None:
        """Make it so large, or free it; do nothing while a view into it is out."""
        found = self.now
        if found is not None:
            with suppress(BufferError):
                if nbytes:
                    found.shrink(nbytes)
                else:
                    found.free()

    def free(self) -> None:
        """Give it back; BufferError if a view is out, or a copy of a step goes on."""
        found = self.now
        if found is not None:
            drop_ended()
            found.free()


class PackedState:
    """Which program's packed weights are up to date in the arena.

    Those of the program that ran last are, until a weight changes.
    """

    __slots__ = ("program",)

    def __init__(self) -> None:
        self.program: object = None


class TierMemory:
    """What the programs of a model have on other tiers; nothing between two steps."""

    def __init__(self, device: Device, owner: str) -> None:
        self._device = device
        self._owner = owner
        self.spaces: dict[str, TierSpace] = {}
        self._reserved: Mapping[str, int] = {}

    def grow(self, sizes: Mapping[str, int], swapped: Mapping[str, int]) -> bool:
        """Have at least so many bytes of each; whether a space was made anew.

        Those of swapped tensors among them count against the tiers' limits. Where a
        space cannot be had, what was reserved before is.
        """
        before = self._reserved
        tiers = {*before, *swapped}
        both = {t: max(before.get(t, 0), swapped.get(t, 0)) for t in tiers}
        self._reserve(both)  # so that either can be had again
        try:
            anew = self._grow(sizes)
        except BaseException:
            self._reserve(before)
            raise
        self._reserve(swapped)
        return anew

    def _reserve(self, swapped: Mapping[str, int]) -> None:
        self._device.tier_limit.reserve(self, swapped)
        self._reserved = swapped

    def _grow(self, sizes: Mapping[str, int]) -> bool:
        anew = False
        for tier, nbytes in sizes.items():
            found = self.spaces.get(tier)
            if isinstance(found, Arena) and not found.freed:
                found.grow(nbytes)
            elif found is None or isinstance(found, Arena) or found.nbytes < nbytes:
                tag = model_tag(self._owner)
                made = self._device.tier_memory(tier, nbytes, tag=tag)
                anew = anew or found is not None
                self.spaces[tier] = made
        return anew

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether nothing is held that is not needed."""
        return all(sizes.get(t, 0) == s.nbytes for t, s in self.spaces.items())

    def shrink(self, sizes: Mapping[str, int], swapped: Mapping[str, int]) -> None:
        """Give back what is not needed; pre: no program refers to it.

        What is larger than needed and cannot shrink goes whole: `grow` makes another.
        """
        self._reserve(swapped)
        for tier, space in list(self.spaces.items()):
            needed = sizes.get(tier, 0)
            if isinstance(space, Arena) and needed:
                space.shrink(needed)
            elif needed < space.nbytes:
                del self.spaces[tier]


def model_tag(name: str) -> str:
    """Return what a model's memory is listed under in its device's pool."""
    return f"model {name}"


def state_offsets(graph: Graph) -> dict[str, int]:
    """Return the offset of each state tensor: in order from 0, in every program."""
    offsets: dict[str, int] = {}
    end = 0
    for tensor in graph.persistent:
        found = graph.tensors[tensor]
        offsets[found.name] = end
        end += align_up(found.nbytes)
    return offsets


def read_state(
    device: Device, arena: Arena, graph: Graph, name: str, offset: int
) -> npt.NDArray[Any]:
    """Return a copy of a state tensor."""
    found = graph.tensors[graph.find(name)]
    array = np.empty(found.shape or (), found.dtype)
    device.read(arena, offset, array)
    return array


def write_state(
    device: Device,
    arena: Arena,
    graph: Graph,
    name: str,
    offset: int,
    value: npt.ArrayLike,
) -> None:
    """Overwrite a state tensor by a value of its shape, or one that becomes so."""
    found = graph.tensors[graph.find(name)]
    staged = device.staging(arena, offset, found.shape or (), found.dtype or "uint8")
    staged[...] = value
    device.write(arena, offset, staged)


def state_bytes(graph: Graph) -> int:
    """Return the end of the state in the arena: it lies first, without gaps.

    Parameters
    ----------
    graph : Graph
        A graph.

    Returns
    -------
    int
        Bytes.
    """
    return sum(align_up(graph.tensors[tensor].nbytes) for tensor in graph.persistent)


def check_load(
    device: Device, graphs: Mapping[str, Graph], known: Collection[str]
) -> None:
    """Refuse a device that cannot run anything, and graphs that do not fit together.

    Raises RuntimeError, or ValueError if there is no graph, they do not agree about the
    state, or some of it has no value.
    """
    if device.space == "addresses":
        raise RuntimeError(
            f"{device.name} is simulated: it has addresses without memory, so programs "
            "can be planned on it and not run; place the model on a CPU to run it"
        )
    if not graphs:
        raise ValueError("there is nothing to load")
    states = {
        tuple(graph.tensors[i] for i in graph.persistent) for graph in graphs.values()
    }
    if len(states) > 1:
        raise ValueError("the graphs of one model must list the same state")
    for tensor in states.pop():
        if tensor.name not in known:
            raise ValueError(f"state {tensor.name!r} has no value")
