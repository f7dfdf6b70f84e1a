"""A device with memory of its own: nobody else can address it, and it is late.

What its pool hands out are addresses without memory; the bytes lie in pages of its own,
between guards. Its queues are threads that start each instruction late, by times drawn
from a seed, its compute queue too. It fails where it is told to. It runs the CPU's
kernels, so that its results are those of the CPU, to the bit. It shares no code with
the CPU's program loop: order, bounds and events are told here once more.
"""

from __future__ import annotations

import mmap
import random
import threading
import time
import weakref
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from memcfg import memory
from memcfg.devices import Spill, TierLimit
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError

LINE = 64  # bytes
GUARD = 4096  # bytes before and behind what an arena has
CANARY = 0x9D
HEADER = 64  # bytes of an encoding


class FaultError(Exception):
    """What was asked for."""


class Bank:
    """Bytes that addresses of the device stand for."""

    def __init__(self, capacity: int) -> None:
        self._pages = mmap.mmap(-1, capacity + 2 * GUARD)
        self._all = np.frombuffer(self._pages, np.uint8)
        self._all[:GUARD] = CANARY
        self.nbytes = 0
        self.capacity = capacity

    def cells(self, offset: int, nbytes: int) -> np.ndarray:
        assert offset >= 0
        assert offset + nbytes <= self.nbytes
        return self._all[GUARD + offset : GUARD + offset + nbytes]

    def address(self, offset: int) -> int:
        return self._all.__array_interface__["data"][0] + GUARD + offset

    def resize(self, nbytes: int) -> None:
        """What comes is zero, what goes is lost."""
        old, self.nbytes = self.nbytes, nbytes
        self._all[GUARD + min(old, nbytes) : GUARD + max(old, nbytes)] = 0
        self._all[GUARD + nbytes : GUARD + nbytes + GUARD] = CANARY

    def check(self) -> None:
        end = GUARD + self.nbytes
        assert (self._all[:GUARD] == CANARY).all(), "bytes before the arena changed"
        assert (self._all[end : end + GUARD] == CANARY).all(), "bytes behind it changed"


class Tier:
    """Memory of a tier."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.bank = Bank(nbytes)
        self.bank.resize(nbytes)


@dataclass(frozen=True)
class RemoteKernel:
    """A kernel of the CPU that runs where the device's bytes are."""

    inner: object
    sizes: tuple[tuple[int, bool], ...]  # bytes of each operand, and if it is written

    kernel = None

    @property
    def algorithm(self) -> str:
        return self.inner.algorithm

    @property
    def scratch_bytes(self) -> int:
        return self.inner.scratch_bytes

    def instruction(self):
        return self

    def run(self, addresses, scratch):
        raise KernelError("its operands are the device's")


class RemoteKernels:
    name = "artificial"

    def __init__(self) -> None:
        self._table = kernel_table()

    def has(self, op_type):
        return self._table.has(op_type)

    def algorithms(self, *op):
        return self._table.algorithms(*op)

    def measure(self, *op):
        return self._table.measure(*op)

    def make(self, op_type, attributes, inputs, outputs, algorithm=None):
        made = self._table.make(op_type, attributes, inputs, outputs, algorithm)
        sizes = [(spec.nbytes, False) for spec in inputs]
        sizes += [(spec.nbytes, True) for spec in outputs]
        return RemoteKernel(made, tuple(sizes))

    def packing(self, *op):
        found = self._table.packing(*op)
        if found is None:
            return None
        pack, kernel, unpack = (
            each and RemoteKernel(each, tuple(each.kernel.operands))
            for each in (found.pack, found.kernel, found.unpack)
        )
        return found._replace(pack=pack, kernel=kernel, unpack=unpack)


