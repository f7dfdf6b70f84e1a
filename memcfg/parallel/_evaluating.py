"""Evaluation by several workers: each sees some of the batches, and results merge."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from memcfg.data import Dataset
from memcfg.nn._argument_checks import integer
from memcfg.nn.inputs._reading import is_arrays

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from memcfg.nn import Model
    from memcfg.ops import Communicator

__all__ = ["batches_of", "evaluate_by_ranks", "evaluate_by_threads"]

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


def evaluate_by_threads(
    models: Sequence[Model], batches: Iterator[Any], evaluations: Sequence[Any]
) -> None:
    """Have batch i evaluated by model i modulo their number; merge in that order."""
    count = len(models)
    own = [_renewed(evaluations) for _ in models]
    with ThreadPoolExecutor(count, thread_name_prefix="memcfg evaluation") as threads:
        while row := list(islice(batches, count)):
            futures = [
                threads.submit(model.do_evaluation, [batch], *each)
                for model, each, batch in zip(models, own, row, strict=False)
            ]
            for future in futures:
                future.result()
    for each in own:
        _merge(evaluations, each)


def evaluate_by_ranks(
    model: Model,
    communicator: Communicator,
    batches: Iterator[Any],
    evaluations: Sequence[Any],
) -> None:
    """Evaluate this rank's share of the batches; merge those of all ranks in order."""
    own = _renewed(evaluations)
    try:
        for batch in islice(batches, communicator.rank, None, communicator.size):
            model.do_evaluation([batch], *own)
    except BaseException as error:
        with suppress(Exception):  # the others have ended as well
            communicator.fail(f"{type(error).__name__}: {error}")
        raise
    for each in communicator.exchange(own):
        _merge(evaluations, each)


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
    if isinstance(given, Mapping):
        for key, each in given.items():
            _merge(each, seen[key])
    elif isinstance(given, list | tuple):
        for each, other in zip(given, seen, strict=True):
            _merge(each, other)
    else:
        given.merge(seen)
