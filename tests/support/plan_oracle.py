"""What a plan does to bytes: an honest reading of it, shared with nobody.

A tensor's value is a pattern of its op, its inputs' bytes and the step; it lies in the
bytes that the plan gives it and nowhere else. Ops read those bytes and compare them
with a run in which every tensor has bytes of its own. Where the format leaves a moment
open, the worst one is taken: an op overwrites its outputs and its scratch before it
reads an input that it may not overwrite, what lies outside of the state is lost between
two steps, and a copy is made when it begins or when it is waited for. Copies on other
tiers lie in bytes of those, where the plan says so. Collectives that are started run at
their start or at their wait, in order, and write until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import shake_128
from typing import TYPE_CHECKING

from memcfg.plan import (
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

if TYPE_CHECKING:
    from memcfg.graph import Graph, Op
    from memcfg.plan import Plan

LINE = 64  # bytes; kernels read and write whole lines
COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast")


class WrongPlanError(Exception):
    """A plan that cannot be run, or that gives other bytes than an unplanned run."""


def rounded(nbytes: int, line: int = LINE) -> int:
    return (nbytes + line - 1) // line * line


def pattern(nbytes: int, *parts) -> bytes:
    text = "\0".join(p.hex() if isinstance(p, bytes) else str(p) for p in parts)
    return shake_128(text.encode()).digest(nbytes)


def made(graph: Graph, op: Op, position: int, values, step: int, run: int) -> bytes:
    """The value of an op's output; `run` counts where no two runs are alike."""
    inputs = [shake_128(values[t]).digest(8) for t in op.inputs]
    nbytes = graph.tensors[op.outputs[position]].nbytes
    again = 0 if op.replayable else run
    return pattern(nbytes, op.name, position, step, again, *inputs)


def newest(graph: Graph) -> dict[int, int]:
    """By state tensor, the tensor that is its value when a step has ended."""
    holder = {t: t for t in sources(graph) if is_state(graph, t)}
    for op in graph.ops:
        done: set[int] = set()
        for source, output in op.in_place if op.phase == "update" else ():
            owner = [s for s, t in holder.items() if t == source]
            if owner and output not in done:
                holder[owner[0]] = output
                done.add(output)
    return holder


def sources(graph: Graph) -> list[int]:
    outputs = {t for op in graph.ops for t in op.outputs}
    return [t for t in range(len(graph.tensors)) if t not in outputs]


def is_state(graph: Graph, tensor: int) -> bool:
    return graph.tensors[tensor].role in ("parameter", "optimizer_state")


def unplanned(graph: Graph, steps: int) -> list[dict[int, bytes]]:
    """The value of every tensor in each step."""
    found: list[dict[int, bytes]] = []
    last = newest(graph)
    for step in range(steps):
        values: dict[int, bytes] = {}
        for t in sources(graph):
            if step and is_state(graph, t):
                nbytes = graph.tensors[t].nbytes  # of a smaller value the front
                new = found[-1][last[t]]
                values[t] = new + found[-1][t][len(new) : nbytes]
            else:
                values[t] = pattern(graph.tensors[t].nbytes, "source", t, step)
        for op in graph.ops:
            outputs = [
                made(graph, op, p, values, step, 0) for p in range(len(op.outputs))
            ]
            values |= dict(zip(op.outputs, outputs, strict=True))
        found.append(values)
    return found


def check(graph: Graph, plan: Plan, steps: int = 3) -> None:
    """Raise WrongPlanError unless some steps give the bytes of an unplanned run."""
    expected = unplanned(graph, steps)
    for late in (False, True):
        machine = _Machine(graph, plan, late=late)
        for step, values in enumerate(expected):
            machine.run(step, values)


@dataclass
class _Job:
    """A computation of an op, at addresses."""

    index: int
    op: Op
    where: dict[int, int]  # by tensor
    nbytes: int  # of scratch
    scratch: int | None
    results: dict[int, bytes] = field(default_factory=dict)  # by tensor


