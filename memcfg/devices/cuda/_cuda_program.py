"""Programs of a GPU: instructions on streams, captured once in CUDA graphs.

A guard ends a part of a program: the part runs to its end on all streams, the host
checks the loss, and the next part begins. The first run issues individual calls, the
second captures each part in a graph, and later runs launch the graphs.

Collectives run on the host: lanes copy operands to page-locked memory, and the thread
that issues the instructions calls the communicator when an instruction needs the
results. Until then it issues others, so the GPU computes meanwhile. Such programs are
issued call by call in every run.
"""

from __future__ import annotations

import warnings
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._core import CudaEvent, CudaStream, call_undivided, replay
from memcfg.devices._switch import switched_on
from memcfg.devices.cuda._codec_sources import CODECS, UNFIT
from memcfg.devices.cuda._host_collective import HostCollective
from memcfg.devices.cuda._mapped_space import MappedSpace
from memcfg.errors import KernelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from memcfg._core import Arena, Block, Counter, CudaGraph, Pool, Resource
    from memcfg.devices._tiers import TierSpace
    from memcfg.devices.cuda._bound_launch import Bound
    from memcfg.devices.cuda._cuda_kernels import CudaKernel, CudaKernels

_LINE = 64  # bytes
_VARIABLE = "MEMCFG_CUDA_GRAPHS"
_MARK = 0xC7  # written to the end of scratch by `run_timed`

_Place = int | tuple[int, int]  # offset in the arena, or (space, offset)


class _Access(NamedTuple):
    """Bytes that an instruction reads or writes."""

    space: int
    begin: int
    end: int
    written: bool

    def conflicts(self, other: _Access) -> bool:
        return (
            self.space == other.space
            and self.begin < other.end
            and other.begin < self.end
            and (self.written or other.written)
        )


@dataclass(slots=True)
class _Instruction:
    """An instruction of a queue; `issue` enqueues it on the queue's stream."""

    kind: str
    queue: int
    accesses: tuple[_Access, ...]
    issue: Callable[[CudaStream], None]
    waits: list[int] = field(default_factory=list)  # instructions of other queues
    deferred: bool = False  # whether it is issued when another one waits for it
    marked: int | None = None  # address of the last byte of its scratch, or None
    word: int | None = None  # index of the host's word that it writes


