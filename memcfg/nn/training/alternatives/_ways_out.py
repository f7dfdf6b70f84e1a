"""Alternatives for a step that does not fit: another setting or a smaller batch.

Each figure is backed by a plan for the named setting and limit, or for the named batch.
The policy has no plan with one byte less or one sample more. It may still have one for
an even larger batch if its peak does not grow with the batch. A failure during the
search never replaces the original error.
"""

from __future__ import annotations

import math
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from memcfg import config
from memcfg._checks import name_of
from memcfg.errors import InfeasiblePlanError
from memcfg.graph import NOMINAL_COPY, Tier
from memcfg.nn.training._tracing import Share, is_assignment, shares_of
from memcfg.nn.training.alternatives._batch_search import BatchSearch
from memcfg.nn.training.ranks._sharding import SHARDINGS
from memcfg.plan import auto, share
from memcfg.plan.search._watch import (
    check_planning_time,
    planning_clock,
    planning_until,
)
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from memcfg.graph import Graph
    from memcfg.nn.training._tracing import ProgramKey, TraceSpec
    from memcfg.plan import Plan, Policy
    from memcfg.runtime import Executor

__all__ = ["Spilling", "with_ways_out"]

# Unless `config.set_alternatives_seconds` says otherwise:
_SECONDS = 8.0  # processor seconds that the searches may take, or
_TIMES = 4.0  # this multiple of the refused plan's time if larger,
_MOST = 30.0  # capped at this many seconds
_PART = 0.5  # share of the remaining time per setting; batches get the rest
_LARGER = "larger batches"
_WHOLE = {"simple_rnn": "SimpleRNN", "gru": "GRU", "lstm": "LSTM"}
_T = TypeVar("_T")