class _Machine:
    """An arena, and who lies where in it."""

    def __init__(self, graph: Graph, plan: Plan, *, late: bool) -> None:
        self.graph = graph
        self.plan = plan
        self.late = late  # when copies are made, and collectives run
        self.arena = bytearray(rounded(plan.peak_bytes))
        self.noise = 0
        self.state: dict[int, int] = {}
        self.front = 0  # bytes of the state
        for t in sources(graph):
            if is_state(graph, t):
                self.state[t] = self.front
                self.front += rounded(graph.tensors[t].nbytes)
        self.last = newest(graph)
        self.landing: list[tuple[int, bytes]] = []  # copies that nobody waited for
        self.tiers: dict[str, bytearray] = {}

    def wrong(self, text: str):
        raise WrongPlanError(f"step {self.step}, action {self.index}: {text}")

    # -- bytes -----------------------------------------------------------------

    def span(self, offset: int | None, nbytes: int) -> slice:
        if offset is None or offset < 0 or offset % LINE:
            self.wrong(f"no address: {offset}")
        if offset + nbytes > len(self.arena):
            self.wrong(f"[{offset}, {offset + nbytes}) leaves the arena")
        return slice(offset, offset + nbytes)

    def write(self, offset: int | None, value: bytes) -> None:
        self.arena[self.span(offset, len(value))] = value

    def spoil(self, offset: int | None, nbytes: int) -> None:
        self.noise += 1
        self.write(offset, pattern(nbytes, "noise", self.noise))

    def address(self, tensor: int) -> int:
        if tensor not in self.where:
            self.wrong(f"tensor {tensor} has no bytes")
        return self.where[tensor]

    def read(self, tensor: int) -> bytes:
        nbytes = self.graph.tensors[tensor].nbytes
        return bytes(self.arena[self.span(self.address(tensor), nbytes)])

    def expect(self, tensor: int, offset: int | None = None) -> None:
        nbytes = self.graph.tensors[tensor].nbytes
        place = self.address(tensor) if offset is None else offset
        if bytes(self.arena[self.span(place, nbytes)]) != self.values[tensor]:
            self.wrong(f"tensor {tensor} has other bytes")

    # -- a step ----------------------------------------------------------------

    def run(self, step: int, values: dict[int, bytes]) -> None:
        self.step, self.index, self.values = step, -1, values
        self.where: dict[int, int] = {}
        self.runs: dict[int, int] = {}
        self.losses: dict[int, int] = {}
        self.encoded: dict[int, tuple[Encode, bytes, bytes | None, bytes]] = {}
        self.away: dict[tuple[int, str], tuple[int | None, bytes]] = {}
        self.arrived: set[int] = set()  # copies that were waited for
        self.flying: list[tuple[int, _Job]] = []  # collectives that were not, by action
        self.tiers = {tier: bytearray() for tier in self.tiers}
        self.spoil(self.front, max(0, len(self.arena) - self.front))
        first = {
            a.tensor: a.offset for a in reversed(self.plan.actions) if type(a) is Alloc
        }
        for t in sources(self.graph):
            if not is_state(self.graph, t):
                self.write(first.get(t), values[t])
            elif step == 0:
                self.write(self.state[t], values[t])
        for offset, value in self.landing:
            self.write(offset, value)
        self.landing = []
        self.before = bytes(self.arena[: self.front])
        for index, action in enumerate(self.plan.actions):
            self.index = index
            self.act(action)
        self.finish()

    def act(self, action) -> None:  # noqa: C901  (a line an action)
        match action:
            case Alloc(tensor, offset):
                self.where[tensor] = offset
            case Alias(output, source):
                self.where[output] = self.address(source)
            case Free(tensor):
                if tensor in self.where:
                    del self.where[tensor]
                elif self.encoded.pop(tensor, None) is None:
                    self.wrong(f"tensor {tensor} is not there")
            case Start():
                self.start(action)
            case Compute():
                self.compute(action)
            case Encode():
                self.encode(action)
            case Decode(tensor, offset):
                self.decode(tensor, offset)
            case SwapOut(tensor) | SwapIn(tensor):
                self.address(tensor)
                if not self.late:
                    self.copy(action)
            case Wait(target) if isinstance(self.plan.actions[target], Start):
                self.end(target)
            case Wait(target) if self.late and target not in self.arrived:
                self.arrived.add(target)
                self.copy(self.plan.actions[target])

    def encode(self, action: Encode) -> None:
        value = self.read(action.tensor)
        if action.nbytes <= 0 < len(value):
            self.wrong("nothing is left of it")
        code = pattern(action.nbytes, action.codec, value)
        left = None
        if action.tier is not None:  # it does not fit
            code, left = value[: action.nbytes], value[action.nbytes :]
            tier = self.tiers.setdefault(action.tier, bytearray())
            if left and action.overflow is not None:
                self.put(tier, action.overflow, left)
        self.encoded[action.tensor] = action, code, left, value
        self.write(action.offset, code)

    def decode(self, tensor: int, offset: int) -> None:
        if tensor not in self.encoded:
            self.wrong("it is not encoded")
        action, code, left, value = self.encoded.pop(tensor)
        if bytes(self.arena[self.span(action.offset, len(code))]) != code:
            self.wrong("its code is gone")
        if left and action.overflow is not None:
            end = action.overflow + len(left)
            if bytes(self.tiers[action.tier][action.overflow : end]) != left:
                self.wrong("what it left over is gone")
        self.where[tensor] = offset
        self.write(offset, value)

    def copy(self, action) -> None:
        key = action.tensor, action.tier
        tier = self.tiers.setdefault(action.tier, bytearray())
        if isinstance(action, SwapOut):
            value = self.read(action.tensor)
            if action.codec is not None:  # which may need more than the bytes
                value += pattern(64, action.codec, value)
            self.away[key] = action.offset, value
            if action.offset is not None:
                self.put(tier, action.offset, value)
        elif key not in self.away:
            self.wrong("it has no copy")
        else:
            nbytes = self.graph.tensors[action.tensor].nbytes
            self.write(self.address(action.tensor), self.copied(action)[:nbytes])

    def put(self, tier: bytearray, offset: int, value: bytes) -> None:
        """Write whole lines, the end of the last one with noise."""
        if offset < 0 or offset % LINE:
            self.wrong(f"no place on a tier: {offset}")
        end = offset + rounded(len(value))
        tier.extend(bytes(max(0, end - len(tier))))
        self.noise += 1
        tail = pattern(rounded(len(value)) - len(value), "noise", self.noise)
        tier[offset:end] = value + tail

    def copied(self, action) -> bytes:
        """Read a copy from its tier, where something else may lie by now."""
        offset, value = self.away[action.tensor, action.tier]
        if offset != action.offset:
            self.wrong(f"the copy lies at {offset}, not {action.offset}")
        if offset is None:
            return value
        return bytes(self.tiers[action.tier][offset : offset + len(value)])

    def compute(self, action: Compute) -> None:
        if self.graph.ops[action.op].type in COLLECTIVES:
            self.end()  # those before it
        self.work(self.job(action))

    def start(self, action: Start) -> None:
        job = self.job(action)
        if job.op.type not in COLLECTIVES:
            self.wrong("it is no collective")
        if self.late:
            self.spoil_results(job)
        else:
            self.work(job)
        self.flying.append((self.index, job))

    def end(self, target: int | None = None) -> None:
        """End the collectives up to the one that an action started, or all."""
        while target in (None, *(n for n, _ in self.flying)) and self.flying:
            _, job = self.flying.pop(0)
            if self.late:
                self.work(job)
                continue
            for each in (job, *(later for _, later in self.flying)):  # in order
                for output, value in each.results.items():
                    self.write(each.where[output], value)
                self.spoil_scratch(each)

    def job(self, action: Compute) -> _Job:
        op = self.graph.ops[action.op]
        where = {t: self.address(t) for t in (*op.inputs, *op.outputs)}
        nbytes = self.scratch(op, action.algorithm)
        return _Job(action.op, op, where, nbytes, action.scratch_offset)

    def spoil_results(self, job: _Job) -> None:
        where = job.where
        for output in job.op.outputs:
            pairs = [i for i, o in job.op.in_place if o == output]
            if all(where[i] != where[output] for i in pairs):  # else read before
                self.spoil(where[output], self.graph.tensors[output].nbytes)
        self.spoil_scratch(job)

    def spoil_scratch(self, job: _Job) -> None:
        if job.nbytes:
            self.spoil(job.scratch, job.nbytes)

    def work(self, job: _Job) -> None:
        index, op, where = job.index, job.op, job.where
        if op.phase == "forward" and index not in self.runs:
            self.untouched()  # its output may be a loss at which the step ends
        self.spoil_results(job)
        for tensor in op.inputs:
            self.expect(tensor, where[tensor])
        run = self.runs[index] = self.runs.get(index, -1) + 1
        kept = {*self.graph.keep} & {*self.graph.losses}
        if run and not kept.isdisjoint(op.outputs):
            self.wrong("a loss is computed again")
        for p, output in enumerate(op.outputs):
            value = made(self.graph, op, p, self.values, self.step, run)
            self.write(where[output], value)
            job.results[output] = value
            self.losses.setdefault(output, where[output])
        self.spoil_scratch(job)

    def scratch(self, op: Op, algorithm: str | None) -> int:
        if algorithm is None:
            return op.scratch_bytes
        sizes = {choice.name: choice.scratch_bytes for choice in op.algorithms}
        if algorithm not in sizes:
            self.wrong(f"no algorithm {algorithm}")
        return sizes[algorithm]

    def untouched(self) -> None:
        if self.arena[: self.front] != self.before:
            self.wrong("the state has changed before the forward phase has ended")

    def finish(self) -> None:
        for _, job in self.flying:
            for output in job.op.outputs:
                self.landing.append((job.where[output], self.values[output]))
        waited = {a.action for a in self.plan.actions if isinstance(a, Wait)}
        for index, action in enumerate(self.plan.actions):
            if isinstance(action, SwapIn) and self.late and index not in waited:
                held = (action.tensor, action.tier) in self.away
                nbytes = self.graph.tensors[action.tensor].nbytes
                value = self.copied(action)[:nbytes] if held else b""
                self.landing.append((self.address(action.tensor), value))
        for tensor in self.graph.keep:
            self.expect(tensor)
            moved = self.where[tensor] != self.losses.get(tensor, self.where[tensor])
            if moved and tensor in self.graph.losses:
                self.wrong("the loss is not where it was when the step ended")
        for tensor, offset in self.state.items():
            value = self.values[self.last[tensor]]
            if bytes(self.arena[self.span(offset, len(value))]) != value:
                self.wrong(f"state {tensor} does not have its newest value")
