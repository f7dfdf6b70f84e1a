"""Evaluation by several workers: each sees some of the batches, and results merge."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from memcfg.data import Dataset
from memcfg.errors import CommunicationError
from memcfg.nn._argument_checks import integer
from memcfg.nn.inputs._reading import is_arrays
from memcfg.nn.inputs._stream_source import StreamSource
from memcfg.nn.training._evaluations import Evaluations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from memcfg.memory import Resource
    from memcfg.nn import Model
    from memcfg.nn.inputs._batches import Batch
    from memcfg.ops import Communicator
    from memcfg.parallel._members import Member, Members

__all__ = ["batches_of", "evaluate"]

R = TypeVar("R")

_BATCH = 32  # samples, as of `Model.do_evaluation`


def batches_of(x: Any, batch_size: int | None, steps: int | None) -> Iterator[Any]:
    """Return the batches of arrays or of a stream."""
    size = _BATCH if batch_size is None else integer(batch_size, "batch_size")
    if steps is not None:
        steps = integer(steps, "steps")
    if is_arrays(x):
        source: Iterable[Any] = Dataset.from_tensor_slices(x).batch(size)
    elif batch_size is not None:
        raise ValueError("batch_size is for arrays, and these are batches")
    else:
        source = x
    return islice(source, steps)


def evaluate(
    model: Model,
    members: Members,
    batches: Iterator[Any],
    evaluations: Sequence[Any],
) -> None:
    """Have batch i evaluated by rank i modulo their number; merge in that order.

    In each round all ranks run a batch at the same time, so that they can gather
    weights together. An error in the data, or of an evaluator, is raised on all ranks
    in the next round, and the group goes on. Evaluators change when all have merged.
    """
    total = _evaluated(model, members, batches, evaluations)
    _merge(evaluations, total)  # what ranks have seen is gone


def _evaluated(
    model: Model,
    members: Members,
    batches: Iterator[Any],
    evaluations: Sequence[Any],
) -> Any:
    """Return evaluators of the same arguments that have seen the batches."""
    pool = model._pool()  # threads of members do not take the model's lock
    shares = [_Share(pool, each, _renewed(evaluations)) for each in members.all]
    goes_on = True
    while goes_on:
        row = _next_row(batches, members.size)
        goes_on = members.call(partial(_run, shares, row))[0]
        for each in shares:
            each.check()
    total = _renewed(evaluations)
    if len(shares) < members.size:  # there are other processes, too
        communicator = members.lead.communicator
        _merge_processes(total, shares[0].evaluations, communicator)
    else:
        for each in shares:
            _merge(total, each.evaluations)
    return total


def _merge_processes(total: Any, own: Any, communicator: Communicator) -> None:
    """Merge what the evaluators of all processes have seen, a part of each at a time.

    What a rank cannot send, or merge, is raised on all ranks.
    """
    into = [*_each(total)]
    parts = zip_longest(*map(_parts, _each(own)))
    error: Exception | None = None
    while True:
        data = None
        try:
            row = None if error else next(parts, None)
            data = None if row is None else pickle.dumps(row)
        except Exception as raised:
            error = raised
        shown = None if error is None else _shown(error)
        said = communicator.exchange((data, shown))
        _check(error, communicator.rank, [each for _, each in said])
        if not any(data for data, _ in said):
            return
        try:
            for data, _ in said:
                _merge_parts(into, None if data is None else pickle.loads(data))
        except Exception as raised:
            error = raised


def _merge_parts(into: Sequence[Any], row: Sequence[Any] | None) -> None:
    """Merge the next part of each evaluator of a rank, where there is one."""
    if row is None:
        return
    if len(row) != len(into):
        raise ValueError(f"ranks pass other evaluators: {len(row)}, not {len(into)}")
    for target, part in zip(into, row, strict=True):
        if part is not None:
            target.merge(part)


def _parts(evaluator: Any) -> Iterator[Any]:
    """Return what is sent of an evaluator, one after another."""
    parts = getattr(evaluator, "_parts", None)  # as those of memcfg.evaluation have
    return iter([evaluator]) if parts is None else parts()


def _next_row(batches: Iterator[Any], size: int) -> list[Any] | Exception:
    """Read a batch for each rank, or fewer at the end; return an error."""
    try:
        return list(islice(batches, size))
    except Exception as error:
        return error


def _run(shares: Sequence[_Share], row: list[Any] | Exception, member: Member) -> bool:
    """Evaluate a rank's batch of a row; return whether there may be more."""
    first = shares[0].rank
    return shares[member.communicator.rank - first].run(row)


