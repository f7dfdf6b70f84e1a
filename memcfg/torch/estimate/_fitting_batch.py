"""The largest batch that a budget can train, from traces of two batches and more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from memcfg._checks import named_arguments
from memcfg.plan import Alloc, Compute, Free
from memcfg.plan.search._floor import lowest_plan
from memcfg.torch.budget._checked_arguments import (
    ALLOCATED,
    check_fits,
    checked_example,
    checked_limit,
)
from memcfg.torch.estimate._estimate import traced_step
from memcfg.units import align_up

if TYPE_CHECKING:
    import torch
    from torch import nn

    from memcfg.plan import Plan
    from memcfg.torch.budget._step import Step
    from memcfg.torch.trace._traced import Traced

_FIRST = 8, 16  # batches that are traced first: small, and not of one sample
_MOST = 2**30  # samples: a step of a larger batch does not depend on it

MakeInputs = Callable[[int], Sequence[Any] | Mapping[str, Any]]


@named_arguments
def largest_batch(
    model: nn.Module,
    make_inputs: MakeInputs,
    limit: float | str,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    optimizer: torch.optim.Optimizer | None = None,
    times: str = "measured",
) -> int:
    """Return the largest batch that `budget` can train within a limit.

    The model is not run. Two small batches are traced; since the bytes of each tensor
    are affine in the number of samples, they tell the largest batch, which is traced to
    confirm it, as is a batch of one sample more. Where bytes are not affine, such as
    those of similarities of all pairs of samples, more batches are traced.

    Parameters
    ----------
    model : torch.nn.Module
        The model, as for `budget`.
    make_inputs : callable
        Returns the inputs for a number of samples: a sequence of positional inputs, or
        a mapping of inputs by name. Tensors on the meta device do not do, since ops are
        measured.
    limit : int, float or str
        The most bytes of a training step, such as ``"8GiB"``.
    loss : callable or None, default None
        Computes a scalar from what the model returns, as of `budget`.
    optimizer : torch.optim.Optimizer or None, default None
        Its state is counted, as are the temporary tensors of its step.
    times : str, default "measured"
        ``"nominal"``: nothing is run, and no scratch is known.

    Returns
    -------
    int
        The number of samples: a plan of it fits the limit, and there is no plan of one
        sample more. 0 if one sample does not fit.

    Raises
    ------
    TypeError
        If the model is not a module, `make_inputs` is not callable or returns no
        inputs, the model does not take them, or `optimizer` is not one of PyTorch's.
    ValueError
        If the limit is not a number of bytes, or the bytes of a step do not depend on
        the batch; and as of `estimate`.

    Examples
    --------
    >>> import memcfg.torch as mt, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh())
    >>> inputs = lambda batch: (torch.ones(batch, 64),)
    >>> batch = mt.largest_batch(model, inputs, "1MiB", times="nominal")
    >>> floors = [
    ...     mt.estimate(model, inputs(n), times="nominal").floor_bytes
    ...     for n in (batch, batch + 1)
    ... ]
    >>> floors[0] <= 2**20 < floors[1]
    True
    """
    limit_bytes = checked_limit(limit)
    if limit_bytes is None:
        raise ValueError("without a limit there is no largest batch")
    if not callable(make_inputs):
        raise TypeError(
            "make_inputs is a function of the batch size, such as "
            f"lambda n: (torch.ones(n, 3),), not {make_inputs!r}"
        )
    check_fits(model, None, optimizer, loss)

    def trace(batch: int) -> Step:
        inputs = checked_inputs(make_inputs(batch))
        check_fits(model, inputs, optimizer, loss)
        return traced_step(None, model, inputs, times, optimizer, loss)[1]

    return BatchSearch(trace, limit_bytes).run()


def checked_inputs(made: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return positional inputs and inputs by name, of either."""
    if isinstance(made, Mapping):
        return checked_example(None, made)
    if not isinstance(made, (list, tuple)):
        raise TypeError(
            "make_inputs returns a sequence of inputs, such as (x,), or a mapping, not "
            f"{type(made).__name__}"
        )
    return checked_example(made, None)


