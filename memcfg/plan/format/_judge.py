"""The independent validator of plans (the judge).

It implements the rules of docs/plan-format.md on its own and imports nothing from the
planners, the packer or the simulator. A claim of 0 (None for the gap) means "unknown"
and is not checked, except that ``recompute_seconds`` of 0 is a claim if ``seconds`` is
given. Times are checked if the graph has times and the plan neither copies nor encodes,
because the format leaves the speed of copies and codecs open; those of collectives are
not part of them.

Overlaps are counted from two sorted lists: all buffers in use, minus those that end at
or before the new one's start, minus those that start at or after its end. Only if any
overlap, they are searched for the first.

See docs/decisions/0003-independent-validator.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import Counter
from dataclasses import fields
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.errors import PlanError
from memcfg.plan.format._actions import (
    Action,
    Alias,
    Alloc,
    Compute,
    Decode,
    Encode,
    Free,
    Start,
    SwapIn,
    SwapOut,
    Wait,
)
from memcfg.units import ALIGNMENT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from memcfg.graph import Graph, Op
    from memcfg.plan.format._plan import Plan

_TYPES: dict[Any, type | tuple[type, ...]] = {
    "int": Integral,
    "int | None": (Integral, type(None)),
    "str": str,
    "str | None": (str, type(None)),
}
_OPERANDS = {
    kind: [(item.name, _TYPES[item.type]) for item in fields(kind)]
    for kind in (
        *(Alias, Alloc, Compute, Decode, Encode, Free, Start, SwapIn, SwapOut, Wait),
    )
}  # action class -> names and types of its operands
_TENSORS = ("tensor", "output", "input")  # operands that are tensor ids

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")
_BESIDE = (*COLLECTIVES, "read_section", "read_codes")  # that may run beside compute

_WORD = 4  # bytes of a float32
_HEADER = 64  # bytes that a lossless encoding may exceed the tensor by
_BITS = {"fp16": 16, "fp8": 8, "group2": 2, "group4": 4, "group8": 8, "mask": 1}
_LOSSLESS = ("codebook", "csr", "planes_zstd", "rle", "zvc")
_LOSSY = (*_BITS, "fp10")

_MOST = 1000  # reported violations; a plan of n actions can have n * n
_STARTED = -1  # stands for a tensor where the scratch of a collective lies
_LONGEST = 100  # characters of a name in a message; files can contain longer ones
_TOLERANCE = 1e-9  # relative error of times; the order of summation affects rounding


def validate(graph: Graph, plan: Plan) -> None:
    """Raise PlanError unless a plan is valid for a graph.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan, from any planner.

    Raises
    ------
    PlanError
        If the plan breaks a rule. The message states the first violation and the number
        of others.
    """
    sentences = violations(graph, plan)
    if sentences:
        more = f" (and {len(sentences) - 1} more)" if len(sentences) > 1 else ""
        raise PlanError(f"the plan is invalid: {sentences[0]}{more}")


def violations(graph: Graph, plan: Plan) -> list[str]:
    """Return the violations of a plan, at most a thousand.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan.

    Returns
    -------
    list of str
        One sentence per violation, in order; empty if the plan is valid. If a buffer
        overlaps several others, its sentence names the first and counts the rest. After
        a thousand sentences, one more says that checking stopped.
    """
    line: object = plan.alignment  # unchecked: the policy may be a user's
    if not isinstance(line, Integral) or int(line) < 1 or int(line) % ALIGNMENT:
        return [f"the alignment is {line}, not a positive multiple of {ALIGNMENT}"]
    judge = _Judge(graph, plan)
    try:
        for index, action in enumerate(plan.actions):
            judge.where = f"action {index}"
            if judge.unallocated or judge.taken:
                judge.check_order(action)
            judge.step(index, action)
        judge.finish()
    except _TooManyError:
        judge.violations.append(
            f"{judge.where}: more violations; checking stopped here"
        )
    return judge.violations


def unchecked_claims(graph: Graph, plan: Plan) -> list[str]:
    """Return the claims of a plan that `violations` does not check.

    Parameters
    ----------
    graph : Graph
        The graph.
    plan : Plan
        The plan.

    Returns
    -------
    list of str
        Codecs and nonzero fields of `Predicted`, each with the reason.
    """
    claims = plan.predicted
    codecs = (action.codec for action in plan.actions if isinstance(action, Encode))
    result = [
        f"codec {codec!r} (unknown: neither its sizes nor its results)"
        for codec in dict.fromkeys(codecs)
        if codec not in _LOSSLESS + _LOSSY
    ]
    result += [
        f"codec {codec!r} (lossy: how much it changes values)"
        for codec in dict.fromkeys(plan.lossy)
        if codec in _LOSSY
    ]
    if claims.lower_bound_bytes:
        result.append("lower_bound_bytes (only compared with the peak)")
    if not _can_time(graph, plan):
        reason = (
            "the plan copies or encodes"
            if _is_timed(graph)
            else "the graph has no times"
        )
        result += [
            f"{name} ({reason})"
            for name in ("seconds", "recompute_seconds")
            if getattr(claims, name)
        ]
    if claims.stall_seconds:
        result.append("stall_seconds (depends on bandwidths)")
    if claims.codec_seconds:
        result.append("codec_seconds (depends on the speeds of codecs)")
    if claims.planning_seconds:
        result.append("planning_seconds (cannot be checked later)")
    if claims.optimality_gap is not None:
        result.append("optimality_gap (needs a proof)")
    return result


class _TooManyError(Exception):
    """The plan has more than `_MOST` violations; checking stops."""


def _quoted(name: str) -> str:
    """Quote a name; long names are abbreviated in the middle."""
    if len(name) > _LONGEST:
        name = f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"
    return repr(name)


class _Judge:
    """Follows a plan's actions and collects its `violations`."""

    def __init__(self, graph: Graph, plan: Plan) -> None:
        self.graph = graph
        self.plan = plan
        self.violations: list[str] = []
        self.where = "at the start"
        line = plan.alignment
        self.sizes = [-(-tensor.nbytes // line) * line for tensor in graph.tensors]
        self.arena = _Ranges()  # the buffers and encodings below
        self.buffers: dict[int, _Range] = {}  # by tensor
        self.encoded: dict[int, _Range] = {}  # by tensor
        # reserved bytes of encodings that may overflow, by tensor, with their tier
        self.overflows: dict[int, tuple[str, _Range]] = {}
        self.written: set[int] = set()  # tensors whose value is in their buffer
        self.state = set(graph.persistent)  # old and new values of the state
        self.overwritten: set[int] = set()  # old values whose buffer was taken over
        self.offsets = self._state_offsets()  # by tensor
        self.forward = {
            index for index, op in enumerate(graph.ops) if op.phase == "forward"
        }  # not computed yet; cleared at the first update
        self.sources = self._sources()
        self.unallocated = set(self.sources)  # sources that are not allocated yet
        self.aliases: dict[int, int] = {}  # output -> input, until the compute
        self.promised: set[int] = set()  # inputs of aliases
        self.pairs: set[tuple[int, int]] = set()  # in-place pairs of the current op
        self.taken: dict[int, int] = {}  # input -> output, until the input's free
        self.computed: set[int] = set()
        self.losses: dict[int, int] = {}  # loss -> offset when first computed
        self.copies: dict[int, SwapOut | SwapIn] = {}  # by action, not waited for
        self.started: dict[int, _Started] = {}  # by action, not waited for
        self.touched: Counter[int] = Counter()  # tensor -> collectives that touch it
        self.coming: Counter[int] = Counter()  # tensor -> those that write it
        self.leaving: Counter[int] = Counter()  # tensor -> pending copies out
        self.arriving: Counter[int] = Counter()  # tensor -> pending copies in
        self.elsewhere: set[tuple[int, str]] = set()  # completed copies: tensor, tier
        self.tiers: dict[str, _Ranges] = {}
        self.copied: dict[tuple[int, str], _Range] = {}  # by tensor and tier
        self.coded: dict[tuple[int, str], int] = {}  # planned bytes of encoded copies
        self.last_uses = self._last_uses()
        self.away = self.away_peak = self.moved = 0  # bytes on all tiers, and copied
        self.tier_loads: Counter[str] = Counter()  # bytes in use, by tier
        self.tier_peaks: Counter[str] = Counter()
        self.peak = self.load = 0  # peak of the arena; bytes of buffers in use

    def _sources(self) -> set[int]:
        made = {output for op in self.graph.ops for output in op.outputs}
        return set(range(len(self.graph.tensors))) - made

    def _state_offsets(self) -> dict[int, int]:
        """Return the offset of each state tensor, the same in all programs of a model.

        State lies first in the arena, in the graph's order.
        """
        offsets: dict[int, int] = {}
        end = 0
        for tensor in self.graph.persistent:
            offsets[tensor] = end
            end += -(-self.graph.tensors[tensor].nbytes // ALIGNMENT) * ALIGNMENT
        return offsets

    def _last_uses(self) -> set[int]:
        """Return the swaps after whose waits the bytes of copies on tiers are free."""
        uses: dict[int, int] = {}
        newest: dict[tuple[object, object], int] = {}
        for index, action in enumerate(self.plan.actions):
            if not isinstance(action, SwapOut | SwapIn):
                continue
            key = (action.tensor, action.tier)
            if isinstance(action, SwapOut):
                newest[key] = uses[index] = index
            elif key in newest:
                uses[newest[key]] = index
        return set(uses.values())

    # -- messages --------------------------------------------------------------

    def blame(self, text: str) -> None:
        if len(self.violations) == _MOST:
            raise _TooManyError
        self.violations.append(f"{self.where}: {text}")

    def name(self, tensor: int) -> str:
        return f"tensor {tensor} ({_quoted(self.graph.tensors[tensor].name)})"

    def label(self, held: _Range) -> str:
        if held.tensor is None:
            return "its scratch"
        if held.tensor == _STARTED:
            return held.what
        return f"{held.what}{self.name(held.tensor)}{held.where}"

    # -- buffers -----------------------------------------------------------------

    def rounded(self, nbytes: int) -> int:
        return -(-nbytes // self.plan.alignment) * self.plan.alignment

    def buffer(
        self, offset: int, size: int, tensor: int | None, what: str = ""
    ) -> _Range:
        """Check a new buffer against all in use; the caller calls `open`."""
        offset = int(offset)  # sums of NumPy integers may wrap around
        buffer = _Range(offset, offset + size, tensor, what)
        if self.plan.places:
            self.check_place(buffer, self.arena)
            end = buffer.end  # an empty buffer counts with its offset
        else:
            end = self.load + buffer.end - buffer.start
        self.peak = max(self.peak, end)
        return buffer

    def check_place(self, buffer: _Range, buffers: _Ranges) -> None:
        if buffer.start < 0 or buffer.start % self.plan.alignment:
            self.blame(
                f"{self.label(buffer)} lies at {buffer.start}, which is not a "
                f"nonnegative multiple of {self.plan.alignment}"
            )
        clash = buffers.clash(buffer)
        if clash is not None:
            other, count = clash
            more = f" and {count - 1} more" if count > 1 else ""
            self.blame(
                f"{self.label(buffer)} at [{buffer.start}, {buffer.end}) overlaps "
                f"{self.label(other)} at [{other.start}, {other.end}){more}"
            )

    def open(self, held: dict[int, _Range], tensor: int, buffer: _Range) -> None:
        held[tensor] = buffer
        self.load += buffer.end - buffer.start
        if self.plan.places:
            self.arena.add(buffer)

    def close(self, held: dict[int, _Range], tensor: int) -> _Range:
        buffer = held.pop(tensor)
        self.load -= buffer.end - buffer.start
        if self.plan.places:
            self.arena.remove(buffer)
        return buffer

    def give_buffer(self, tensor: int, offset: int) -> bool:
        """Open a tensor's own buffer; return False if it may not have one."""
        if tensor in self.buffers:
            self.blame(f"{self.name(tensor)} has a buffer already")
        elif tensor in self.overwritten:
            self.blame(f"{self.name(tensor)} is state that was overwritten")
        else:
            buffer = self.buffer(offset, self.sizes[tensor], tensor)
            self.open(self.buffers, tensor, buffer)
            return True
        return False

    def on_its_way(self, tensor: int, *, inward: bool = False) -> bool:
        """Return whether a copy is pending; `inward` considers swap-ins only."""
        return bool(self.arriving[tensor] or (self.leaving[tensor] and not inward))

    # -- actions ---------------------------------------------------------------

    def step(self, index: int, action: Action) -> None:
        if not self.is_action(action):
            return
        match action:
            case Alloc(tensor, offset):
                self.alloc(tensor, offset)
            case Alias(output, input):
                self.alias(output, input)
            case Free(tensor):
                self.free(tensor)
            case Compute():
                self.compute(index, action)
            case SwapOut() | SwapIn():
                self.swap(index, action)
            case Encode():
                self.encode(action)
            case Decode(tensor, offset):
                self.decode(tensor, offset)
            case Wait(target):
                self.wait(index, target)

    def is_action(self, action: Action) -> bool:
        """Check operand types and tensor ids, as the file reader does."""
        for name, types in _OPERANDS.get(type(action), [("it", ())]):
            value = getattr(action, name, None)
            if not isinstance(value, types) or isinstance(value, bool):
                self.blame(f"{action!r} is not valid: {name} has the wrong type")
                return False
        for name in _TENSORS:
            tensor = getattr(action, name, None)
            if tensor is not None and not 0 <= tensor < len(self.sizes):
                self.blame(f"the graph has no tensor {tensor}")
                return False
        return True

    def check_order(self, action: Action) -> None:
        """Check that initial allocs, and frees after in-place ops, come first."""
        if self.unallocated and not isinstance(action, Alloc):
            names = ", ".join(self.name(t) for t in sorted(self.unallocated))
            self.blame(f"input or state not allocated before other actions: {names}")
            self.unallocated.clear()
        if self.taken and not isinstance(action, Free):
            names = ", ".join(self.name(t) for t in sorted(self.taken))
            self.blame(f"overwritten in place and not freed right after: {names}")
            self.taken.clear()

    def alloc(self, tensor: int, offset: int) -> None:
        if self.give_buffer(tensor, offset) and tensor in self.unallocated:
            expected = self.offsets.get(tensor, offset)
            if offset != expected:
                self.blame(
                    f"{self.name(tensor)} is state at {offset} instead of {expected}: "
                    "state lies first, in the graph's order"
                )
            self.unallocated.discard(tensor)
            self.written.add(tensor)

    def alias(self, output: int, source: int) -> None:
        if output in self.aliases or source in self.promised:
            self.blame(f"{self.name(output)} or {self.name(source)} is aliased already")
        elif output in self.buffers:
            self.blame(f"{self.name(output)} has a buffer already")
        elif source not in self.buffers:
            self.blame(
                f"{self.name(output)} cannot take over the buffer of "
                f"{self.name(source)}, which has none"
            )
        elif self.sizes[output] > self.sizes[source]:
            self.blame(
                f"{self.name(output)} does not fit the buffer of {self.name(source)}"
            )
        else:
            self.aliases[output] = source
            self.promised.add(source)

    def free(self, tensor: int) -> None:
        if tensor in self.state:
            self.blame(f"{self.name(tensor)} is state and must not be freed")
            return
        if tensor not in self.buffers:
            if tensor in self.encoded:
                self.close(self.encoded, tensor)
                self.release_overflow(tensor)
            else:
                self.blame(f"{self.name(tensor)} is freed but has no buffer")
            return
        if self.copies and self.on_its_way(tensor):
            self.blame(f"{self.name(tensor)} is freed while it is being copied")
        if tensor not in self.taken:  # else its bytes are the output's now
            self.check_untouched(tensor, "frees")
        if tensor in self.promised:
            self.blame(f"{self.name(tensor)} is freed before its buffer is taken over")
            self.aliases = {o: i for o, i in self.aliases.items() if i != tensor}
            self.promised.discard(tensor)
        buffer = self.close(self.buffers, tensor)
        self.written.discard(tensor)
        output = self.taken.pop(tensor, None)
        if output is not None:
            end = buffer.start + self.sizes[output]
            self.open(self.buffers, output, _Range(buffer.start, end, output))

    # -- compute ---------------------------------------------------------------

    def compute(self, index: int, action: Compute) -> None:
        if not 0 <= action.op < len(self.graph.ops):
            self.blame(f"the graph has no op {action.op}")
            return
        op = self.graph.ops[action.op]
        starts = isinstance(action, Start)
        self.where += f" ({'start' if starts else 'compute'} {_quoted(op.name)})"
        if starts and op.type not in _BESIDE:
            self.blame(
                f"the op is started and is {_quoted(op.type)}, which is neither a "
                "collective nor a read of a file"
            )
        if action.op in self.computed:
            self.check_recomputed(op)
        scratch = self.check_scratch(op, action)
        self.pairs = set(op.in_place)
        for tensor in dict.fromkeys(op.inputs):
            self.check_readable(tensor, op)
        if op.phase == "update":
            self.check_update(op)
        if not starts:
            self.forward.discard(action.op)
        for output in op.outputs:
            buffer = self.buffers.get(self.aliases.get(output, output))
            if output in self.graph.losses and buffer is not None:
                self.losses.setdefault(output, buffer.start)
            self.write(op, output)
        self.computed.add(action.op)
        if starts:
            self.start(index, action.op, scratch)

    def check_recomputed(self, op: Op) -> None:
        if not op.replayable:
            self.blame("the op is recomputed but is not replayable")
            return
        kept = {*self.graph.losses} & {*self.graph.keep}
        for tensor in sorted(kept.intersection(op.outputs)):
            self.blame(f"{self.name(tensor)} is a loss and is recomputed")

    # -- collectives that run beside compute -------------------------------------

    def start(self, index: int, number: int, scratch: _Range | None) -> None:
        """Open what a collective touches until it is waited for."""
        op = self.graph.ops[number]
        gone = self.taken.keys() | self.overwritten
        read = {tensor for tensor in op.inputs if tensor not in gone}
        written = set(op.outputs)
        self.touched.update(read | written)
        self.coming.update(written)
        self.written -= written
        if scratch is not None:
            what = f"the scratch of {_quoted(op.name)}"
            scratch = scratch._replace(tensor=_STARTED, what=what)
            self.load += scratch.end - scratch.start
            if self.plan.places:
                self.arena.add(scratch)
        self.started[index] = _Started(number, read, written, scratch)

    def end(self, begun: _Started) -> None:
        """Close what a collective has touched, which has been waited for."""
        self.forward.discard(begun.op)
        self.touched.subtract(begun.read | begun.written)
        self.coming.subtract(begun.written)
        self.written |= begun.written
        scratch = begun.scratch
        if scratch is not None:
            self.load -= scratch.end - scratch.start
            if self.plan.places:
                self.arena.remove(scratch)

    def hand_over(self, tensor: int) -> None:
        """Note that collectives use a tensor's bytes as those of another tensor."""
        for begun in self.started.values():
            begun.read.discard(tensor)
            begun.written.discard(tensor)
        del self.touched[tensor], self.coming[tensor]

    def check_untouched(self, tensor: int, deed: str) -> None:
        """Check that no collective runs that reads or writes a tensor."""
        if self.started and self.touched[tensor]:
            self.blame(f"{deed} {self.name(tensor)} while a collective uses it")

    # -- operands ----------------------------------------------------------------

    def check_scratch(self, op: Op, action: Compute) -> _Range | None:
        nbytes = op.scratch_bytes
        if action.algorithm is not None:
            choices = [a for a in op.algorithms if a.name == action.algorithm]
            if not choices:
                self.blame(f"the op has no algorithm {action.algorithm!r}")
                return None
            nbytes = choices[0].scratch_bytes
        if action.scratch_offset is not None:
            return self.buffer(action.scratch_offset, self.rounded(nbytes), None)
        if nbytes:
            self.blame(f"the op needs {nbytes} B of scratch and has none")
        return None

    def check_update(self, op: Op) -> None:
        """Check that the forward phase has ended, and that state is updated in place.

        Otherwise the next step would start from the old values.
        """
        if self.forward:
            first = min(self.forward)
            self.blame(
                "an update before the forward phase has ended: op "
                f"{first} ({_quoted(self.graph.ops[first].name)}) was not computed"
            )
            self.forward.clear()
        updated: dict[int, int] = {}  # state -> its new value
        made: set[int] = set()
        for source, output in op.in_place:
            if source in self.state and source not in updated and output not in made:
                updated[source] = output
                made.add(output)
        for source, output in updated.items():
            if self.aliases.get(output) != source:
                self.blame(
                    f"{self.name(output)} is the new value of {self.name(source)} and "
                    "does not take over its buffer"
                )

    def check_readable(self, tensor: int, op: Op | None = None) -> None:
        if tensor not in self.buffers:
            self.blame(f"reads {self.name(tensor)}, which is not resident")
        elif self.started and self.coming[tensor]:  # later collectives may read it
            if op is None or op.type not in _BESIDE:
                self.blame(
                    f"reads {self.name(tensor)}, whose collective was not waited for"
                )
        elif self.copies and self.on_its_way(tensor, inward=True):
            self.blame(f"reads {self.name(tensor)}, whose copy was not waited for")
        elif tensor not in self.written:
            self.blame(f"reads {self.name(tensor)}, which holds no value")

    def write(self, op: Op, output: int) -> None:
        source = self.aliases.pop(output, None)
        if source is not None:
            self.promised.discard(source)
            self.take_over(op, output, source)
        elif output in self.state:
            self.blame(f"overwrites {self.name(output)}, which is state")
        elif output not in self.buffers:
            self.blame(f"writes {self.name(output)}, which has no buffer")
            return
        elif output in self.written or (self.started and self.coming[output]):
            self.blame(f"overwrites {self.name(output)}, which is resident")
        elif self.copies and self.on_its_way(output, inward=True):
            self.blame(f"writes {self.name(output)} while it is being copied in")
        self.written.add(output)

    def take_over(self, op: Op, output: int, source: int) -> None:
        if (source, output) not in self.pairs:
            self.blame(
                f"{self.name(output)} takes over {self.name(source)}, which the op "
                "does not declare as a pair"
            )
        if self.copies and self.on_its_way(source):
            self.blame(f"overwrites {self.name(source)} while it is being copied")
        if op.type not in _BESIDE:
            self.check_untouched(source, "overwrites")
        if output in self.buffers:
            self.blame(f"{self.name(output)} has a buffer already")
        elif source not in self.buffers:
            pass  # reported by `check_readable`
        elif source in self.state:
            self.update_state(op, output, source)
        else:
            self.taken[source] = output
        self.written.discard(source)
        if self.started:
            self.hand_over(source)

    def update_state(self, op: Op, output: int, source: int) -> None:
        """Transfer a state's whole buffer from its old value to the new one."""
        if op.phase != "update":
            self.blame(f"overwrites {self.name(source)}, which is state")
        buffer = self.close(self.buffers, source)
        self.open(self.buffers, output, _Range(buffer.start, buffer.end, output))
        self.overwritten.add(source)
        self.state.add(output)

    # -- copies and encodings --------------------------------------------------

    def swap(self, index: int, action: SwapOut | SwapIn) -> None:
        tensor = action.tensor
        if self.copies and self.on_its_way(tensor):
            self.blame(f"{self.name(tensor)} is being copied already")
        self.check_untouched(tensor, "copies")
        key = (tensor, action.tier)
        if isinstance(action, SwapOut):
            self.check_readable(tensor)
            self.coded.pop(key, None)
            self.check_codec(action)
            self.copy_out(action)
        else:
            self.check_copy_back(action)
        self.moved += self.rounded(self.coded.get(key, 0)) or self.sizes[tensor]
        self.copies[index] = action
        self.ways(action)[tensor] += 1

    def check_codec(self, action: SwapOut) -> None:
        """Check the codec of a copy and its planned size."""
        if action.codec is None and action.nbytes is None:
            return
        label = f"the copy of {self.name(action.tensor)}"
        if action.codec not in _LOSSLESS:
            self.blame(f"{label} is encoded by {action.codec!r}, which is not lossless")
        most = self.graph.tensors[action.tensor].nbytes + _HEADER
        if action.nbytes is None or not 1 <= action.nbytes <= most:
            self.blame(f"{label} is encoded in {action.nbytes} B, not in 1 to {most} B")
        elif action.codec is not None:
            self.coded[action.tensor, action.tier] = int(action.nbytes)

    def copy_out(self, action: SwapOut) -> None:
        """Open the bytes of a copy on its tier and check them for overlaps."""
        key = (action.tensor, action.tier)
        if key in self.copied:
            name = self.name(action.tensor)
            self.blame(f"the copy of {name} on {action.tier!r} exists already")
            self.release_copy(key)
        self.elsewhere.discard(key)
        nbytes = self.graph.tensors[action.tensor].nbytes
        size = self.rounded(nbytes + _HEADER if key in self.coded else nbytes)
        self.copied[key] = self.send(*key, action.offset, size, "the copy of ")

    def release_copy(self, key: tuple[int, str]) -> None:
        self.bring(key[1], self.copied.pop(key))

    def send(
        self, tensor: int, tier: str, offset: int | None, size: int, what: str
    ) -> _Range:
        """Open bytes on a tier; without an offset they are not checked for overlaps."""
        buffers = self.tiers.setdefault(tier, _Ranges())
        start = -1 if offset is None else int(offset)
        buffer = _Range(start, start + size, tensor, what, f" on {tier!r}")
        if offset is not None:
            self.check_place(buffer, buffers)
            buffers.add(buffer)
        self.away += size
        self.away_peak = max(self.away_peak, self.away)
        self.tier_loads[tier] += size
        needed = max(self.tier_loads[tier], buffer.end if offset is not None else 0)
        self.tier_peaks[tier] = max(self.tier_peaks[tier], needed)
        return buffer

    def bring(self, tier: str, buffer: _Range) -> None:
        self.away -= buffer.end - buffer.start
        self.tier_loads[tier] -= buffer.end - buffer.start
        if buffer.start >= 0:
            self.tiers[tier].remove(buffer)

    def check_copy_back(self, action: SwapIn) -> None:
        tensor, key = action.tensor, (action.tensor, action.tier)
        if key not in self.elsewhere:
            self.blame(
                f"{self.name(tensor)} has no copy on {action.tier!r} that was waited "
                "for"
            )
        elif action.offset != (
            None if self.copied[key].start < 0 else self.copied[key].start
        ):
            self.blame(
                f"{self.name(tensor)} is copied in from {action.offset}, but lies at "
                f"{self.copied[key].start} on {action.tier!r}"
            )
        if tensor not in self.buffers:
            self.blame(f"{self.name(tensor)} has no buffer to be copied into")
        elif tensor in self.written:
            self.blame(f"overwrites {self.name(tensor)}, which is resident")

    def ways(self, copy: SwapOut | SwapIn) -> Counter[int]:
        return self.leaving if isinstance(copy, SwapOut) else self.arriving

    def wait(self, index: int, target: int) -> None:
        copy = self.plan.actions[target] if 0 <= target < index else None
        if isinstance(copy, Start):
            if target in self.started:
                self.end(self.started.pop(target))
            return
        if not isinstance(copy, SwapOut | SwapIn):
            self.blame(
                f"waits for action {target}, which is not an earlier copy or start"
            )
            return
        if self.copies.pop(target, None) is None:
            return
        self.ways(copy)[copy.tensor] -= 1
        key = (copy.tensor, copy.tier)
        if isinstance(copy, SwapOut):
            if key in self.copied:
                self.elsewhere.add(key)
        elif copy.tensor in self.buffers:
            self.written.add(copy.tensor)
        if target in self.last_uses and key in self.copied:
            self.release_copy(key)
            self.elsewhere.discard(key)

    def encode(self, action: Encode) -> None:
        tensor = action.tensor
        self.check_readable(tensor)
        self.check_untouched(tensor, "encodes")
        if tensor in self.encoded:
            self.blame(f"{self.name(tensor)} is encoded already")
            return
        if action.codec in _LOSSY:
            self.check_lossy(action)
        nbytes = self.graph.tensors[tensor].nbytes
        least = _code_bytes(action.codec, nbytes)
        if action.tier is not None:
            least = self.check_overflow(action, least)
        if action.nbytes < least:
            self.blame(
                f"{self.name(tensor)} of {nbytes} B is encoded in {action.nbytes} B"
                + (f"; {action.codec!r} may need {least} B" if nbytes else "")
            )
        what, size = "the encoding of ", self.rounded(action.nbytes)
        buffer = self.buffer(action.offset, size, tensor, what)
        self.open(self.encoded, tensor, buffer)
        if action.tier is not None:
            left = self.rounded(max(nbytes - int(action.nbytes), 0))
            what = f"the overflow of {what}"
            buffer = self.send(tensor, action.tier, action.overflow, left, what)
            self.overflows[tensor] = (action.tier, buffer)

    def check_overflow(self, action: Encode, least: int) -> int:
        """Check that a codec may overflow; return the min. bytes in the arena."""
        if action.codec in _LOSSLESS:
            return min(least, _HEADER)
        self.blame(
            f"{self.name(action.tensor)} is encoded by {action.codec!r}, which has a "
            "fixed size and cannot overflow"
        )
        return least

    def release_overflow(self, tensor: int) -> None:
        if tensor in self.overflows:
            self.bring(*self.overflows.pop(tensor))

    def check_lossy(self, action: Encode) -> None:
        tensor = self.graph.tensors[action.tensor]
        if action.codec not in self.plan.lossy:
            self.blame(
                f"{self.name(action.tensor)} is encoded by {action.codec!r}, which is "
                "lossy and not among the plan's lossy codecs"
            )
        if tensor.dtype not in ("float32", None) or tensor.nbytes % _WORD:
            self.blame(
                f"{self.name(action.tensor)} is {tensor.dtype} of {tensor.nbytes} B; "
                f"{action.codec!r} encodes float32"
            )

    def decode(self, tensor: int, offset: int) -> None:
        if tensor not in self.encoded:
            self.blame(f"{self.name(tensor)} is decoded but is not encoded")
            return
        if self.give_buffer(tensor, offset):
            self.written.add(tensor)
            self.close(self.encoded, tensor)
            self.release_overflow(tensor)

    # -- the end ---------------------------------------------------------------

    def finish(self) -> None:
        self.where = "at the end"
        for tensor in sorted(self.unallocated):
            self.blame(f"{self.name(tensor)} was never allocated")
        for tensor in sorted(self.taken):
            self.blame(f"{self.name(tensor)} was overwritten in place and not freed")
        for output in sorted(self.aliases):
            self.blame(f"{self.name(output)} was aliased but never computed")
        for copy in self.copies.values():
            if isinstance(copy, SwapIn):
                self.blame(
                    f"the copy back of {self.name(copy.tensor)} was not waited for"
                )
        for begun in self.started.values():
            name = _quoted(self.graph.ops[begun.op].name)
            self.blame(f"the collective {name} was not waited for")
        for index, op in enumerate(self.graph.ops):
            if index not in self.computed:
                self.blame(f"op {index} ({_quoted(op.name)}) was never computed")
        self.check_kept()
        self.check_tiers()
        self.where = "claims"
        for text in _check_claims(
            self.graph, self.plan, self.peak, self.away_peak, self.moved
        ):
            self.blame(text)

    def check_tiers(self) -> None:
        """Check the limits of the graph's tiers."""
        for tier in self.graph.tiers:
            needed, limit = self.tier_peaks[tier.name], tier.limit_bytes
            if limit is not None and needed > limit:
                self.blame(
                    f"the plan takes {needed} B of tier {tier.name!r}, whose limit is "
                    f"{limit} B"
                )

    def check_kept(self) -> None:
        """Check tensors that are read after the step; losses must not have moved.

        A loss is also read after a step that it has ended early.
        """
        for tensor in self.graph.keep:
            buffer = self.buffers.get(tensor)
            if buffer is None or tensor not in self.written:
                self.blame(f"{self.name(tensor)} must be kept but is not resident")
            elif self.losses.get(tensor, buffer.start) != buffer.start:
                self.blame(f"{self.name(tensor)} is a loss and was moved")


def _code_bytes(codec: str, nbytes: int) -> int:
    """Return the max. encoded size in bytes; at most 1 for an unknown codec."""
    words = -(-nbytes // _WORD)
    if codec in _LOSSLESS:
        return nbytes + _HEADER
    if codec == "fp10":
        return 4 * -(-words // 3)
    if codec in _BITS:
        heads = 8 * -(-words // 256) if codec.startswith("group") else 0
        return heads + -(-words * _BITS[codec] // 8)
    return min(nbytes, 1)


def _check_claims(
    graph: Graph, plan: Plan, peak: int, away_peak: int, moved: int
) -> Iterator[str]:
    """Yield a sentence for each claim that differs from the measured bytes or times."""
    claims, limit = plan.predicted, plan.limit_bytes
    if plan.graph != graph.name:
        yield f"the plan is for {plan.graph!r}, the graph is {graph.name!r}"
    if claims.peak_bytes != peak:
        yield f"the peak is {peak} B, not {claims.peak_bytes} B as claimed"
    if limit is not None and peak > limit:
        yield f"the peak of {peak} B is above the limit of {limit} B"
    if claims.lower_bound_bytes > peak:
        yield (
            f"the peak of {peak} B is below the claimed lower bound of "
            f"{claims.lower_bound_bytes} B"
        )
    for name, true in (("host_peak_bytes", away_peak), ("moved_bytes", moved)):
        claimed = getattr(claims, name)
        if claimed and claimed != true:
            yield f"{name} is {true} B, not {claimed} B as claimed"
    if _can_time(graph, plan):
        yield from _check_times(graph, plan)


def _is_timed(graph: Graph) -> bool:
    return any(op.seconds or any(a.seconds for a in op.algorithms) for op in graph.ops)


def _can_time(graph: Graph, plan: Plan) -> bool:
    kinds = set(map(type, plan.actions))
    return _is_timed(graph) and kinds.isdisjoint((SwapOut, SwapIn, Encode, Decode))


def _check_times(graph: Graph, plan: Plan) -> Iterator[str]:
    """Compare with the time of all computations, and of repeated ones."""
    claims = plan.predicted
    if not claims.seconds and not claims.recompute_seconds:
        return
    seconds = again = 0.0
    computed: set[int] = set()
    for action in plan.actions:
        if not isinstance(action, Compute) or not 0 <= action.op < len(graph.ops):
            continue  # reported by `_Judge`
        op = graph.ops[action.op]
        if op.type in _BESIDE:
            continue
        taken = op.seconds
        if action.algorithm is not None:
            named = [a.seconds for a in op.algorithms if a.name == action.algorithm]
            taken = named[0] if named else taken
        seconds += taken
        again += taken if action.op in computed else 0.0
        computed.add(action.op)
    for name, true in (("seconds", seconds), ("recompute_seconds", again)):
        claimed = getattr(claims, name)
        if not math.isclose(claimed, true, rel_tol=0, abs_tol=_TOLERANCE * seconds):
            yield f"{name} is {true:.9g}, not {claimed:.9g} as claimed"


class _Started(NamedTuple):
    """A collective that runs, and what it touches."""

    op: int
    read: set[int]
    written: set[int]
    scratch: _Range | None


class _Range(NamedTuple):
    """The bytes [start, end) of an arena or tier, in use, and what holds them."""

    start: int
    end: int
    tensor: int | None  # None for scratch, `_STARTED` for that of a collective
    what: str = ""  # before the tensor's name in messages
    where: str = ""  # after it


class _Ranges:
    """The nonempty buffers in use, sorted by start and by end."""

    def __init__(self) -> None:
        self._buffers: list[_Range] = []
        self._ends: list[int] = []

    def clash(self, buffer: _Range) -> tuple[_Range, int] | None:
        """Return the first buffer that overlaps a new one, and how many do, or None."""
        if buffer.end <= buffer.start:
            return None
        begun = bisect_left(self._buffers, (buffer.end,))
        count = begun - bisect_right(self._ends, buffer.start)
        if not count:
            return None
        return next(each for each in self._buffers if each.end > buffer.start), count

    def add(self, buffer: _Range) -> None:
        if buffer.end > buffer.start:
            insort(self._buffers, buffer)
            insort(self._ends, buffer.end)

    def remove(self, buffer: _Range) -> None:
        if buffer.end > buffer.start:
            del self._buffers[bisect_left(self._buffers, buffer)]
            del self._ends[bisect_left(self._ends, buffer.end)]