class ArtificialDevice:
    """See the module. `late` is the longest delay of an instruction, in seconds."""

    space = "device"
    tiers = MappingProxyType({"host": "host", "file": "file"})
    spill = Spill()
    tier_limit = TierLimit("artificial", spill)
    codecs = ("zvc",)
    takes_overflow = False
    coded_tiers = ()
    fallible = True
    spares_scratch = False
    takes_bfloat16 = True
    stages_collectives = False
    page_bytes = 1

    def __init__(self, limit_bytes=None, *, seed=0, late=0.0, name="/device:ODD:0"):
        self.name = name
        self.late = late
        self.random = random.Random(seed)
        self.pool = memory.Pool(memory.simulated("1TiB"), limit=limit_bytes, name=name)
        self.host_pool = memory.Pool(name=f"{name} on the host")
        self.kernels = RemoteKernels()
        self._banks = weakref.WeakKeyDictionary()  # by arena

    def describe_kernels(self) -> str:
        return "the CPU's, elsewhere"

    def bank(self, arena) -> Bank:
        """The bytes of an arena as large as it is now."""
        nbytes = arena.nbytes
        found = self._banks.get(arena)
        if found is None or found.capacity < nbytes:
            self._banks[arena] = Bank(max(2 * nbytes, 1 << 24))
            if found is not None:
                self._banks[arena].resize(found.nbytes)
                self._banks[arena].cells(0, found.nbytes)[:] = found.cells(
                    0, found.nbytes
                )
            found = self._banks[arena]
        if found.nbytes != nbytes:
            found.resize(nbytes)
        return found

    def write(self, arena, offset, array):
        data = np.frombuffer(np.ascontiguousarray(array).tobytes(), np.uint8)
        self.bank(arena).cells(offset, data.nbytes)[:] = data

    def read(self, arena, offset, array):
        data = self.bank(arena).cells(offset, array.nbytes).copy()
        array[...] = data.view(array.dtype).reshape(array.shape)

    def zero(self, arena, offset, nbytes):
        self.bank(arena).cells(offset, nbytes)[:] = 0

    def staging(self, arena, offset, shape, dtype):
        return np.zeros(shape, dtype)

    def synchronize(self):
        """A program leaves no work behind."""

    def tier_memory(self, tier, nbytes, *, tag):
        assert tier in self.tiers
        return Tier(nbytes)

    def copy_rate(self, tier):
        return 0.0  # it has no room

    def program(self, arena, tiers, *, network=False):
        return ArtificialProgram(self, arena, list(tiers.values()), network)


@dataclass
class Instruction:
    kind: str
    queue: int
    work: object  # what it does
    touches: list  # (space, begin, end, written)
    waits: list[int] = field(default_factory=list)
    touch: object = None  # what a report does before it


def here(place):
    """The offset of a place in the arena; kernels work nowhere else."""
    space, offset = place if isinstance(place, tuple) else (0, place)
    if space != 0:
        raise ValueError(f"there is no buffer {space}")
    return offset


