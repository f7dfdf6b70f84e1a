"""Checkmate's formulation as a mixed-integer program: which op runs in which stage.

Stage t first recomputes ops in the graph's order and then computes op t for the first
time. If a tensor of `keep` can be recomputed, there is one more stage after the last
op. Columns, all in [0, 1] except the load:

* R[t, i]: stage t computes op i; R[t, t] is 1;
* S[t, v]: tensor v is resident when stage t begins;
* F[t, v, k]: v is freed after op k of stage t, its last reader there;
* U[t, k]: bytes in use after op k of stage t.

R and S are integer; the largest F that the rows allow is then integer as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from memcfg._cached import cached_property
from memcfg.plan.search._request import state_updates
from memcfg.units import align_up

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from memcfg.plan.methods._contraction import Contraction
    from memcfg.plan.search._request import Request

INFINITE = float("inf")


@dataclass
class Column:
    """A variable."""

    cost: float
    lower: float
    upper: float
    whole: bool


@dataclass
class Row:
    """A constraint: the sum of factors times columns is within two bounds."""

    lower: float
    upper: float
    columns: list[int]
    factors: list[float]


class Stages:
    """The program of one request without the limit, which the solver adds.

    Parameters
    ----------
    request : Request
        The request.
    runs : Contraction, optional
        The runs of ops that the program's ops are; None: those of the request.
    times : int, optional
        The most times that an op runs.

    Attributes
    ----------
    graph : memcfg.graph.Graph
        The graph of the program's ops.
    columns, rows : list
        The program.
    again : dict of (int, int) to int
        Maps (stage, op) to the column R of recomputing the op in the stage.
    resident : dict of (int, int) to int
        Maps (stage, tensor) to the column S of the tensor's residency.
    loads : list of int
        The columns that the limit bounds, in units of `unit` bytes.
    base : int
        Bytes in use throughout, which loads do not include.
    unit : int
        Bytes of the largest tensor.
    """

    def __init__(
        self,
        request: Request,
        runs: Contraction | None = None,
        *,
        times: int | None = None,
    ) -> None:
        self.runs = runs
        if runs is not None:
            order = tuple(range(len(runs.graph.ops)))
            request = replace(
                request, graph=runs.graph, order=order, replayed=None, known={}
            )
        self.request = request
        self.graph = request.graph
        self.columns: list[Column] = []
        self.rows: list[Row] = []
        self.again: dict[tuple[int, int], int] = {}
        self.resident: dict[tuple[int, int], int] = {}
        self.loads: list[int] = []
        made_in_state = state_updates(self.graph)
        self._sizes = [
            0
            if maker is None or tensor in made_in_state
            else self.graph.aligned_bytes[tensor]
            for tensor, maker in enumerate(self.graph.producer)
        ]
        self.base = sum(
            align_up(tensor.nbytes)
            for tensor, maker in zip(
                self.graph.tensors, self.graph.producer, strict=True
            )
            if maker is None
        )
        self.unit = max((s for s in self._sizes), default=0) or 1
        self._choose_again()
        self._choose_resident()
        for stage in range(self.last + 1):
            self._add_stage(stage)
        if times is not None:
            self._bound_times(times)

    # -- columns -----------------------------------------------------------------

    def _column(
        self, cost: float = 0.0, upper: float = 1.0, *, whole: bool = False
    ) -> int:
        self.columns.append(Column(cost, 0.0, upper, whole))
        return len(self.columns) - 1

    @cached_property
    def costs(self) -> list[float]:
        """The cost of each op."""
        timed = any(op.seconds for op in self.graph.ops)
        return [op.seconds if timed else 1.0 for op in self.graph.ops]

    @cached_property
    def _late(self) -> list[int]:
        """For each op, the last stage that may compute it, before state is updated."""
        ends = dict[int, int]()
        for output, source in state_updates(self.graph).items():
            maker = self.graph.producer[output]
            assert maker is not None
            ends[source] = maker
        return [
            min((ends.get(t, self.last) for t in op.inputs), default=self.last)
            for op in self.graph.ops
        ]

    def _choose_again(self) -> None:
        mean = sum(self.costs) / max(1, len(self.costs)) or 1.0
        wanted = self._wanted
        for op in sorted(self.request.repeatable):
            until = max((wanted[t] for t in self.graph.ops[op].outputs), default=-1)
            for stage in range(op + 1, min(self._late[op], until) + 1):
                cost = self.costs[op] / mean
                self.again[stage, op] = self._column(cost, whole=True)

    @cached_property
    def _wanted(self) -> list[int]:
        """For each tensor, the last stage that may read it; for `keep`, one more."""
        ops = self.graph.ops
        wanted = [-1] * len(self.graph.tensors)
        for tensor in self.graph.keep:
            wanted[tensor] = self.last + 1
        for index in reversed(range(len(ops))):
            stage = index
            if index in self.request.repeatable:
                later = max((wanted[t] for t in ops[index].outputs), default=-1)
                stage = max(stage, min(later, self._late[index]))
            for tensor in ops[index].inputs:
                wanted[tensor] = max(wanted[tensor], stage)
        return wanted

    def _choose_resident(self) -> None:
        for tensor, maker in enumerate(self.graph.producer):
            if maker is None or self._sizes[tensor] == 0:
                continue
            for stage in range(maker + 1, min(self._wanted[tensor], self.last) + 1):
                self.resident[stage, tensor] = self._column(whole=True)

    @cached_property
    def last(self) -> int:
        """The last stage."""
        makers = {self.graph.producer[tensor] for tensor in self.graph.keep}
        again = not makers.isdisjoint(self.request.repeatable)
        return len(self.graph.ops) - (not again)

    # -- rows --------------------------------------------------------------------

    def _row(self, lower: float, upper: float, terms: Mapping[int, float]) -> None:
        self.rows.append(Row(lower, upper, [*terms], [*terms.values()]))

    def _at_most(self, upper: float, terms: Iterable[tuple[int, float]]) -> None:
        self._row(-INFINITE, upper, dict(terms))

    def _ran(self, stage: int, op: int) -> tuple[dict[int, float], float]:
        """Return R[stage, op] as terms and a constant."""
        if op == stage:
            return {}, 1.0
        column = self.again.get((stage, op))
        return ({}, 0.0) if column is None else ({column: 1.0}, 0.0)

    def _there(self, stage: int, tensor: int) -> dict[int, float]:
        column = self.resident.get((stage, tensor))
        return {} if column is None else {column: 1.0}

    def _add_stage(self, stage: int) -> None:
        runs = [op for op in range(stage) if (stage, op) in self.again]
        runs += self.first_runs(stage)
        self._add_needs(stage, runs)
        self._add_residence(stage)
        self._add_memory(stage, runs)

    def _add_needs(self, stage: int, runs: Sequence[int]) -> None:
        """Add R[t, j] <= R[t, i] + S[t, v] for each input v of op j, computed by i."""
        for op in runs:
            for tensor in dict.fromkeys(self.graph.ops[op].inputs):
                maker = self.graph.producer[tensor]
                if maker is None or self._sizes[tensor] == 0:
                    continue
                reads, one = self._ran(stage, op)
                made, _ = self._ran(stage, maker)
                terms = dict(reads)
                for column in (*made, *self._there(stage, tensor)):
                    terms[column] = terms.get(column, 0.0) - 1.0
                self._at_most(-one, terms.items())

    def _add_residence(self, stage: int) -> None:
        """Add S[t, v] <= R[t - 1, i] + S[t - 1, v], and that `keep` is resident."""
        for tensor, maker in enumerate(self.graph.producer):
            there = self._there(stage, tensor)
            if maker is None or not there or stage == 0:
                continue
            made, one = self._ran(stage - 1, maker)
            terms = dict(there)
            for column in (*made, *self._there(stage - 1, tensor)):
                terms[column] = -1.0
            if one == 0.0:
                self._at_most(0.0, terms.items())
            if stage == self.last and tensor in set(self.graph.keep):
                again, _ = self._ran(stage, maker)
                self._row(1.0, 2.0, {**there, **again})

    def _add_memory(self, stage: int, runs: Sequence[int]) -> None:
        readers: dict[int, list[int]] = {}  # by tensor: ops that run in the stage
        for op in runs:
            for tensor in dict.fromkeys(self.graph.ops[op].inputs):
                if self._sizes[tensor] and self.graph.producer[tensor] is not None:
                    readers.setdefault(tensor, []).append(op)
        freed = {
            (tensor, op): self._freed(stage, tensor, op, ops)
            for tensor, ops in readers.items()
            for op in ops
        }
        for tensor, ops in readers.items():
            if len(ops) > 1:
                self._at_most(1.0, [(freed[tensor, op], 1.0) for op in ops])
        use: dict[int, float] = {}
        for tensor in range(len(self._sizes)):
            for column in self._there(stage, tensor):
                use[column] = self._sizes[tensor] / self.unit
        for op in runs:
            use = self._run(stage, op, use, freed)

    def _freed(self, stage: int, tensor: int, op: int, readers: Sequence[int]) -> int:
        """Add F, which requires that the op runs and that there is no later reader."""
        column = self._column()
        ran, one = self._ran(stage, op)
        if not one:
            self._at_most(0.0, [(column, 1.0), *((c, -1.0) for c in ran)])
        for later in (
            self._there(stage + 1, tensor),
            *(self._ran(stage, reader)[0] for reader in readers if op < reader < stage),
        ):
            if later:
                self._at_most(1.0, [(column, 1.0), *((c, 1.0) for c in later)])
        kept_at_end = stage == self.last and tensor in self.graph.keep
        if (stage in readers and op < stage) or kept_at_end:
            self.columns[column].upper = 0.0
        return column

    def _run(
        self,
        stage: int,
        op: int,
        use: dict[int, float],
        freed: Mapping[tuple[int, int], int],
    ) -> dict[int, float]:
        """Add the load while an op runs; return the terms of the bytes after it."""
        made = [
            t
            for t in self.graph.ops[op].outputs
            if self._wanted[t] > stage
            or any(op < reader <= stage for reader in self.graph.consumers[t])
        ]
        passing = sum(
            self._sizes[t] for t in self.graph.ops[op].outputs if t not in made
        )
        stays = sum(self._sizes[t] for t in made) / self.unit
        scratch = self.graph.aligned_scratch[op]
        extra = (scratch + passing) / self.unit
        ran, one = self._ran(stage, op)
        peak = dict(use)
        for column in ran:
            peak[column] = peak.get(column, 0.0) + stays + extra
        for source in self._in_place(op):
            if (source, op) in freed:
                peak[freed[source, op]] = -self._sizes[source] / self.unit
        load = self._column(upper=INFINITE)
        self.loads.append(load)
        peak[load] = -1.0
        self._row(-INFINITE, -one * (stays + extra), peak)
        after = self._column(upper=INFINITE)
        balance = {**use, after: -1.0}
        for column in ran:
            balance[column] = balance.get(column, 0.0) + stays
        for tensor in dict.fromkeys(self.graph.ops[op].inputs):
            if (tensor, op) in freed:
                column = freed[tensor, op]
                balance[column] = -self._sizes[tensor] / self.unit
        self._row(-one * stays, -one * stays, balance)
        return {after: 1.0}

    def _in_place(self, op: int) -> list[int]:
        """Return the inputs whose buffers outputs of the same size may take over."""
        taken: dict[int, int] = {}
        for source, output in self.graph.ops[op].in_place:
            same = self._sizes[source] == self._sizes[output] > 0
            if same and source not in taken and output not in taken.values():
                taken[source] = output
        return [*taken]

    def _bound_times(self, times: int) -> None:
        """Add that no op runs more than `times` times."""
        columns: dict[int, list[int]] = {}
        for (_, op), column in self.again.items():
            columns.setdefault(op, []).append(column)
        for each in columns.values():
            self._at_most(times - 1.0, [(column, 1.0) for column in each])

    # -- schedules ---------------------------------------------------------------

    def values(self, again: Collection[tuple[int, int]]) -> dict[int, float]:
        """Return the integer columns of a schedule: R, and the smallest S for it."""
        chosen = set(again)
        values = {column: float(key in chosen) for key, column in self.again.items()}
        values |= dict.fromkeys(self.resident.values(), 0.0)
        read: set[int] = set(self.graph.keep)  # tensors with a later reader
        for stage in reversed(range(self.last + 1)):
            repeated = sorted((o for s, o in chosen if s == stage), reverse=True)
            for op in (*self.first_runs(stage), *repeated):
                read.difference_update(self.graph.ops[op].outputs)
                read.update(self.graph.ops[op].inputs)
            for tensor in read:
                if (stage, tensor) in self.resident:
                    values[self.resident[stage, tensor]] = 1.0
        return values

    def sequence(self, again: Iterable[tuple[int, int]]) -> list[int]:
        """Return the request's ops in the schedule that recomputes these in stages."""
        rows: list[list[int]] = [[] for _ in range(self.last + 1)]
        for stage, op in sorted(again):
            rows[stage].append(op)
        ops = [
            op
            for stage, row in enumerate(rows)
            for op in (*row, *self.first_runs(stage))
        ]
        return ops if self.runs is None else self.runs.expanded(ops)

    def first_runs(self, stage: int) -> tuple[int, ...]:
        """Return the op that a stage computes for the first time, or nothing."""
        return (stage,) if stage < len(self.graph.ops) else ()
