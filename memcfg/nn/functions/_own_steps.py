"""Steps of one's own: `Model.train_step` and its relatives as planned programs."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import ref

import numpy as np

from memcfg.errors import InfeasiblePlanError
from memcfg.nn._nested import symbolic
from memcfg.nn.functions._derivatives import derivatives
from memcfg.nn.functions._function import Function
from memcfg.nn.functions._function_state import FunctionState
from memcfg.nn.functions._measures import MetricResult
from memcfg.nn.functions._recorder import recorded
from memcfg.nn.layers._layer import (
    SymbolicTensor,
    Variable,
    filled_in,
    pattern,
)
from memcfg.nn.metrics import Mean
from memcfg.nn.training._objectives import resolve, warn_of_unreached
from memcfg.plan.search._watch import planning_clock
from memcfg.units import exact

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._nesting import Structure
    from memcfg.nn.inputs._element_source import Elements
    from memcfg.nn.metrics import Metric
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._compile_config import CompileConfig
    from memcfg.nn.training._objectives import Objectives
    from memcfg.plan import Plan
    from memcfg.runtime import MemoryReport
    from memcfg.timeline import MemoryTimeline

__all__ = ["OwnSteps"]

_PROGRAMS = 16  # of a model that are kept
_METHODS = {"train": "train_step", "evaluate": "test_step", "predict": "predict_step"}
_ARRAYS = (np.ndarray, np.generic)
_SECONDS = 5.0  # of planning parts of a batch that does not fit


class LatestLogs:
    """What the last step of an epoch returned: metrics are of the whole epoch."""

    def __init__(self) -> None:
        self._logs: dict[str, float] = {}

    def add(self, samples: int, values: dict[str, float]) -> None:
        """Replace the numbers by those of a later step."""
        del samples
        self._logs = values

    def logs(self) -> dict[str, float]:
        """Return the numbers by name; empty before the first step."""
        return self._logs


class OwnPredictions:
    """What `predict_step` returned for each batch."""

    def __init__(self) -> None:
        self._batches: list[list[Any]] = []

    def next_rows(self, size: int) -> list[Any]:
        """Return the list that receives the result of the next batch."""
        del size
        self._batches.append([])
        return self._batches[-1]

    def joined(self) -> Any:
        """Return the results of all batches, one after the other."""
        parts: list[list[Any]] = []
        for (batch,) in self._batches:
            parts.append([])
            structure = pattern(batch, parts[-1], _ARRAYS)
        arrays = [np.concatenate(each) for each in zip(*parts, strict=True)]
        return filled_in(structure, arrays)


class Outcome(NamedTuple):
    """What a step predicts, in the place of a network."""

    outputs: Sequence[SymbolicTensor]
    gives: Structure


class _StepFunction(Function):
    """A function of the kind of a step and its data."""

    def _label(self, args: Sequence[Any], arrays: Sequence[Any]) -> str:
        size = len(arrays[0]) if arrays and arrays[0].ndim else 1
        samples = f"{size} sample{'s' * (size > 1)}"
        return f"{_METHODS[args[0]]} of {samples}, trace {self._number}"


class OwnSteps:
    """The programs of a model whose class defines steps; stands for a `Session`."""

    def __init__(
        self, model: Any, compiled: CompileConfig, before: OwnSteps | None = None
    ) -> None:
        self._before = before  # holds the state of optimizers until it is taken over
        self._model = ref(model)
        self._last: tuple[str, int] | None = None  # the last step
        self._shapes: dict[str, Any] = {}  # of the last data, by the kind of step
        self._compiled = compiled
        self.loss_tracker = Mean(name="loss")
        self._resolved: Objectives | None = None
        self._gives: Structure | None = None  # with it
        self._tracks = False  # whether a default step has used it

        def step(kind: str, data: Any) -> Any:
            return self._traced(kind, data)

        step.__name__ = model.name
        settings = compiled.policy, compiled.times, _PROGRAMS
        state = FunctionState(model.name, *settings, compiled.device, model)
        policy, times, _ = settings
        self._function = _StepFunction(
            step, memory=policy, times=times, warns=False, state=state
        )

    @property
    def objectives(self) -> Objectives | None:
        """The losses and metrics of `compile`; None without any, or before shapes."""
        network = self._owner()._network
        if self._resolved is None and network is not None:
            self._settle(network)
        return self._resolved

    def _settle(self, outcome: Any) -> None:
        """Resolve the losses and metrics of `compile` for outputs, once."""
        if self._resolved is None and not self._compiled.goals.are_none:
            self._resolved = resolve(self._compiled.goals, outcome)
            self._gives = outcome.gives

    @property
    def executor(self) -> Any:
        """The executor of the programs."""
        return self._function._owner().executor

    def _owner(self) -> Any:
        model = self._model()
        assert model is not None  # it owns this object
        return model

    def _traced(self, kind: str, data: Any) -> Any:
        """Return what a step returns, and the losses that it has gradients of."""
        model, name = self._owner(), _METHODS[kind]
        made = getattr(model, name)(data)
        if kind == "predict":
            leaves: list[SymbolicTensor] = []
            pattern(made, leaves)
            if not leaves or not all(each.shape for each in leaves):
                raise ValueError(
                    f"{type(model).__name__}.{name} must return tensors with a row a "
                    f"sample, got {made!r}"
                )
            return made, []
        if not isinstance(made, dict) or not all(isinstance(key, str) for key in made):
            raise TypeError(
                f"{type(model).__name__}.{name} must return a dict of numbers by name, "
                f"got {made!r}"
            )
        for key, value in made.items():
            known = SymbolicTensor | Variable | MetricResult | float | int
            if not isinstance(value, known):
                raise TypeError(
                    f"{type(model).__name__}.{name} must return numbers, got {key!r}: "
                    f"{value!r}"
                )
            if isinstance(value, SymbolicTensor | Variable) and value.shape:
                raise ValueError(
                    f"{type(model).__name__}.{name} must return scalars, got {key!r} "
                    f"of shape {value.shape}"
                )
        return made, list(recorded(name).losses)

    def compiled_metrics(self) -> list[Metric]:
        """Return the mean loss, if there are losses, and the metrics of `compile`."""
        tracks = self._tracks or self._compiled.goals.loss is not None
        gauges = () if self.objectives is None else self.objectives.gauges
        means = [self.loss_tracker] if tracks else []
        return [*means, *(gauge.metric for gauge in gauges)]

    def metric_names(self) -> dict[int, str]:
        """Return the names of the metrics of `compile` in logs, by their ids."""
        gauges = () if self.objectives is None else self.objectives.gauges
        return {id(gauge.metric): gauge.name for gauge in gauges}

    def direction(self, name: str) -> str | None:
        """Return the direction in which a log improves, "up" or "down", or None."""
        model = self._owner()
        if "loss" in name:
            return "down"
        names = self.metric_names()
        found = [m for m in model.metrics if names.get(id(m), m.name) == name]
        return found[0].direction if found else None

    # What a trainer asks of a session

    def totals(self) -> LatestLogs:
        """Return what collects the numbers of an epoch; metrics begin anew."""
        for metric in self._owner().metrics:
            metric.reset_state()
        return LatestLogs()

    def step(
        self,
        kind: str,
        batch: Elements,
        optimizer: Optimizer | None = None,
        *,
        guard: bool = False,
        results: list[Any] | None = None,
    ) -> tuple[bool, Any]:
        """Run a step on a batch; return whether no guard stopped it, and the numbers.

        The guard stops at the first loss that is not finite.
        """
        del optimizer  # the step has it
        try:
            finished, (made, losses) = self._function._run(
                (kind, batch.data), {}, guard=guard
            )
        except InfeasiblePlanError as error:
            raise self._with_ways_out(error, kind, batch) from None
        self._note(kind, batch.data)
        self._last = kind, batch.size
        if results is not None:
            results.append(made)
            return True, ()
        if not finished:
            values = map(float, losses)
            return False, (next((v for v in values if not isfinite(v)), np.nan),)
        return True, {name: float(value) for name, value in made.items()}

    def _with_ways_out(
        self, error: InfeasiblePlanError, kind: str, batch: Elements
    ) -> InfeasiblePlanError:
        """Return a refusal that says which part of the batch would fit.

        Parts are halves of halves, which are planned for some seconds.
        """
        what = f"{_METHODS[kind]} runs on whole batches"
        network = self._owner()._network
        if network is not None and network.measured is not None:
            layer, metric = network.measured
            what += f", since layer {layer!r} updates the metric {metric!r}"
        leaves: list[Any] = []
        structure = pattern(batch.data, leaves, _ARRAYS)
        size, end = batch.size, planning_clock() + _SECONDS
        refused, fits = None, False
        while size % 2 == 0 and not fits and planning_clock() < end:
            size //= 2
            part = filled_in(
                structure, [each[:size] if np.ndim(each) else each for each in leaves]
            )
            try:
                self._function.plan(kind, part)
                fits = True
            except InfeasiblePlanError as other:
                refused = other
        if fits and kind == "train":
            steps = batch.size // size
            return error.with_hint(
                f"{what}, and batch_size={size} fits: with gradient_accumulation_steps="
                f"{steps} in the optimizer, {steps} steps make the update of this "
                "batch if the loss is a mean over samples that do not depend on each "
                "other."
            )
        if fits:
            return error.with_hint(f"{what}, and batch_size={size} fits.")
        smaller = ""
        if refused is not None:
            needed = exact(refused.smallest_limit_bytes)
            smaller = f"; batch_size={size} needs a limit of {needed}"
        if batch.size == 1:
            return error
        return error.with_hint(f"{what}: choose a smaller batch_size{smaller}.")

    def is_finite(self) -> bool:
        """Return whether all weights are finite."""
        weights = self._owner().weights
        return all(np.isfinite(weight.numpy()).all() for weight in weights)

    def fallbacks_in_force(self) -> list[Any]:
        """Return an empty list: steps run as they are planned, or not at all."""
        return []

    def leave(self, nbytes: int) -> bool:
        """Return False: programs do not make room for a loader."""
        del nbytes
        return False

    # What a user asks of a model

    def _note(self, kind: str, data: Any) -> None:
        if kind not in self._shapes:
            leaves: list[Any] = []
            structure = pattern(data, leaves, _ARRAYS)
            self._shapes[kind] = structure, [(x.shape[1:], x.dtype) for x in leaves]

    def _sample(self, kind: str, size: int) -> Any:
        if kind not in self._shapes:
            raise RuntimeError(
                f"the data of {_METHODS[kind]} is not known yet: call fit, evaluate or "
                "predict first, or the method for one batch"
            )
        structure, shapes = self._shapes[kind]
        return filled_in(structure, [np.zeros((size, *s), d) for s, d in shapes])

    def plan(self, kind: str, size: int, limit_bytes: int | None) -> Plan:
        """Plan a step for a batch size; takes no memory."""
        return self._function.plan(kind, self._sample(kind, size), limit=limit_bytes)

    def graph(self, kind: str, size: int) -> Any:
        """Return the graph of a step."""
        return self._function.graph(kind, self._sample(kind, size))

    def memory_report(self, kind: str, size: int, *, verify: bool) -> MemoryReport:
        """Return what a step takes."""
        sample = self._sample(kind, size)
        return self._function.memory_report(kind, sample, verify=verify)

    def forget_traces(self) -> None:
        """Trace the steps again when they run."""
        self._function.forget_traces()

    def close(self) -> None:
        """Free the memory; the values of weights are kept."""
        self._function.close()

    def latest_plan(self) -> Plan:
        """Return the plan of the step of the last batch; RuntimeError before one."""
        return self.plan(*self._latest(), None)

    def latest_report(self, *, verify: bool) -> MemoryReport:
        """Return what the step of the last batch takes."""
        return self.memory_report(*self._latest(), verify=verify)

    def latest_timeline(self, *, verify: bool) -> MemoryTimeline:
        """Return which tensor of the step of the last batch has which bytes when."""
        sample = self._sample(*self._latest())
        return self._function.memory_timeline(self._latest()[0], sample, verify=verify)

    def _latest(self) -> tuple[str, int]:
        if self._last is None:
            raise RuntimeError("no step has run yet: call fit, evaluate or predict")
        return self._last

    def predictions(self) -> OwnPredictions:
        """Return what collects the results of `predict_step`."""
        return OwnPredictions()

    # The default steps

    def track(self, loss: Any, x: Any) -> None:
        """Add the loss of a batch to the mean loss, weighted by its samples."""
        self._tracks = True
        leaves: list[Any] = []
        pattern(x, leaves)
        size = leaves[0].shape[0] if leaves else 1
        self.loss_tracker.update_state(loss, np.float32(size))

    def descend(self, loss: Any) -> None:
        """Update the trainable weights by the gradients of a loss."""
        model = self._owner()
        weights = model.trainable_weights
        slopes = derivatives(loss, weights, f"{type(model).__name__}.train_step")
        apart = [
            each.path for each, s in zip(weights, slopes, strict=True) if s is None
        ]
        if apart:
            if len(apart) == len(weights):
                raise ValueError(
                    "the loss depends on no weight, so that none is trained: override "
                    "train_step"
                )
            warn_of_unreached(apart)
        model.optimizer.apply(slopes, weights)

    def loss(self, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Return the loss of `compile` and the losses of layers."""
        objectives = self._objectives_of(y_pred)
        terms = list(self._owner().losses)
        if objectives is not None:
            ys, preds, weights = self._by_output(y, y_pred, sample_weight)
            for term in objectives.terms:
                out = term.output
                value = term.loss(ys[out], preds[out], weights[out])
                terms.append(value if term.weight is None else value * term.weight)
        if not terms:
            raise ValueError(
                "there is no loss: pass one to compile, override compute_loss, or use "
                "add_loss in a layer"
            )
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def measure(self, y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Update the metrics of `compile`."""
        objectives = self._objectives_of(y_pred)
        if objectives is None or not objectives.gauges:
            return
        ys, preds, weights = self._by_output(y, y_pred, sample_weight)
        for gauge in objectives.gauges:
            out = gauge.output
            weight = weights[out] if gauge.weighted else None
            gauge.metric.update_state(ys[out], preds[out], weight)

    def _objectives_of(self, y_pred: Any) -> Objectives | None:
        """Return the losses and metrics; a step may predict without a `call`."""
        if self.objectives is None:
            self._settle(Outcome(*symbolic(y_pred, "y_pred")))
        return self._resolved

    def _by_output(self, y: Any, y_pred: Any, sample_weight: Any) -> Any:
        """Return targets, outputs and weights as lists, one for each output."""
        gives = self._gives
        assert gives is not None  # set with the objectives
        preds = gives.unpack(y_pred, "y_pred", "outputs")
        ys = gives.unpack(y, "y", "outputs")
        if isinstance(sample_weight, list | tuple | dict):
            return ys, preds, gives.unpack(sample_weight, "sample_weight", "outputs")
        return ys, preds, [sample_weight] * len(preds)