class CudaProgram:
    """Instructions over an arena and tiers of a GPU; see the contract of devices.

    Parameters
    ----------
    arena : Arena
        Space 0.
    tiers : sequence of Block or MappedSpace
        Spaces 1, 2, ...
    kernels : CudaKernels
        The kernels of the device, and its context.
    pinned : Pool
        The pool of page-locked host memory.
    priority : int
        The priority of its streams.
    network : bool, default False
        Whether there is a queue of collectives.

    Raises
    ------
    KernelError
        If ``MEMCFG_CUDA_GRAPHS`` is neither 0 nor 1.
    """

    def __init__(
        self,
        arena: Arena,
        tiers: Sequence[TierSpace],
        kernels: CudaKernels,
        pinned: Pool,
        priority: int,
        *,
        network: bool = False,
    ) -> None:
        self.arena = arena
        self._queues = 1 + 2 * len(tiers) + network
        self.spaces = tuple(tiers)
        self._kernels = kernels
        self._context = kernels.modules.context
        self._pinned = pinned
        self._priority = priority
        self._instructions: list[_Instruction] = []
        self._launches: list[Bound] = []  # not loaded yet
        self._waited: dict[
            tuple[int, int], int
        ] = {}  # by (queue, other queue): last instruction waited for
        self._touched: dict[int, list[tuple[int, _Access]]] = {}  # by queue
        self._inputs = 0
        self._due: deque[int] = deque()  # deferred instructions, while they are
        self._streams: dict[int, CudaStream] = {}
        self._events: dict[int, CudaEvent] = {}  # by instruction; -1 - queue for joins
        self._words = _Words()
        self._parts: list[tuple[int, int]] = []
        self._graphs: list[CudaGraph] = []
        self._losses: list[int] = []  # by part: address of the guard's loss, or 0
        self._plain = False  # the host has to check only losses
        self._capturing = switched_on(_VARIABLE, default=True)
        self._runs = 0
        self._least: list[float] = []
        self._saved: tuple[int, int, int] | None = None  # from, to, bytes
        self._protects = False  # whether the state has been saved in this run
        self._at: int | None = None  # the instruction that is being issued
        self._failing: int | None = None
        self._failed_at: int | None = None

    # -- building ----------------------------------------------------------------

    def compute(
        self,
        kernel: CudaKernel | HostCollective,
        places: Iterable[_Place],
        sizes: Iterable[int],
        scratch: _Place | None,
        queue: int = 0,
    ) -> int:
        """Append a kernel with its inputs and outputs at these places.

        The scratch of a collective lies in memory of the host, for all its operands.
        """
        self._check_queue(queue)
        offsets = [_here(place) for place in places]
        lengths = list(sizes)
        if not len(offsets) == len(lengths) == len(kernel.sizes):
            raise ValueError(f"the kernel has {len(kernel.sizes)} operands")
        accesses = []
        for offset, size, (needed, written) in zip(
            offsets, lengths, kernel.sizes, strict=True
        ):
            if size < needed:
                raise ValueError(f"an operand needs {needed} bytes, got {size}")
            accesses.append(self._access((0, offset), size, written=written))
        if isinstance(kernel, HostCollective):
            return self._collective(kernel, offsets, scratch, queue)
        base, own, marked = self.arena.address, 0, None
        if kernel.scratch_bytes:
            if scratch is None:
                raise ValueError(f"it needs {kernel.scratch_bytes} bytes of scratch")
            place = (0, _here(scratch))
            accesses.append(self._access(place, kernel.scratch_bytes, written=True))
            own = base + place[1]
            marked = own + kernel.scratch_bytes - 1
        launches = kernel.bind([base + offset for offset in offsets], own)
        self._launches += launches

        def issue(stream: CudaStream) -> None:
            for launch in launches:
                launch.issue(stream)

        return self._append("compute", queue, accesses, issue, marked=marked)

    def _collective(
        self,
        kernel: HostCollective,
        offsets: Sequence[int],
        staging: _Place | None,
        queue: int,
    ) -> int:
        """Append copies to the host, a call of the communicator, and copies back."""
        if not isinstance(staging, tuple) or not staging[0]:
            raise ValueError(f"it needs {kernel.staged_bytes} bytes of the host")
        space, begin = staging
        whole = self._access(staging, kernel.staged_bytes, written=True)
        for each in kernel.down:
            place = (space, begin + each.offset)
            self.copy(2 * space - 1, (0, offsets[each.operand]), place, each.nbytes)
        call, base = kernel.call, self._address(staging)

        def issue(stream: CudaStream) -> None:
            del stream  # the host has waited for the copies
            call(base)

        number = self._append("collective", queue, [whole], issue, deferred=True)
        for each in kernel.up:
            source, target = (space, begin + each.offset), (0, offsets[each.operand])
            read = self._access(source, each.nbytes, written=False)
            write = self._access(target, each.nbytes, written=True)
            to, at = self._address(target), self._address(source)
            number = self._append(
                "copy",
                2 * space,
                [read, write],
                partial(_copy, to, at, each.nbytes),
                deferred=True,
            )
        return number

    def copy(
        self, queue: int, source: tuple[int, int], target: tuple[int, int], nbytes: int
    ) -> int:
        """Append a copy between two places."""
        self._check_queue(queue)
        read = self._access(source, nbytes, written=False)
        write = self._access(target, nbytes, written=True)
        if write.conflicts(read):
            raise ValueError("a copy overlaps itself")
        to, begin = self._address(target), self._address(source)
        issue = partial(_copy, to, begin, nbytes)
        return self._append("copy", queue, [read, write], issue)

    def encode(
        self, codec: str, source: int, nbytes: int, target: int, capacity: int
    ) -> int:
        """Append the encoding of bytes of the arena into `capacity` bytes of it."""
        return self._code(codec, "encode", (source, nbytes), (target, capacity))

    def decode(
        self, codec: str, source: int, capacity: int, target: int, nbytes: int
    ) -> int:
        """Append the decoding of bytes that `encode` has encoded at `source`."""
        return self._code(codec, "decode", (source, capacity), (target, nbytes))

    def _code(
        self, codec: str, kind: str, source: tuple[int, int], target: tuple[int, int]
    ) -> int:
        if (codec, kind) not in CODECS:
            raise ValueError(f"there is no codec {codec!r}")
        (begin, size), (to, capacity) = source, target
        accesses = [
            self._access((0, begin), size, written=False),
            self._access((0, to), capacity, written=True),
        ]
        base = self.arena.address
        encodes = kind == "encode"
        kernel = self._kernels.codec(codec, kind, size, capacity)
        launches = kernel.bind([base + begin, base + to], 0)
        self._launches += launches
        words = self._words
        word = words.add() if encodes else None
        marked = base + to + capacity - 1 if encodes and capacity else None

        def issue(stream: CudaStream) -> None:
            for launch in launches:
                launch.issue(stream)
            if word is not None:  # the status in the first bytes
                stream.copy(words.address(word), base + to, 4)

        return self._append(kind, 0, accesses, issue, marked=marked, word=word)

    def coded(self, index: int) -> tuple[int, int, int]:
        """Return zeros: encodings are not counted on a GPU."""
        del index
        return 0, 0, 0

    def record(self, queue: int) -> int | None:
        """Return the event after the last instruction of a queue, or None if empty."""
        self._check_queue(queue)
        own = (i for i, one in enumerate(self._instructions) if one.queue == queue)
        return max(own, default=None)

    def wait(self, queue: int, event: int | None) -> int:
        """Append a wait of a queue for an event of another; None waits for nothing."""
        self._check_queue(queue)
        if event is not None and not 0 <= event < len(self._instructions):
            raise ValueError(f"there is no event {event}")
        index = self._append("wait", queue, [], _nothing)
        if event is not None:
            self._await(index, event)
        return index

    def guard(self, place: _Place) -> int:
        """Append a guard: runs stop here unless the float32 at `place` is finite."""
        offset = _here(place)
        access = self._access((0, offset), 4, written=False)
        words, loss = self._words, self.arena.address + offset
        word = words.add()

        def issue(stream: CudaStream) -> None:
            stream.copy(words.address(word), loss, 4)

        return self._append("guard", 0, [access], issue, word=word)

    def protect(self, nbytes: int, target: tuple[int, int]) -> int:
        """Append a copy of the first bytes of the arena, to restore after a failure."""
        read = self._access((0, 0), nbytes, written=False)
        write = self._access(target, nbytes, written=True)
        if target[0] == 0:
            raise ValueError("state is saved in another space")
        to = self._address(target)
        self._saved = (to, self.arena.address, nbytes)
        issue = partial(_copy, to, self.arena.address, nbytes)
        return self._append("protect", 0, [read, write], issue)

    def undivided(self) -> None:
        """Do nothing: signal handlers never run between instructions here."""

    def input(self, operands: Iterable[tuple[int, int]], size: int) -> int:
        """Declare an input and return its number."""
        self._inputs += 1
        return self._inputs - 1

    def bind(self, number: int, array: object) -> bool:
        """Return False: kernels cannot read the host's memory."""
        return False

    def unbind(self, number: int) -> None:
        """Do nothing: inputs are never bound."""

    def queue_of(self, index: int) -> int:
        """Return the queue of an instruction."""
        return self._instructions[index].queue

    def set_jitter(self, seed: int, microseconds: int) -> None:
        """Do nothing: the tests' stand-in delays its streams itself."""

    def fail_at(self, instruction: int | None) -> None:
        """Make runs fail at an instruction, for tests; None for no failure."""
        self._failing = instruction

    @property
    def failed_at(self) -> int | None:
        """The instruction of queue 0 at which the last run failed, or None."""
        return self._failed_at

    def __len__(self) -> int:
        return len(self._instructions)

    # -- running -----------------------------------------------------------------

    def run(
        self,
        guard: bool = True,
        counter: Counter | None = None,
        timed: bool = False,
    ) -> int:
        """Run and advance the counter; return the guard that stopped the run, or -1.

        `least_seconds` is updated by timed runs that are not stopped.
        """
        self._prepare()
        if timed:
            return call_undivided(partial(self._run, guard, counter, timed=True))
        if not self._graphs or self._failing is not None or not self._plain:
            return call_undivided(partial(self._run, guard, counter))
        with _Run(self):
            part = replay(self._streams[0], self._graphs, self._losses, guard, counter)
        return -1 if part == -1 else self._parts[part][1] - 1

    def least_seconds(self) -> list[float]:
        """Return the shortest time of each instruction in timed runs, in seconds."""
        return list(self._least)

    def run_timed(self, resource: Resource | None = None) -> Any:
        """Run instructions one by one; return their seconds, and a resource's bytes."""
        self._prepare()
        seconds: list[float] = call_undivided(self._run_timed)
        if resource is None:
            return seconds
        return seconds, [resource.stats().current_bytes] * len(seconds)

    def run_traced(self) -> list[tuple[int, float, float]]:
        """Run without guards; return (queue, begin, end) of each, in seconds."""
        self._prepare()
        return call_undivided(self._run_traced)

    def _prepare(self) -> None:
        """Make streams, events and words and load functions, before the first run."""
        if self._parts:
            return
        context, count = self._context, len(self._instructions)
        self._kernels.load(self._launches)
        self._launches.clear()
        queues = {0, *(one.queue for one in self._instructions)}
        self._streams = {q: CudaStream(context, self._priority) for q in sorted(queues)}
        awaited = {event for one in self._instructions for event in one.waits}
        joins = (-1 - queue for queue in queues)
        self._events = {event: CudaEvent(context) for event in (*awaited, *joins)}
        self._words.take(self._pinned)
        kinds = [one.kind for one in self._instructions]
        ends = [i + 1 for i in range(count) if kinds[i] == "guard" or i + 1 == count]
        words = [self._instructions[end - 1].word for end in ends]
        self._losses = [0 if w is None else self._words.address(w) for w in words]
        self._plain = not {"protect", "encode"} & set(kinds)
        self._parts = list(zip([0, *ends[:-1]], ends, strict=False))

    def _run(
        self,
        check: bool,
        counter: Counter | None,
        *,
        timed: bool = False,
    ) -> int:
        """Run the parts in order."""
        spans = self._spans() if timed else None
        with _Run(self):
            if spans is None:
                self._capture()
            for number, (begin, end) in enumerate(self._parts):
                if self._graphs and self._failing is None and spans is None:
                    self._streams[0].launch_graph(self._graphs[number])
                    self._note_saved(begin, end)
                else:
                    self._issue(begin, end, spans)
                if check or end == len(self):
                    self._streams[0].synchronize()
                    self._check_encodings(begin if check else 0, end)
                if check and not self._is_finite(end - 1):
                    return end - 1
            self._runs += 1
            if counter is not None:
                counter.advance()
        if spans is not None:
            took = [end.seconds_since(begin) for begin, end in spans.values()]
            self._least = list(map(min, self._least or took, took))
        return -1

    def _issue(
        self,
        begin: int,
        end: int,
        spans: dict[int, tuple[CudaEvent, CudaEvent]] | None = None,
    ) -> None:
        """Enqueue instructions on their streams, which fork from and join queue 0's.

        With the joins, a capture of queue 0's stream includes all streams, and waits
        for instructions of earlier parts are not needed.
        """
        origin = self._streams[0]
        others = sorted({one.queue for one in self._instructions[begin:end]} - {0})
        if others:
            origin.record(self._events[-1])
        for queue in others:
            self._streams[queue].wait(self._events[-1])
        for index in range(begin, end):
            if self._instructions[index].deferred:
                self._due.append(index)
                continue
            self._issue_due(
                max(self._instructions[index].waits, default=-1), begin, spans
            )
            self._issue_one(index, begin, spans)
        self._issue_due(end, begin, spans)
        self._at = None
        for queue in others:
            self._streams[queue].record(self._events[-1 - queue])
            origin.wait(self._events[-1 - queue])

    def _issue_due(
        self,
        last: int,
        begin: int,
        spans: dict[int, tuple[CudaEvent, CudaEvent]] | None,
    ) -> None:
        """Issue what has been deferred, up to an instruction."""
        while self._due and self._due[0] <= last:
            self._issue_one(self._due.popleft(), begin, spans)

    def _issue_one(
        self,
        index: int,
        begin: int,
        spans: dict[int, tuple[CudaEvent, CudaEvent]] | None,
    ) -> None:
        one, self._at = self._instructions[index], index
        stream = self._streams[one.queue]
        for event in one.waits:
            if event >= begin:
                stream.wait(self._events[event])
        if one.kind == "collective":
            for event in one.waits:
                self._events[event].synchronize()
        if spans is not None:
            stream.record(spans[index][0])
        if index == self._failing:
            raise KernelError("a fault was asked for")
        one.issue(stream)
        if spans is not None:
            stream.record(spans[index][1])
        if index in self._events:
            stream.record(self._events[index])
        self._note_saved(index, index + 1)

    def _capture(self) -> None:
        """Capture each part in a graph, before the second run."""
        if self._graphs or not self._capturing or not self._runs or self._maps_files:
            return
        if any(one.deferred for one in self._instructions):
            return
        if self._failing is not None:
            return
        graphs = []
        try:
            for begin, end in self._parts:
                graphs.append(self._captured(begin, end))
        except KernelError as error:
            self._capturing = False
            warnings.warn(
                f"a step cannot be captured in a CUDA graph, so it runs call by call: "
                f"{error}",
                RuntimeWarning,
                stacklevel=2,
            )
        else:
            self._graphs = graphs
        finally:
            self._at, self._protects = None, False

    def _captured(self, begin: int, end: int) -> CudaGraph:
        origin = self._streams[0]
        origin.begin_capture()
        try:
            self._issue(begin, end)
        except BaseException:
            with suppress(KernelError):  # the capture is invalid
                origin.end_capture()
            raise
        return origin.end_capture()

    @property
    def _maps_files(self) -> bool:
        """Whether a tier is mapped pageable memory, which graphs cannot copy."""
        return any(isinstance(space, MappedSpace) for space in self.spaces)

    def _run_timed(self) -> list[float]:
        seconds = []
        begin, end = (CudaEvent(self._context, timing=True) for _ in range(2))
        with _Run(self):
            for index, one in enumerate(self._instructions):
                stream = self._streams[one.queue]
                if one.marked is not None:
                    stream.fill(one.marked, _MARK, 1)
                stream.synchronize()
                self._at = index
                if index == self._failing:
                    raise KernelError("a fault was asked for")
                stream.record(begin)
                one.issue(stream)
                stream.record(end)
                stream.synchronize()
                self._note_saved(index, index + 1)
                self._check_encodings(index, index + 1)
                took = end.seconds_since(begin)
                seconds.append(0.0 if one.kind in ("guard", "wait") else took)
            self._at = None
        return seconds

    def _spans(self) -> dict[int, tuple[CudaEvent, CudaEvent]]:
        """Return timing events for the begin and the end of each instruction."""
        context = self._context
        return {
            index: (CudaEvent(context, timing=True), CudaEvent(context, timing=True))
            for index in range(len(self))
        }

    def _run_traced(self) -> list[tuple[int, float, float]]:
        spans = self._spans()
        start = CudaEvent(self._context, timing=True)
        with _Run(self):
            self._streams[0].record(start)
            self._issue(0, len(self), spans)
            self._streams[0].synchronize()
        return [
            (
                self.queue_of(index),
                begin.seconds_since(start),
                end.seconds_since(start),
            )
            for index, (begin, end) in spans.items()
        ]

    def _note_saved(self, begin: int, end: int) -> None:
        kinds = (one.kind for one in self._instructions[begin:end])
        self._protects = self._protects or "protect" in kinds

    def _is_finite(self, index: int) -> bool:
        """Return False if an instruction is a guard whose loss is not finite."""
        one = self._instructions[index]
        if one.kind != "guard":
            return True
        assert one.word is not None
        return bool(np.isfinite(self._words.read(one.word, np.float32)))

    def _check_encodings(self, begin: int, end: int) -> None:
        """Raise KernelError if an encoding of this part did not fit its capacity."""
        for index in range(begin, end):
            one = self._instructions[index]
            if one.kind != "encode" or one.word is None:
                continue
            if self._words.read(one.word, np.uint32) == UNFIT:
                self._at = index
                nbytes = one.accesses[1].end - one.accesses[1].begin
                raise KernelError(f"the encoding does not fit {nbytes} bytes")

    def _restore(self) -> None:
        """Wait for all streams, and restore the state if it was saved."""
        streams = list(self._streams.values())
        for stream in streams:
            stream.synchronize()
        if self._protects and self._saved is not None:
            saved, state, nbytes = self._saved
            streams[0].copy(state, saved, nbytes)
            streams[0].synchronize()

    # -- places ------------------------------------------------------------------

    def _access(self, place: tuple[int, int], nbytes: int, *, written: bool) -> _Access:
        """Return an access; ValueError for an invalid space, offset or size."""
        space, offset = place
        if not 0 <= space <= len(self.spaces):
            raise ValueError(f"there is no space {space}")
        end = self.arena.nbytes if space == 0 else self.spaces[space - 1].nbytes
        if offset < 0 or offset % _LINE:
            raise ValueError(f"offset {offset} is not a multiple of 64")
        if offset + nbytes > end:
            raise ValueError(f"{nbytes} bytes at offset {offset} leave the space")
        return _Access(space, offset, offset + nbytes, written)

    def _address(self, place: tuple[int, int]) -> int:
        space, offset = place
        base = self.arena.address if space == 0 else self.spaces[space - 1].address
        return base + offset

    def _check_queue(self, queue: int) -> None:
        if not 0 <= queue < self._queues:
            raise ValueError(f"there is no queue {queue}")

    def _append(
        self,
        kind: str,
        queue: int,
        accesses: Sequence[_Access],
        issue: Callable[[CudaStream], None],
        *,
        marked: int | None = None,
        word: int | None = None,
        deferred: bool = False,
    ) -> int:
        """Append, with waits for conflicting accesses of other queues.

        Those of the same queue that are deferred may be overtaken, so they count, too.
        """
        index = len(self._instructions)
        made = _Instruction(
            kind,
            queue,
            tuple(accesses),
            issue,
            deferred=deferred,
            marked=marked,
            word=word,
        )
        self._instructions.append(made)
        for other, touched in self._touched.items():
            conflicting = [
                i
                for i, a in touched
                for b in accesses
                if (other != queue or self._instructions[i].deferred) and a.conflicts(b)
            ]
            if conflicting:
                self._await(index, max(conflicting))
        self._touched.setdefault(queue, []).extend((index, a) for a in accesses)
        return index

    def _await(self, index: int, event: int) -> None:
        """Make an instruction wait for another, unless its queue already does."""
        queues = (self._instructions[index].queue, self._instructions[event].queue)
        if self._waited.get(queues, -1) < event:
            self._waited[queues] = event
            self._instructions[index].waits.append(event)