class _Search:
    """Search for variants of a program that fit, changing one setting at a time."""

    def __init__(
        self,
        executor: Executor,
        policy: Policy,
        trace: Callable[[TraceSpec, ProgramKey], Graph],
        spec: TraceSpec,
        key: ProgramKey,
        promised: int,
        seconds: float,
    ) -> None:
        self.executor = executor
        self.policy = policy
        self.trace = trace
        self.spec = spec
        self.key = key
        self.promised = promised
        limit = config.get_alternatives_seconds()
        if limit is None:
            limit = min(max(_SECONDS, _TIMES * seconds), _MOST)
        self._end = planning_clock() + limit
        if executor.times == "measured":  # every batch size would have to be measured
            self._end = -math.inf
        self.has_failed = False  # whether an attempt raised an error

    def has_time(self) -> bool:
        """Return whether there is time for one more plan."""
        return planning_clock() < self._end

    def attempt(self, find: Callable[[], _T], part: float = 1.0) -> _T | None:
        """Return the result of `find`, or None and set `has_failed` if it raises.

        It may use `part` of the remaining time. User-defined layers and policies may
        raise anything for another batch, and a policy that takes too long raises
        TimeoutError.
        """
        try:
            now = planning_clock()
            with planning_until(now + part * max(self._end - now, 0.0)):
                return find()
        except Exception:
            self.has_failed = True
            return None

    def smallest_limit(self, policy: Policy) -> int | None:
        """Return the smallest limit that a policy needs; None if it is not proven."""
        graph = self.trace(self.spec, self.key)
        limit = self.executor.smallest_limit(graph, policy, self.promised)
        check_planning_time()  # a search that was ended might have found a smaller one
        return limit

    def limits(self, error: InfeasiblePlanError) -> tuple[dict[str, int], list[str]]:
        """Return smaller limits by setting, and the settings not searched."""
        limits: dict[str, int] = {}
        unsearched: list[str] = []
        for setting, other in _settings(self.executor, self.policy):
            if not self.has_time():
                unsearched.append(setting)
                continue
            self.has_failed = False
            found = self.attempt(partial(self.smallest_limit, other), _PART)
            if self.has_failed:
                unsearched.append(setting)
            elif found is not None and found < error.smallest_limit_bytes:
                limits[setting] = found
        return limits, unsearched

    def divided(self, error: InfeasiblePlanError) -> tuple[dict[str, int], list[str]]:
        """Return smaller limits by what ranks could divide, and what was not searched.

        In the end none that needs as much as one which divides less.
        """
        limits: dict[str, int] = {}
        unsearched: list[str] = []
        least = error.smallest_limit_bytes
        for setting, spec in _shardings(self.spec, self.key):
            other = copy(self)
            other.spec, other.has_failed = spec, not self.has_time()
            found = None
            if not other.has_failed:
                found = other.attempt(partial(other.smallest_limit, self.policy))
            if other.has_failed:
                unsearched.append(setting)
            elif found is not None and found < least:
                limits[setting] = least = found
        return limits, unsearched

    def fits(self, batch: int, policy: Policy, steps: int | None = None) -> bool:
        """Return whether a smaller batch fits, perhaps with accumulated gradients."""

        def find() -> bool:
            graph = self._graph(batch, steps)
            if not self.executor.shortfall(graph, policy, self.promised):
                return True
            check_planning_time()  # a search that was ended might have found a plan
            return False

        return bool(self.attempt(find))

    def _may_fit(self, batch: int) -> bool:
        """Return whether the lower bound permits a batch; True if it is unknown."""

        def find() -> bool:
            return self.executor.bound_excess(self._graph(batch), self.promised) <= 0

        return self.attempt(find) is not False

    def _graph(self, batch: int, steps: int | None = None) -> Graph:
        spec = self.spec
        if steps is not None:
            optimizer = copy(spec.optimizer)
            assert optimizer is not None
            object.__setattr__(optimizer, "gradient_accumulation_steps", steps)
            spec = replace(spec, optimizer=optimizer)
        return self.trace(spec, self.key._replace(batch_size=batch))

    def batches(self) -> tuple[int, int]:
        """Return a batch that fits, or 0, and one that does not.

        Bisects with cheap tests only: `auto` accepts any plan of `share` that fits,
        and no plan exists below the lower bound.
        """
        low, high = 0, self.key.batch_size
        for plan in (share(),) if _is_auto(self.policy) else ():
            end = high
            while end - low > 1 and self.has_time():
                middle = (low + end) // 2
                if self.fits(middle, plan):
                    low = middle
                else:
                    end = middle
        while high - low > 1 and self.has_time():
            middle = (low + high + 1) // 2
            if self._may_fit(middle):
                break
            high = middle
        return low, high

    def largest_batch(
        self, error: InfeasiblePlanError, low: int, high: int
    ) -> tuple[int, bool]:
        """Return the largest batch found to fit, or 0, and whether it is exact.

        `low` fits or is 0, and `high` does not. The result is not exact if an attempt
        raised.
        """
        search = BatchSearch(
            self.executor,
            self.policy,
            self._graph,
            self.promised,
            end=self._end,
            needs_one=False,
            attempt=lambda find: self.attempt(partial(_in_time, find)),
        )
        missing = error.smallest_limit_bytes - (error.limit_bytes or 0)
        search.shortfalls[self.key.batch_size] = max(missing, 1)
        failed = self.has_failed
        guess = self.attempt(partial(search.guess, self.key.batch_size))
        self.has_failed = failed
        middle = (low + high) // 2
        largest, ended = search.largest(high, low, middle if guess is None else guess)
        return largest, ended and not self.has_failed

    def state_bytes(self) -> int:
        """Return the bytes of weights and optimizer state, always resident."""
        graph = self.trace(self.spec, self.key)
        return sum(graph.tensors[t].nbytes for t in graph.persistent)

    def _is_mean(self) -> bool:
        """Return whether the loss of a batch is the mean of those of equal parts."""
        graph = self.trace(self.spec, self.key)
        if any(op.type == "moving_average" or is_assignment(op) for op in graph.ops):
            return False
        try:
            shares = shares_of(self.spec, self.key)
        except NotImplementedError:
            return False
        return all(share == Share(1, 0) for share in shares)

    def accumulation(self, most: int) -> tuple[tuple[int, int] | None, bool]:
        """Return (steps, batch) with the same update as the whole batch, and certainty.

        The second value is False if a batch was left untried. No batch above `most`
        fits, since accumulation keeps additional state.
        """
        self.has_failed = False
        if not self.attempt(self._is_mean):
            return None, not self.has_failed
        whole = self.key.batch_size
        for batch in range(most, 0, -1):
            if whole % batch == 0:
                if not self.has_time():
                    return None, False
                if self.fits(batch, self.policy, whole // batch):
                    return (whole // batch, batch), not self.has_failed
        return None, not self.has_failed


def _in_time(find: Callable[[], int]) -> int:
    """Return a shortfall; a search that was ended might have found a plan."""
    missing = find()
    if missing:
        check_planning_time()
    return missing


def _is_auto(policy: Policy) -> bool:
    return name_of(policy).startswith("auto")


def with_ways_out(
    error: InfeasiblePlanError,
    executor: Executor,
    policy: Policy,
    trace: Callable[[TraceSpec, ProgramKey], Graph],
    spec: TraceSpec,
    key: ProgramKey,
    promised: int,
    seconds: float,
) -> InfeasiblePlanError:
    """Return the error with the alternatives that fit.

    Parameters
    ----------
    error : InfeasiblePlanError
        The error to extend.
    executor : Executor
        The executor of the model.
    policy : Policy
        The policy of the model.
    trace : callable
        Traces a program of a spec.
    spec : TraceSpec
        The specification of the program.
    key : ProgramKey
        The program.
    promised : int
        Bytes that must remain free for others.
    seconds : float
        Processor time that the refused plan took.

    Returns
    -------
    InfeasiblePlanError
        The same error with the alternatives found in bounded time. Errors of a layer
        or policy for another batch or setting are not raised; what they leave open is
        listed in `unsearched`.
    """
    search = _Search(executor, policy, trace, spec, key, promised, seconds)
    state = search.attempt(search.state_bytes) or 0
    divided, undivided = search.divided(error)
    if state > (error.limit_bytes or math.inf) - error.in_use_bytes:
        return _of_state(error, state, divided, undivided, key.batch_size)
    several = key.batch_size > 1
    several &= not any(node.batch_size for node in spec.network.nodes)
    low, high = search.batches() if several else (0, 1)
    failed = search.has_failed
    limits, unsearched = search.limits(error)
    limits, unsearched = limits | divided, unsearched + undivided
    largest = accumulation = None
    if several:
        search.has_failed = failed
        largest, is_largest = search.largest_batch(error, low, high)
        if not is_largest:
            unsearched.append(_LARGER if largest else "smaller batches")
            largest = largest or None
    accumulates = getattr(spec.optimizer, "gradient_accumulation_steps", None)
    if largest and key.kind == "train" and accumulates is None:
        accumulation, is_known = search.accumulation(largest)
        if not is_known:
            unsearched.append("gradient accumulation")
    fields = {name: getattr(error, name) for name in error._fields}
    graph = search.attempt(partial(trace, spec, key))
    whole = [op.type for op in graph.ops if op.type in _WHOLE] if graph else []
    if whole and key.kind == "train":
        fields["hint"] += (
            "\nWith unroll=True a policy can recompute single steps of "
            f"{_WHOLE[whole[0]]}; without it the layer is one op."
        )
    fields |= {
        "limits_with": limits,
        "largest_batch": largest,
        "accumulation": accumulation,
        "unsearched": unsearched,
    }
    return InfeasiblePlanError(error.message, **fields)


def _of_state(
    error: InfeasiblePlanError,
    state: int,
    limits: dict[str, int],
    unsearched: list[str],
    batch: int,
) -> InfeasiblePlanError:
    """Return the error for weights and optimizer state that alone do not fit."""
    fields = {name: getattr(error, name) for name in error._fields}
    fields |= {"limits_with": limits, "unsearched": unsearched}
    fields["largest_batch"] = 0 if batch > 1 else None
    fields["hint"] = (
        "Raise the limit: weights and optimizer state alone take "
        f"{format_bytes(state, exact=True)}."
    )
    return InfeasiblePlanError(error.message, **fields)


def _settings(executor: Executor, policy: Policy) -> list[tuple[str, Policy]]:
    """List settings that leave the model as it is, with their spelling."""
    result: list[tuple[str, Policy]] = []
    before = ""
    if not _is_auto(policy):
        before, policy = 'memory="auto" and ', auto()
        result.append(('memory="auto"', policy))
    device = executor.device
    if not device.spill.places and "host" in device.tiers:
        result.append((f'{before}spill_to="host"', Spilling(policy)))
    return result


def _shardings(spec: TraceSpec, key: ProgramKey) -> Iterator[tuple[str, TraceSpec]]:
    """Yield what more the ranks could divide, with its spelling."""
    rank, optimizer = spec.rank, spec.optimizer
    if rank is None or rank.encoder is not None or optimizer is None:
        return
    if key.ranks == 1 or key.kind != "train" or optimizer.why_whole():
        return
    begin = SHARDINGS.index(rank.sharding) + 1 if rank.sharding else 0
    for each in SHARDINGS[begin:]:
        yield f'shard="{each}"', replace(spec, rank=rank._replace(sharding=each))


class Spilling:
    """A policy planned as if the device spilled to host memory."""

    def __init__(self, policy: Policy) -> None:
        self.name = name_of(policy)
        self._policy = policy

    def __call__(self, graph: Graph, limit_bytes: int | None = None) -> Plan:
        """Plan as if ``spill_to="host"`` were configured."""
        known = {tier.name: tier for tier in graph.tiers}
        host = known.get("host", Tier("host", NOMINAL_COPY["host"]))
        graph = replace(graph, tiers=(replace(host, is_stated=True),))
        return self._policy(graph, limit_bytes=limit_bytes)
