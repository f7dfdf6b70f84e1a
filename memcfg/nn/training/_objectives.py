"""The losses and metrics of a compiled model, for each of its outputs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._cached import cached_property
from memcfg._caller import outside
from memcfg.nn._argument_checks import real
from memcfg.nn._nesting import unique
from memcfg.nn.layers import Softmax
from memcfg.nn.losses import get_loss
from memcfg.nn.metrics import get_metric, is_by_output

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from memcfg.nn._network import Network
    from memcfg.nn.layers import Layer
    from memcfg.nn.layers._layer import Shape
    from memcfg.nn.losses import Loss, Target
    from memcfg.nn.metrics import Metric

__all__ = [
    "Gauge",
    "Goals",
    "Objectives",
    "Term",
    "check_goals",
    "no_loss",
    "resolve",
    "unreached",
    "warn_of_outputs",
    "warn_of_unreached",
]

_SHOWN = 4  # names in a warning


class Goals(NamedTuple):
    """The arguments of `compile` as given, with loss names resolved."""

    loss: Any
    loss_weights: Any
    metrics: Any
    weighted_metrics: Any
    updates_itself: bool = False  # whether a metric has a user's `update_state`
    reads_any: bool = False  # whether a loss is a user's, of targets of any shape
    # The shapes of a sample's targets that were given, by the output's name or index,
    # or None for the only ones.
    shapes: Mapping[str | int | None, Shape] | None = None

    @property
    def are_none(self) -> bool:
        """Whether there are neither losses nor metrics."""
        return not any(map(_flat, (self.loss, self.metrics, self.weighted_metrics)))


class Term(NamedTuple):
    """A term of the loss."""

    name: str  # in logs
    output: int
    loss: Loss
    weight: float | None


class Gauge(NamedTuple):
    """A metric of an output."""

    name: str  # in logs
    output: int
    metric: Metric
    weighted: bool


@dataclass(frozen=True)
class Objectives:
    """Losses and metrics of a network, and the targets that they need."""

    terms: tuple[Term, ...]
    gauges: tuple[Gauge, ...]
    targets: Mapping[int, Target]  # by output index, ascending
    several: bool  # whether logs list each loss separately

    @cached_property
    def value_count(self) -> int:
        """The number of values that a step of training or evaluation returns."""
        terms = len(self.terms) if self.several else 0
        return 1 + terms + sum(gauge.metric.sum_count for gauge in self.gauges)

    @property
    def names(self) -> list[str]:
        """The names of the logs, in order."""
        terms = [term.name for term in self.terms] * self.several
        return ["loss", *terms, *(gauge.name for gauge in self.gauges)]

    def direction(self, name: str) -> str | None:
        """Return the direction in which a log improves, "up" or "down", or None."""
        if name == "loss" or any(name == term.name for term in self.terms):
            return "down"
        of = [gauge.metric for gauge in self.gauges if gauge.name == name]
        return of[0].direction if of else None

    def logs(self, sums: Sequence[Any], samples: int) -> dict[str, float]:
        """Return the logs by name, from the summed results of steps."""
        logs, end = {"loss": sums[0] / samples}, 1
        if self.several:
            for term in self.terms:
                logs[term.name] = sums[end] / samples
                end += 1
        for gauge in self.gauges:
            begin, end = end, end + gauge.metric.sum_count
            logs[gauge.name] = gauge.metric.result(sums[begin:end])
        return logs


def check_goals(
    loss: Any,
    loss_weights: Any,
    metrics: Any,
    weighted_metrics: Any,
    *,
    required: bool = True,
) -> Goals:
    """Check losses and metrics as far as possible without a network."""
    others = metrics or weighted_metrics or loss_weights is not None
    if not _flat(loss) and loss_weights is not None and not required:
        raise ValueError("loss_weights are weights of the losses, and there are none")
    if not _flat(loss) and required and others:
        raise no_loss()
    if any(isinstance(each, str) for each in _flat(loss_weights)):
        raise TypeError(
            f"loss_weights, the third argument, are numbers, not {loss_weights!r}: "
            "give metrics by name, metrics=[...]"
        )
    given = {"metrics": metrics, "weighted_metrics": weighted_metrics}
    for name, each in given.items():
        if each is not None and not isinstance(each, list | tuple | Mapping):
            raise TypeError(f"{name} is a list such as ['accuracy'], not {each!r}")
    flat = _flat([metrics, weighted_metrics])
    own = any(getattr(each, "updates_itself", False) for each in flat)
    loss = _mapped(loss) if _flat(loss) else None
    reads_any = any(each.reads_any for each in _flat(loss))
    return Goals(loss, loss_weights, metrics, weighted_metrics, own, reads_any)


def no_loss() -> TypeError:
    """Return the error of training or measuring without a loss."""
    return TypeError(
        "training minimises a loss, and there is none: pass loss='mse', or another, to "
        "compile"
    )


def _mapped(loss: Any) -> Any:
    if isinstance(loss, Mapping):
        return {name: _mapped(each) for name, each in loss.items()}
    if isinstance(loss, list | tuple):
        return [_mapped(each) for each in loss]
    if loss is None:
        return None
    result = get_loss(loss)
    if result.reduction in ("none", None):
        raise ValueError(
            f"the loss {result.name!r} has reduction={result.reduction!r}, but "
            "training minimises a single number: choose 'sum_over_batch_size' or 'sum'"
        )
    return result


def resolve(goals: Goals, network: Network) -> Objectives:
    """Resolve the arguments of `compile` for a network."""
    return _Resolution(goals, network).objectives()


def warn_of_outputs(objectives: Objectives, network: Network) -> None:
    """Warn if a loss does not match the activation of its output, as Keras does."""
    names = list(network.gives.names)
    for term in objectives.terms:
        tensor, name = network.outputs[term.output], names[term.output]
        kind = _activation(tensor.node.layer)
        text = ""
        if kind == "softmax" and tensor.sample_shape[-1:] == (1,):
            text = (
                f"the output {name!r} is a softmax of one unit, which is always 1: "
                "use activation='sigmoid'"
            )
        elif kind is not None and getattr(term.loss, "from_logits", False):
            text = (
                f"{type(term.loss).__name__} has from_logits=True, and the output "
                f"{name!r} is that of a {kind}: use from_logits=False, or no activation"
            )
        if text:
            warnings.warn(text, stacklevel=outside())


def unreached(
    objectives: Objectives, network: Network, frozen: Collection[str]
) -> frozenset[str]:
    """Return the names of the weights that no loss depends on."""
    ends = [network.outputs[term.output] for term in objectives.terms]
    return network.apart_from(ends) - frozenset(frozen)


def warn_of_unreached(names: Collection[str]) -> None:
    """Warn of weights that no loss depends on, as Keras does."""
    shown = ", ".join(map(repr, sorted(names)[:_SHOWN]))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    warnings.warn(
        f"no loss depends on the weights {shown}{more}: training leaves them as they "
        "are",
        stacklevel=outside(),
    )


def _activation(layer: Layer) -> str | None:
    """Return "softmax" or "sigmoid" if the layer ends with it, else None."""
    if isinstance(layer, Softmax):
        return "softmax"
    # The latter of functions such as ops.softmax.
    for attribute in ("_activation_op", "op"):
        kind = getattr(layer, attribute, None)
        if kind in ("softmax", "sigmoid"):
            return str(kind)
    return None


class _Resolution:
    """The resolution of losses and metrics for each output."""

    def __init__(self, goals: Goals, network: Network) -> None:
        self._goals = goals
        self._gives = network.gives
        self._names = list(network.gives.names)
        self._outputs = network.outputs
        self._prefixes = self._names  # of the names of metrics
        if self._gives.form is not None:  # as in Keras
            self._prefixes = unique([each.name for each in self._outputs])
        self._targets: dict[int, Target] = {}
        self._taken: dict[str, int] = {}

    def objectives(self) -> Objectives:
        terms = self._terms()
        gauges = [
            *self._gauges("metrics", weighted=False),
            *self._gauges("weighted_metrics", weighted=True),
        ]
        if len(self._outputs) > 1:
            gauges.sort(key=lambda gauge: gauge.name)
        targets = {i: self._targets[i] for i in sorted(self._targets)}
        return Objectives(tuple(terms), tuple(gauges), targets, len(terms) > 1)

    def _terms(self) -> list[Term]:
        losses = self._by_output("loss", self._goals.loss)
        weights = self._weights(losses)
        result = []
        for output, of in enumerate(losses):
            for loss, weight in zip(of, weights[output], strict=True):
                self._note(output, self._target(loss, output), loss.name)
                label = loss.name if len(of) > 1 else self._names[output]
                result.append(Term(self._name(f"{label}_loss"), output, loss, weight))
        return result

    def _target(self, loss: Loss, output: int) -> Target:
        """Return the targets of a loss: of the shape that is given, if it reads any."""
        result, shapes = loss.target(self._outputs[output]), self._goals.shapes or {}
        given = next(
            (
                shapes[key]
                for key in (self._names[output], output, None)
                if key in shapes
            ),
            result.shape,
        )
        alike = (result.shape, (*result.shape, 1)), (given, (*given, 1))
        if not loss.reads_any or {*alike[0]} & {*alike[1]}:
            return result
        return result._replace(shape=given)

    def _by_output(self, what: str, given: Any) -> list[list[Any]]:
        """Return a list of entries for each output; None stands for no entry."""
        names, count = self._names, len(self._names)
        if self._gives.form is not None:
            return [_flat(each) for each in self._gives.entries(given, what)]
        if isinstance(given, Mapping):
            unknown = [name for name in given if name not in names]
            if unknown:
                raise ValueError(
                    f"{what} has the names {', '.join(map(repr, given))}, but the "
                    f"model's outputs are {', '.join(map(repr, names))}"
                )
            return [_flat(given.get(name)) for name in names]
        if count == 1:
            return [_flat(given)]
        if not isinstance(given, list | tuple):
            return [_flat(given)] * count
        if len(given) != count:
            raise ValueError(
                f"{what} has {len(given)} entries for {count} outputs, "
                f"{', '.join(map(repr, names))}: give one for each, or a dict by name"
            )
        return [_flat(each) for each in given]

    def _weights(self, losses: Sequence[Sequence[Any]]) -> list[list[float | None]]:
        given = self._goals.loss_weights
        if given is None:
            return [[None] * len(of) for of in losses]
        nested = isinstance(given, Mapping) or len(_flat(given)) > len(given)
        if self._gives.form is not None and nested:
            entries = self._gives.entries(given, "loss_weights")
            parts = [[each] * len(of) for each, of in zip(entries, losses, strict=True)]
        elif isinstance(given, Mapping):
            unknown = [name for name in given if name not in self._names]
            if unknown:
                raise ValueError(
                    f"loss_weights names {unknown[0]!r}, but the model's outputs are "
                    f"{', '.join(map(repr, self._names))}"
                )
            parts = [[given.get(name)] * len(of) for name, of in self._zip(losses)]
        else:
            flat = list(given) if isinstance(given, list | tuple) else [given]
            count = sum(map(len, losses))
            if len(flat) == len(losses) != count:  # some output has no loss
                flat = [each for each, of in zip(flat, losses, strict=True) if of]
            if len(flat) != count:
                raise ValueError(
                    f"loss_weights has {len(flat)} entries for {count} losses"
                )
            left = iter(flat)
            parts = [[next(left) for _ in of] for of in losses]
        return [
            [None if each is None else real(each, "a loss weight") for each in of]
            for of in parts
        ]

    def _zip(self, losses: Sequence[Sequence[Any]]) -> list[tuple[str, Sequence[Any]]]:
        return list(zip(self._names, losses, strict=True))

    def _gauges(self, what: str, *, weighted: bool) -> list[Gauge]:
        given = getattr(self._goals, what)
        if not given:
            return []
        result = []
        for output, of in enumerate(self._by_output(what, given)):
            names = [each for each in of if isinstance(each, str)]
            if len(set(names)) != len(names):
                raise ValueError(f"duplicate metric in {names!r}")
            for each in of:
                tensor, target = self._outputs[output], self._targets.get(output)
                if self._goals.loss is None and is_by_output(each, tensor):
                    raise ValueError(
                        f"without a loss it is not known whether {each!r} compares "
                        "labels or one-hot targets: pass a metric, such as "
                        "SparseCategoricalAccuracy()"
                    )
                metric = get_metric(each, tensor, target)
                wanted = metric.target(tensor)
                metric.check_logged(tensor)
                known = wanted is None and target is not None
                if not known and self._goals.loss is not None:
                    self._note(output, wanted, metric.name)
                single = len(self._names) == 1
                prefix = self._prefixes[output]
                name = metric.name if single else f"{prefix}_{metric.name}"
                if weighted and name in self._taken:  # as in Keras
                    name = f"weighted_{metric.name}"
                    name = name if single else f"{prefix}_{name}"
                result.append(Gauge(self._name(name), output, metric, weighted))
        return result

    def _note(self, output: int, wanted: Target | None, who: str) -> None:
        """Record the targets that an output needs; all its readers must agree."""
        if wanted is None:
            raise ValueError(
                f"the metric {who!r} reads what a loss reads, and the output "
                f"{self._names[output]!r} has none"
            )
        before = self._targets.setdefault(output, wanted)
        if before != wanted:
            raise ValueError(
                f"{who!r} reads y of shape (None, "
                f"{', '.join(map(str, wanted.shape))}) as {wanted.dtype}, but another "
                f"loss or metric of {self._names[output]!r} reads it of shape (None, "
                f"{', '.join(map(str, before.shape))}) as {before.dtype}: choose those "
                "that read the same"
            )

    def _name(self, name: str) -> str:
        """Return a unique name for the logs; repeats are numbered, as in Keras."""
        number = self._taken.get(name, 0)
        self._taken[name] = number + 1
        return f"{name}_{number}" if number else name


def _flat(given: Any) -> list[Any]:
    """Flatten the entries of lists and dicts; None stands for no entry."""
    if isinstance(given, Mapping):
        given = list(given.values())
    if not isinstance(given, list | tuple):
        return [] if given is None else [given]
    return [leaf for each in given for leaf in _flat(each)]