class ArtificialProgram:
    """Instructions on queues that are all threads; a run issues them and waits."""

    def __init__(self, device, arena, tiers, network=False):
        self.device = device
        self.arena = arena
        self.tiers = tiers
        self.queues = 1 + 2 * len(tiers) + network
        self.instructions: list[Instruction] = []
        self.failing: int | None = None
        self.least: list[float] = []
        self.inputs = 0
        self.saved: np.ndarray | None = None
        self.jitter: float | None = None
        self.failure = None

    # -- building --------------------------------------------------------------

    def bank(self, space):
        return (
            self.device.bank(self.arena) if space == 0 else self.tiers[space - 1].bank
        )

    def check(self, space, offset, nbytes):
        if not 0 <= space <= len(self.tiers):
            raise ValueError(f"there is no space {space}")
        end = self.arena.nbytes if space == 0 else self.tiers[space - 1].nbytes
        if offset % LINE or offset < 0:
            raise ValueError(f"offset {offset} is not a multiple of 64")
        if offset + nbytes > end:
            raise ValueError(f"{nbytes} bytes at offset {offset} leave the space")

    def check_queue(self, queue):
        if not 0 <= queue < self.queues:
            raise ValueError(f"there is no queue {queue}")

    def add(self, kind, queue, work, touches, touch=None):
        """Append, behind whatever touches the same bytes on another queue."""
        made = Instruction(kind, queue, work, touches, touch=touch)
        for index, other in enumerate(self.instructions):
            if other.queue != queue and any(
                a[0] == b[0] and a[1] < b[2] and b[1] < a[2] and (a[3] or b[3])
                for a in touches
                for b in other.touches
            ):
                made.waits.append(index)
        self.instructions.append(made)
        return len(self.instructions) - 1

    def compute(self, kernel, places, sizes, scratch, queue=0):
        self.check_queue(queue)
        offsets = [here(place) for place in places]
        scratch_offset = None if scratch is None else here(scratch)
        sizes = list(sizes)
        if not len(offsets) == len(sizes) == len(kernel.sizes):
            raise ValueError(f"the kernel has {len(kernel.sizes)} operands")
        touches = []
        for offset, size, (needed, written) in zip(
            offsets, sizes, kernel.sizes, strict=True
        ):
            if size < needed:
                raise ValueError(f"an operand needs {needed} bytes, got {size}")
            self.check(0, offset, size)
            touches.append((0, offset, offset + size, written))
        room = kernel.scratch_bytes
        if room and scratch_offset is None:
            raise ValueError(f"the kernel needs {room} bytes of scratch")
        if room:
            self.check(0, scratch_offset, room)
            touches.append((0, scratch_offset, scratch_offset + room, True))

        def work():
            bank = self.bank(0)
            scratch = bank.address(scratch_offset) if room else 0
            kernel.inner.run([bank.address(offset) for offset in offsets], scratch)

        def touch():
            if room:
                self.bank(0).cells(scratch_offset + room - 1, 1)[:] = 0xC7

        return self.add("compute", queue, work, touches, touch)

    def copy(self, queue, source, target, nbytes):
        self.check_queue(queue)
        self.check(*source, nbytes)
        self.check(*target, nbytes)
        (a, begin), (b, to) = source, target
        if a == b and begin < to + nbytes and to < begin + nbytes:
            raise ValueError("a copy overlaps itself")
        touches = [(a, begin, begin + nbytes, False), (b, to, to + nbytes, True)]

        def work():
            data = self.bank(a).cells(begin, nbytes).copy()
            self.bank(b).cells(to, nbytes)[:] = data

        return self.add("copy", queue, work, touches)

    def encode(self, codec, source, nbytes, target, capacity):
        """A header and the bytes, turned over: lossless, and no smaller."""
        self.check_codec(codec)
        self.check(0, source, nbytes)
        self.check(0, target, capacity)

        def work():
            if capacity < nbytes + HEADER:
                raise KernelError(f"it does not fit {capacity} bytes")
            code = self.bank(0).cells(target, nbytes + HEADER)
            code[HEADER:] = self.bank(0).cells(source, nbytes)[::-1] ^ 0x5A
            code[:HEADER] = 1

        def touch():
            self.bank(0).cells(target + capacity - 1, 1)[:] = 0xC7

        touches = [(0, source, source + nbytes, False)]
        touches.append((0, target, target + capacity, True))
        return self.add("encode", 0, work, touches, touch)

    def coded(self, index):
        return 0, 0, 0  # it counts nothing

    def decode(self, codec, source, capacity, target, nbytes):
        self.check_codec(codec)
        self.check(0, source, capacity)
        self.check(0, target, nbytes)

        def work():
            code = self.bank(0).cells(source, nbytes + HEADER)
            self.bank(0).cells(target, nbytes)[:] = code[HEADER:][::-1] ^ 0x5A

        touches = [(0, source, source + capacity, False)]
        touches.append((0, target, target + nbytes, True))
        return self.add("decode", 0, work, touches)

    def check_codec(self, codec):
        if codec not in ArtificialDevice.codecs:
            raise ValueError(f"there is no codec {codec!r}")

    def record(self, queue):
        self.check_queue(queue)
        own = [i for i, one in enumerate(self.instructions) if one.queue == queue]
        return own[-1] if own else None

    def wait(self, queue, event):
        self.check_queue(queue)
        if event is not None and event >= len(self.instructions):
            raise ValueError(f"there is no event {event}")
        index = self.add("wait", queue, lambda: None, [])
        if event is not None:
            self.instructions[index].waits.append(event)
        return index

    def guard(self, place):
        offset = here(place)
        self.check(0, offset, 4)

        def work():
            if self.checking and not np.isfinite(
                self.bank(0).cells(offset, 4).view(np.float32)[0]
            ):
                self.stopped = index

        index = self.add("guard", 0, work, [(0, offset, offset + 4, False)])
        return index

    def protect(self, nbytes, target):
        self.check(0, 0, nbytes)
        self.check(*target, nbytes)
        if target[0] == 0:
            raise ValueError("state is saved in another space")
        space, offset = target

        def work():
            self.bank(space).cells(offset, nbytes)[:] = self.bank(0).cells(0, nbytes)
            self.saved = self.bank(space).cells(offset, nbytes)

        touches = [(0, 0, nbytes, False), (space, offset, offset + nbytes, True)]
        return self.add("protect", 0, work, touches)

    def undivided(self):
        """Signals do not come between its threads' instructions."""

    def input(self, operands, size):
        self.inputs += 1
        return self.inputs - 1

    def bind(self, number, array):
        return False  # the device cannot address it

    def unbind(self, number):
        """Nothing is bound."""

    def queue_of(self, index):
        return self.instructions[index].queue

    def set_jitter(self, seed, microseconds):
        self.device.random.seed(seed)
        self.jitter = microseconds * 1e-6

    def fail_at(self, instruction):
        self.failing = instruction

    def __len__(self):
        return len(self.instructions)

    @property
    def failed_at(self):
        """Which one of the compute queue, after a run that failed."""
        index = None if self.failure is None else self.failure[0]
        return index if index is None or self.queue_of(index) == 0 else None

    # -- running ---------------------------------------------------------------

    def run(self, guard=True, counter=None, timed=False):
        self.go(guard)
        if self.stopped == -1 and counter is not None:
            counter.advance()
        if self.stopped == -1 and timed:
            took = [end - begin for begin, end in self.spans]
            self.least = list(map(min, self.least or took, took))
        return self.stopped

    def least_seconds(self):
        return list(self.least)

    def go(self, checking):
        count = len(self.instructions)
        self.checking, self.stopped, self.saved = checking, -1, None
        self.failure = None
        self.spans = [(0.0, 0.0)] * count
        self.done = [threading.Event() for _ in range(count)]
        self.began = time.perf_counter()
        delay = self.device.late if self.jitter is None else self.jitter
        queues = {one.queue for one in self.instructions}
        delays = [delay * self.device.random.random() for _ in range(count)]
        threads = [
            threading.Thread(target=self.work_off, args=(queue, delays), daemon=True)
            for queue in queues
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for bank in (self.bank(space) for space in range(len(self.tiers) + 1)):
            bank.check()
        if self.failure is not None:
            if self.saved is not None:
                self.bank(0).cells(0, self.saved.nbytes)[:] = self.saved
            index, error = self.failure
            if isinstance(error, Exception):
                raise KernelError(f"instruction {index} failed: {error}") from error
            raise error

    def work_off(self, queue, delays):
        for index, one in enumerate(self.instructions):
            if one.queue != queue:
                continue
            for event in one.waits:
                self.done[event].wait()
            if self.failure is None and self.stopped == -1:
                time.sleep(delays[index])
                begin = time.perf_counter() - self.began
                try:
                    if index == self.failing:
                        raise FaultError("a fault was asked for")
                    one.work()
                except BaseException as error:
                    self.failure = (index, error)
                self.spans[index] = (begin, time.perf_counter() - self.began)
            self.done[index].set()

    def run_traced(self):
        self.go(False)
        return [
            (one.queue, *span)
            for one, span in zip(self.instructions, self.spans, strict=True)
        ]

    def run_timed(self, resource=None):
        """One by one; what is in use is touched."""
        seconds = []
        self.checking, self.stopped, self.saved = False, -1, None
        for index, one in enumerate(self.instructions):
            if one.touch is not None:
                one.touch()
            begin = time.perf_counter()
            if index == self.failing:
                if self.saved is not None:
                    self.bank(0).cells(0, self.saved.nbytes)[:] = self.saved
                raise KernelError(f"instruction {index} failed: a fault")
            one.work()
            took = time.perf_counter() - begin
            seconds.append(0.0 if one.kind == "guard" else took)
        if resource is None:
            return seconds
        return seconds, [resource.stats().current_bytes] * len(seconds)
