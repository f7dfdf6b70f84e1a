"""A policy for tests that swaps or encodes what waits for the backward phase."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from memcfg._core import codec_bounds, lossless_codecs
from memcfg.plan import (
    Alias,
    Alloc,
    Buffer,
    Compute,
    Decode,
    Encode,
    Free,
    Plan,
    Predicted,
    SwapIn,
    SwapOut,
    Wait,
    lower_bound,
    place,
    simulate,
    state_updates,
    with_updates_in_time,
)

LINE = 64  # bytes
CODECS = tuple(codec_bounds(0))
LOSSY = tuple(codec for codec in CODECS if codec not in lossless_codecs())


def rounded(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE


@dataclass(frozen=True)
class Swapping:
    """Out after the last forward use, in before the first backward use.

    `tiers` are taken in turns; a codec among them encodes instead. A copy in starts
    `early` ops before it is needed; one out is waited for `late` ops after it has
    begun. A lossy codec takes float32 only, and only tensors of the names in `only`
    where there are some. With `planned`, a fraction, other codecs get so many bytes
    of the tensor's, and what does not fit goes to `overflow`; `lane` encodes copies.
    """

    tiers: tuple[str, ...] = ("host",)
    early: int = 2
    late: int = 1
    placed: bool = True
    only: tuple[str, ...] = ()
    planned: float | None = None
    overflow: str = "host"
    lane: str | None = None
    name: str = "swapping"

    def __call__(self, graph, limit_bytes=None):
        ordered, order = with_updates_in_time(graph)
        actions = _Writer(ordered, self).actions()
        blank = Plan(graph.name, self.name, limit_bytes, LINE, Predicted(0), actions)
        found = simulate(ordered, blank)
        predicted = Predicted(
            peak_bytes=found.peak_bytes,
            host_peak_bytes=found.host_peak_bytes,
            moved_bytes=found.moved_bytes,
            lower_bound_bytes=lower_bound(graph),
        )
        renumbered = tuple(
            Compute(order[a.op], a.algorithm, a.scratch_offset)
            if isinstance(a, Compute)
            else a
            for a in actions
        )
        return Plan(
            graph.name,
            self.name,
            limit_bytes,
            LINE,
            predicted,
            renumbered,
            lossy=tuple(tier for tier in self.tiers if tier in LOSSY),
        )


class _Writer:
    """Rows of (time, rank, what, tensor or op, more); a time of n is that of op n."""

    def __init__(self, graph, policy):
        self.graph = graph
        self.policy = policy
        self.rows: list[tuple] = []
        self.swapped = 0

    def size(self, tensor):
        return rounded(self.graph.tensors[tensor].nbytes)

    def actions(self):
        graph, updates = self.graph, state_updates(self.graph)
        state = {*graph.persistent, *updates}
        self.rows += [(-2, 0, "state", tensor) for tensor in graph.persistent]
        for tensor, maker in enumerate(graph.producer):
            if tensor not in state:
                begin = -1 if maker is None else maker
                uses = graph.consumers[tensor]
                kept = tensor in graph.keep
                end = len(graph.ops) if kept else max([begin, *uses])
                self.life(tensor, begin, uses, end)
        for output, source in updates.items():
            self.rows.append((graph.producer[output], 1, "alias", output, source))
        self.rows += [(index, 2, "compute", index) for index in range(len(graph.ops))]
        self.rows.sort(key=lambda row: row[:2])
        return self.emit(self.offsets())

    def life(self, tensor, begin, uses, end):
        """One stay in the arena, or two and a copy elsewhere between them."""
        phases = [op.phase for op in self.graph.ops]
        ahead = [u for u in (begin, *uses) if u < 0 or phases[u] == "forward"]
        later = [u for u in uses if phases[u] != "forward"]
        if not ahead or not later or tensor in self.graph.keep:
            self.stay(tensor, begin, end)
            return
        out, back = max(ahead), min(later)
        leave = min(out + self.policy.late, back)  # waited for before this op
        arrive = max(back - self.policy.early, leave)  # begins before this op
        if back - out < 2:
            self.stay(tensor, begin, end)
            return
        own = self.graph.tensors[tensor]
        tier = self.policy.tiers[self.swapped % len(self.policy.tiers)]
        if tier in LOSSY and (
            own.dtype != "float32"
            or (self.policy.only and own.name not in self.policy.only)
        ):
            self.stay(tensor, begin, end)
            return
        self.swapped += 1
        if tier in CODECS:
            self.stay(tensor, begin, out)
            self.rows.append((out, 3, "encode", tensor, tier))
            self.stay(tensor, back - 0.25, end, "decode")
            return
        self.stay(tensor, begin, leave - 0.5)
        self.rows.append((out, 4, "out", tensor, tier))
        self.rows.append((leave - 0.5, 0, "left", tensor))
        self.stay(tensor, arrive - 0.25, end)
        self.rows.append((arrive - 0.25, 1, "in", tensor, tier))
        self.rows.append((back - 0.125, 0, "arrived", tensor, tier))

    def code_bytes(self, tensor, codec):
        nbytes = self.graph.tensors[tensor].nbytes
        if self.policy.planned is not None and codec not in LOSSY:
            return 64 + int(self.policy.planned * nbytes)
        return codec_bounds(nbytes)[codec]

    def copy_bytes(self, tensor):
        nbytes = self.graph.tensors[tensor].nbytes
        return rounded(nbytes + 64 if self.policy.lane else nbytes)

    def stay(self, tensor, begin, end, how="open"):
        self.rows.append((begin, 0, how, tensor))
        if tensor not in self.graph.keep:
            self.rows.append((end, 5, "close", tensor))

    def offsets(self):  # noqa: C901  (a line a row)
        """Place what each row opens; by its number, copies by their tensor."""
        spaces: dict[str, list[Buffer]] = defaultdict(list)
        begun: dict[tuple[str, int], int] = {}
        sizes: dict[int, int] = {}  # of codes

        def end(space, kind, key, number, size):
            begin = begun.pop((kind, key))
            name = key if kind == "copy" else begin
            spaces[space].append(Buffer((kind, name), begin, number, size))

        for number, (_, _, what, key, *rest) in enumerate(self.rows):
            if what in ("open", "decode"):
                begun["tensor", key] = number
            if what == "decode":
                end("arena", "code", key, number + 1, sizes[key])
            elif what == "close":
                end("arena", "tensor", key, number + 1, self.size(key))
            elif what == "encode":
                begun["code", key] = number
                sizes[key] = rounded(self.code_bytes(key, rest[0]))
            elif what == "compute" and self.graph.ops[key].scratch_bytes:
                begun["scratch", key] = number
                size = rounded(self.graph.ops[key].scratch_bytes)
                end("arena", "scratch", key, number + 1, size)
            elif what == "out":
                begun["copy", key] = number
            elif what == "arrived":
                end(rest[0], "copy", key, number + 1, self.copy_bytes(key))
        for tensor in [key for kind, key in begun if kind == "tensor"]:
            end("arena", "tensor", tensor, len(self.rows), self.size(tensor))
        base = sum(self.size(t) for t in self.graph.persistent)
        found = {}
        for space, buffers in spaces.items():
            front = base if space == "arena" else 0
            for buffer, offset in zip(buffers, place(buffers).offsets, strict=True):
                found[buffer.id] = front + offset
        return found

    def emit(self, offsets):  # noqa: C901  (a line a row)
        actions: list = []
        started: dict[tuple[str, int], int] = {}
        front = 0
        for number, (_, _, what, key, *rest) in enumerate(self.rows):
            match what:
                case "state":
                    actions.append(Alloc(key, front))
                    front += self.size(key)
                case "open":
                    actions.append(Alloc(key, offsets["tensor", number]))
                case "decode":
                    actions.append(Decode(key, offsets["tensor", number]))
                case "close":
                    actions.append(Free(key))
                case "compute":
                    actions.append(Compute(key, None, offsets.get(("scratch", number))))
                case "alias":
                    actions.append(Alias(key, rest[0]))
                case "encode":
                    nbytes = self.code_bytes(key, rest[0])
                    code = offsets["code", number]
                    more = (
                        () if self.policy.planned is None else (self.policy.overflow,)
                    )
                    more = () if rest[0] in LOSSY else more
                    actions.append(Encode(key, rest[0], nbytes, code, *more))
                case "out" | "in":
                    started[what, key] = len(actions)
                    where = offsets["copy", key] if self.policy.placed else None
                    coded = (self.policy.lane, self.graph.tensors[key].nbytes // 2)
                    if what == "in":
                        actions.append(SwapIn(key, rest[0], where))
                    else:
                        coded = coded if self.policy.lane else ()
                        actions.append(SwapOut(key, rest[0], where, *coded))
                case "left":
                    actions.append(Wait(started["out", key]))
                case "arrived":
                    actions.append(Wait(started["in", key]))
        return tuple(actions)
