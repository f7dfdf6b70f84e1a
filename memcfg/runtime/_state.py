"""The state of a model, which its programs share, and the arena that holds it.

Owns the arena, the offset of each state tensor, and the checks before a load.

See docs/decisions/0001-one-arena-a-model.md.
"""

from __future__ import annotations

from contextlib import suppress
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from memcfg._core import Counter
from memcfg._core.engine import Arena, drop_ended
from memcfg.errors import ResourceExhaustedError
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from memcfg.devices import Device, Packing, TierSpace, UnboundKernel
    from memcfg.graph import Graph
    from memcfg.memory import Pool

__all__ = [
    "FirstValue",
    "ModelArena",
    "PackedState",
    "Slot",
    "TierMemory",
    "check_load",
    "model_tag",
    "read_state",
    "state_bytes",
    "state_offsets",
    "write_state",
]


class ModelArena:
    """The arena of a model, created on first use."""

    def __init__(self, pool: Pool, owner: str) -> None:
        self._pool = pool
        self._owner = owner
        self._arena: Arena | None = None

    @property
    def nbytes(self) -> int:
        """The size of the arena in bytes; 0 if there is none."""
        result = self.now
        return 0 if result is None else result.nbytes

    @property
    def now(self) -> Arena | None:
        """The arena, or None if there is none or it was freed."""
        result = self._arena
        return None if result is None or result.freed else result

    def get(self) -> Arena:
        """Return the arena, creating it if necessary."""
        result = self.now
        if result is None:
            drop_ended()  # ended steps may still hold the memory it needs
            result = self._arena = self._pool.arena(tag=model_tag(self._owner))
        return result

    def has_room(self, nbytes: int) -> bool:
        """Return whether the arena can grow to `nbytes` in place; a block cannot."""
        arena = self.now
        room = 0 if arena is None else arena.reserved_addresses
        return room == 0 or nbytes <= room  # 0: capacity not known yet

    def grow(self, nbytes: int) -> None:
        """Grow the arena to at least `nbytes`; requires `has_room`."""
        self.get().grow(nbytes)

    def replace(self, nbytes: int) -> None:
        """Free the arena and allocate one of `nbytes`, or one as before if that fails.

        The contents are lost. The two never coexist, since the limit applies to their
        sum.
        """
        before = self.nbytes
        self.free()
        try:
            self.get().grow(nbytes)
        except ResourceExhaustedError:
            # another owner may have taken the memory
            with suppress(ResourceExhaustedError):
                self.get().grow(before)
            raise

    def shrink(self, nbytes: int) -> None:
        """Shrink the arena, or free it for 0 bytes; do nothing while a view exists."""
        arena = self.now
        if arena is not None:
            with suppress(BufferError):
                if nbytes:
                    arena.shrink(nbytes)
                else:
                    arena.free()

    def free(self) -> None:
        """Free the arena; raise BufferError if a view or an unfinished copy uses it."""
        arena = self.now
        if arena is not None:
            drop_ended()
            arena.free()


@runtime_checkable
class FirstValue(Protocol):
    """The first value of a state tensor, which is not drawn yet."""

    @property
    def draws_in_place(self) -> bool:
        """Whether `draw_into` may be called."""

    def first_value(self) -> npt.NDArray[Any]:
        """Draw the value."""

    def draw_into(self, values: npt.NDArray[Any], /) -> None:
        """Draw the value into an array of the tensor's shape and dtype."""


class Slot(NamedTuple):
    """Where a weight lies that a program reads packed in its own place."""

    offset: int
    nbytes: int  # of the plain weight
    packing: Packing


class _Lying(NamedTuple):
    """A weight that is packed while the counter is 1; it is 0 before and 2 after."""

    slot: Slot
    counter: Counter


class PackedState:
    """The packed weights in an arena.

    `program` is the one whose packed weights are up to date: it ran last, and no weight
    has changed since. Weights that lie packed in their own place do so until a program
    reads them in another layout. A counter advances with the run that changes a layout,
    so that no interrupt comes between the two.
    """

    __slots__ = ("_lying", "program")

    def __init__(self) -> None:
        self.program: object = None
        self._lying: dict[str, _Lying] = {}

    def bring(self, device: Device, arena: Arena, wanted: Mapping[str, Slot]) -> None:
        """Bring weights into the layouts that are wanted, and others into plain ones.

        Takes no memory but a bit for each 16 to 256 bytes of one weight at a time.
        """
        for name, (slot, _) in list(self._lying.items()):
            other = wanted.get(name)
            if other is None or other.packing.layout != slot.packing.layout:
                self.unpack(device, arena, name)
        for name, slot in wanted.items():
            if not self._is_packed(name):
                made = self._lying[name] = _Lying(slot, Counter())
                _change(device, arena, slot, slot.packing.pack, made.counter)

    def unpack(self, device: Device, arena: Arena, name: str) -> None:
        """Bring a weight into its plain layout."""
        if self._is_packed(name):
            slot, counter = self._lying[name]
            assert slot.packing.unpack is not None
            _change(device, arena, slot, slot.packing.unpack, counter)
        self._lying.pop(name, None)

    def read(self, device: Device, arena: Arena, name: str) -> npt.NDArray[Any] | None:
        """Return the bytes of the plain weight; None if it lies plain in its place.

        It does after this on a device whose kernels cannot run on the host's memory.
        """
        if not self._is_packed(name):
            return None
        if device.space != "host":
            self.program = None
            self.unpack(device, arena, name)
            return None
        slot = self._lying[name].slot
        assert slot.packing.unpack is not None
        raw = np.empty(slot.packing.nbytes, np.uint8)
        device.read(arena, slot.offset, raw)
        slot.packing.unpack.run([raw.ctypes.data] * 2, 0)
        return raw[: slot.nbytes]

    def forget(self, name: str) -> None:
        """Take a weight as plain, since it is about to be written."""
        self._lying.pop(name, None)

    def forget_all(self) -> None:
        """Take all weights as plain, since the arena goes."""
        self.program = None
        self._lying.clear()

    def _is_packed(self, name: str) -> bool:
        lying = self._lying.get(name)
        return lying is not None and lying.counter.value == 1