class _Words:
    """Words of page-locked memory that instructions write and the host reads.

    Functions that issue instructions refer to these words instead of the program, so
    that the program is not part of a reference cycle.
    """

    def __init__(self) -> None:
        self._count = 0
        self._block: Block | None = None

    def add(self) -> int:
        """Add a word and return its index."""
        self._count += 1
        return self._count - 1

    def take(self, pinned: Pool) -> None:
        """Allocate the memory of all words."""
        if self._count:
            self._block = pinned.allocate(self._count * _LINE, tag="guards")

    def address(self, number: int) -> int:
        assert self._block is not None
        return self._block.address + number * _LINE

    def read(self, number: int, dtype: type[np.float32 | np.uint32]) -> Any:
        assert self._block is not None
        cells = np.frombuffer(memoryview(self._block), dtype)
        return cells[number * _LINE // 4]


class _Run:
    """The context of a run, which restores the state after a failure."""

    def __init__(self, program: CudaProgram) -> None:
        self._program = program

    def __enter__(self) -> None:
        self._program._protects = False
        self._program._at = self._program._failed_at = None

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is None:
            return
        program = self._program
        index = program._at
        program._due.clear()
        try:
            program._restore()
        except KernelError as lost:
            raise KernelError(
                f"the GPU failed, and its memory is lost: {lost}"
            ) from error
        if isinstance(error, KernelError) and index is not None:
            if program.queue_of(index) == 0:
                program._failed_at = index
            raise KernelError(f"instruction {index} failed: {error}") from error


def _here(place: _Place) -> int:
    """Return a place's offset in the arena; ValueError for another space."""
    space, offset = place if isinstance(place, tuple) else (0, place)
    if space != 0:
        raise ValueError(f"there is no buffer {space}")
    return offset


def _copy(target: int, source: int, nbytes: int, stream: CudaStream) -> None:
    if nbytes:
        stream.copy(target, source, nbytes)


def _nothing(stream: CudaStream) -> None:
    """Enqueue nothing."""