class _Share:
    """What a rank does of an evaluation."""

    def __init__(self, pool: Resource, member: Member, evaluations: Any) -> None:
        self.evaluations = evaluations
        self.rank = member.communicator.rank
        self._of = Evaluations(evaluations)
        self._pool = pool
        self._session, self._communicator = member.session, member.communicator
        self._error: Exception | None = None  # that others will be told
        self._said: list[tuple[int, str | None]] = []  # batches of the row, errors

    def run(self, row: list[Any] | Exception) -> bool:
        """Evaluate this rank's batch of a row; return whether there may be more.

        A rank for which there is none runs that of rank 0.
        """
        if isinstance(row, Exception):
            self._error, row = self._error or row, []
        with ExitStack() as stack:
            batch = None
            if row and self._error is None:
                element = row[self.rank] if self.rank < len(row) else row[0]
                batch = self._caught(lambda: self._read(element, stack))
            error = None if self._error is None else _shown(self._error)
            self._said = self._communicator.exchange((len(row), error))
            if batch is None or len({*self._said}) > 1:
                return False
            session = self._session
            gathers = session.divides_weights
            step = session.step_gathering if gathers else session.step
            _, add = self._of.run(session, "predict", batch, step)
            if self.rank < len(row):
                self._caught(add)
        return True

    def check(self) -> None:
        """Raise an error that all ranks know of: this one's, or another's."""
        counts = [count for count, _ in self._said]
        _check(self._error, self.rank, [error for _, error in self._said])
        if len({*counts}) > 1:
            raise ValueError(
                f"ranks have other numbers of batches, {counts} in the last round: "
                "pass the same data to all"
            )

    def _caught(self, function: Callable[[], R]) -> R | None:
        """Call a function; keep what it raises."""
        try:
            return function()
        except Exception as error:
            self._error = error
        return None

    def _read(self, element: Any, stack: ExitStack) -> Batch:
        """Check an element of the data; its arrays are there until the stack ends."""
        source = StreamSource(None, [element], lambda: self._pool, labelled=True)
        source.keeps_targets = source.keeps_masks = True
        source.expect(self._of.wanted(self._session, labelled=False))
        return next(stack.enter_context(closing(source.begin())))


def _check(own: Exception | None, rank: int, said: Sequence[str | None]) -> None:
    """Raise this rank's error if the others know of it, or that of another rank."""
    errors = {i: error for i, error in enumerate(said) if error}
    if own is not None and rank in errors:
        raise own
    if errors:
        first = min(errors)
        raise CommunicationError(f"rank {first} failed: {errors[first]}", [*errors])


def _shown(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _renewed(given: Any) -> Any:
    """Return evaluators of the same arguments that have seen nothing."""
    if isinstance(given, Mapping):
        return {key: _renewed(each) for key, each in given.items()}
    if isinstance(given, list | tuple):
        return [_renewed(each) for each in given]
    if not callable(getattr(given, "merge", None)):
        raise TypeError(
            f"workers merge evaluators, and {given!r} has no method merge: pass one of "
            "memcfg.evaluation, or use Model.do_evaluation"
        )
    return given.new_instance()


def _merge(given: Any, seen: Any) -> None:
    """Add what evaluators have seen to those of the same place."""
    for each, other in zip(_each(given), _each(seen), strict=True):
        each.merge(other)


def _each(given: Any) -> Iterator[Any]:
    """Yield the evaluators of a structure, of mappings in the order of their keys."""
    if isinstance(given, Mapping):
        given = [given[key] for key in sorted(given, key=str)]
    if isinstance(given, list | tuple):
        for each in given:
            yield from _each(each)
    else:
        yield given