def _change(
    device: Device, arena: Arena, slot: Slot, kernel: UnboundKernel, counter: Counter
) -> None:
    """Change a weight's layout in its place."""
    sizes = [slot.nbytes, slot.packing.nbytes]
    if kernel is slot.packing.unpack:
        sizes.reverse()
    loop = device.program(arena, {})
    loop.compute(kernel.instruction(), [(0, slot.offset)] * 2, sizes, None)
    loop.run(False, counter)


class TierMemory:
    """The memory of a model's programs on other tiers; holds no data between steps."""

    def __init__(self, device: Device, owner: str) -> None:
        self._device = device
        self._owner = owner
        self.spaces: dict[str, TierSpace] = {}
        self._reserved: Mapping[str, int] = {}

    def grow(self, sizes: Mapping[str, int], swapped: Mapping[str, int]) -> bool:
        """Grow each tier to at least the given bytes; return whether one was replaced.

        The bytes of swapped tensors count against the tiers' limits. If a space cannot
        be allocated, the previous reservation is restored.
        """
        before = self._reserved
        tiers = {*before, *swapped}
        both = {t: max(before.get(t, 0), swapped.get(t, 0)) for t in tiers}
        self._reserve(both)  # covers the old and the new size until one is final
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
            space = self.spaces.get(tier)
            if isinstance(space, Arena) and not space.freed:
                space.grow(nbytes)
            elif space is None or isinstance(space, Arena) or space.nbytes < nbytes:
                tag = model_tag(self._owner)
                made = self._device.tier_memory(tier, nbytes, tag=tag)
                anew = anew or space is not None
                self.spaces[tier] = made
        return anew

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether each tier holds exactly the needed bytes."""
        return all(sizes.get(t, 0) == s.nbytes for t, s in self.spaces.items())

    def shrink(self, sizes: Mapping[str, int], swapped: Mapping[str, int]) -> None:
        """Free the bytes that are not needed; no program may refer to them.

        A space that is too large and cannot shrink is freed entirely; `grow` allocates
        another one.
        """
        self._reserve(swapped)
        for tier, space in list(self.spaces.items()):
            needed = sizes.get(tier, 0)
            if isinstance(space, Arena) and needed:
                space.shrink(needed)
            elif needed < space.nbytes:
                del self.spaces[tier]


def model_tag(name: str) -> str:
    """Return the tag of a model's memory in its device's pool."""
    return f"model {name}"


def state_offsets(graph: Graph) -> dict[str, int]:
    """Return the offset of each state tensor, which is the same in every program."""
    offsets: dict[str, int] = {}
    end = 0
    for tensor in graph.persistent:
        spec = graph.tensors[tensor]
        offsets[spec.name] = end
        end += align_up(spec.nbytes)
    return offsets


def read_state(
    device: Device, arena: Arena, graph: Graph, name: str, offset: int
) -> npt.NDArray[Any]:
    """Return a copy of a state tensor."""
    spec = graph.tensors[graph.find(name)]
    array = np.empty(spec.shape or (), spec.dtype)
    device.read(arena, offset, array)
    return array


def write_state(
    device: Device,
    arena: Arena,
    graph: Graph,
    name: str,
    offset: int,
    value: npt.ArrayLike | FirstValue,
) -> None:
    """Overwrite a state tensor with a value that broadcasts to its shape."""
    spec = graph.tensors[graph.find(name)]
    if isinstance(value, FirstValue) and not value.draws_in_place:
        value = value.first_value()
    staged = device.staging(arena, offset, spec.shape or (), spec.dtype or "uint8")
    try:
        if isinstance(value, FirstValue):
            _draw_into(value, staged)
        else:
            staged[...] = value
        device.write(arena, offset, staged)
    finally:
        del staged  # or the traceback of an error would keep the arena


def _draw_into(value: FirstValue, values: npt.NDArray[Any]) -> None:
    """Draw a value; the traceback of an error does not keep the array."""
    try:
        value.draw_into(values)
    except BaseException as error:
        del values
        clear_frames(error.__traceback__)
        raise


def state_bytes(graph: Graph) -> int:
    """Return the end of the state in the arena, where it lies first and without gaps.

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
    """Raise if a device cannot run programs or graphs do not fit together.

    Raises RuntimeError for a simulated device, or ValueError if there is no graph, the
    graphs disagree about the state, or a state tensor has no value.
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