class _Batch:
    """A traced batch, and the plan that needs the least."""

    def __init__(self, size: int, step: Step) -> None:
        self.size = size
        floors = [
            (each, lowest_plan(ALLOCATED, each.graph))
            for each in step.ways
            if each.graph.ops
        ]
        self.overhead = step.overhead_bytes
        self.lines = [(each, plan, in_use(each, plan)) for each, plan in floors]
        self.floor_bytes = step.peak_bytes
        if floors:
            lowest = min(max(line) for _, _, line in self.lines)
            self.floor_bytes = min(self.floor_bytes, self.overhead + lowest)

    def largest_within(self, limit: int, other: _Batch) -> int | None:
        """Return the batch up to which its plan fits, or None if that is not known.

        The bytes in use at each action lie on a line through those of the other batch
        with the same plan.
        """
        best = None
        for (_, plan, line), (theirs, _, _) in zip(
            self.lines, other.lines, strict=False
        ):
            if not _alike(theirs, self.lines[0][0]):
                return None
            found = _MOST
            for now, before in zip(line, in_use(theirs, plan), strict=True):
                slope = (now - before) / (self.size - other.size)
                left = limit - self.overhead - now
                if slope > 0:
                    found = min(found, self.size + int(left // slope))
                elif left < 0:
                    found = 0
            best = found if best is None else max(best, found)
        return best


def _alike(one: Traced, other: Traced) -> bool:
    """Return whether graphs have the same ops, between the same tensors."""
    return len(one.graph.tensors) == len(other.graph.tensors) and all(
        (a.type, a.inputs, a.outputs) == (b.type, b.inputs, b.outputs)
        for a, b in zip(one.graph.ops, other.graph.ops, strict=False)
    )


def in_use(traced: Traced, plan: Plan) -> list[int]:
    """Return the bytes in use at each action of a plan, with the scratch of ops."""
    graph, absent = traced.graph, traced.unused_states(plan)
    sizes = [align_up(tensor.nbytes) for tensor in graph.tensors]
    now, found = 0, []
    for action in plan.actions:
        scratch = 0
        if isinstance(action, Alloc) and action.tensor not in absent:
            now += sizes[action.tensor]
        elif isinstance(action, Free) and action.tensor not in absent:
            now -= sizes[action.tensor]
        elif isinstance(action, Compute):
            scratch = align_up(graph.ops[action.op].scratch_bytes)
        found.append(now + scratch)
    return found


class BatchSearch:
    """Traces batches until one fits and one sample more does not.

    Invariant: `low` samples fit (0 do by definition), and `high`, unless it is None, do
    not. Predictions choose what is traced between them; where they miss, steps that
    double bound the number of traces.

    Parameters
    ----------
    trace : callable
        Returns the step of a batch, planned without a limit.
    limit_bytes : int
        The limit.
    refused : int or None, default None
        A batch that is known not to fit.
    """

    def __init__(
        self,
        trace: Callable[[int], Step],
        limit_bytes: int,
        refused: int | None = None,
    ) -> None:
        self._trace, self._limit = trace, limit_bytes
        self._known: dict[int, _Batch] = {}
        self._low, self._step = 0, 1
        self._high = refused

    def run(self) -> int:
        """Return the largest batch that fits."""
        first = _FIRST
        if self._high is not None:
            first = max(1, self._high // 4), max(1, self._high // 2)
        for size in sorted({*first} - {self._high}):
            self._try(size)
        while self._high is None or self._high - self._low > 1:
            self._try(self._next())
        return self._low

    def _try(self, size: int) -> None:
        made = self._known[size] = _Batch(size, self._trace(size))
        if made.floor_bytes <= self._limit:
            self._low = max(self._low, size)
        else:
            self._high = size if self._high is None else min(self._high, size)

    def _next(self) -> int:
        """Return the batch to trace next: what is predicted, or what confirms it."""
        low, high = self._low, self._high
        guess = None
        if len(self._known) > 1:
            *_, before, last = self._known.values()
            guess = last.largest_within(self._limit, before)
        if guess == _MOST and high is None:
            raise ValueError(
                "the bytes of a step do not depend on the batch: make_inputs returns "
                "the same inputs for each"
            )
        if guess is not None and low < guess < (guess + 1 if high is None else high):
            return guess
        step, self._step = self._step, 2 * self._step
        if high is None:
            return low + (low if guess is None else step)
        step = min(step, (high - low) // 2)
        if guess is None:
            return (low + high) // 2
        return low + step if guess <= low else high - step
