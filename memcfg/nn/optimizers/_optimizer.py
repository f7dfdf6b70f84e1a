"""The base class of the optimizers.

An optimizer appends ops to the graph of a step: gradient accumulation, clipping, an
update op for each weight, moving averages. Its state follows the weights in the arena.
The learning rate is an input of the step, so that it can change without a new plan.

See docs/decisions/0034-accumulation-in-one-program.md.
"""

from __future__ import annotations

import inspect
import itertools
import re
import weakref
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._core import Counter
from memcfg.errors import WeightsError
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, automatic_name, check_name, constant
from memcfg.nn.exchange._configs import Configured
from memcfg.nn.optimizers._own_updates import (
    HeldVariable,
    add_state,
    current_iterations,
    declared,
    trace_update,
)
from memcfg.nn.optimizers.schedules import LearningRateSchedule, deserialize, serialize
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Self

    from memcfg.graph import Builder
    from memcfg.nn._network import Weight
    from memcfg.nn.layers._layer import Variable

__all__ = ["Optimizer", "Slot", "Updates", "common"]

_DEFAULTS: dict[str, Any] = {
    "weight_decay": None,
    "clipnorm": None,
    "clipvalue": None,
    "global_clipnorm": None,
    "use_ema": False,
    "ema_momentum": 0.99,
    "ema_overwrite_frequency": None,
    "gradient_accumulation_steps": None,
}


def common(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a constructor that all optimizers share."""
    names = ("learning_rate", *_DEFAULTS, "loss_scale_factor", "name")
    return {name: given[name] for name in names}


class Rate(float):
    """A learning rate with a reference to its optimizer, for Keras's `assign`."""

    _optimizer: Optimizer

    def assign(self, value: float) -> None:
        """Set the optimizer's learning rate."""
        self._optimizer.learning_rate = value

    @property
    def value(self) -> np.float32:
        """The rate as a NumPy scalar."""
        return np.float32(self)

    def numpy(self) -> np.float32:
        """Return the rate as a NumPy scalar."""
        return np.float32(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


class Slot(NamedTuple):
    """A state tensor of an optimizer, without its value."""

    name: str  # in every graph
    key: str  # in files
    shape: tuple[int, ...]
    dtype: str
    value: float  # initial value of all elements
    weight: str = ""  # name of the weight that it belongs to

    def first_value(self) -> np.ndarray:
        """Return the initial value."""
        if self.value:
            return np.full(self.shape, self.value, self.dtype)
        return np.zeros(self.shape, self.dtype)

    @property
    def draws_in_place(self) -> bool:
        """Whether the initial value can be written without an array of its size."""
        return True

    def draw_into(self, values: np.ndarray) -> None:
        """Write the initial value into an array of the slot's shape and dtype."""
        values[...] = self.value


@dataclass(frozen=True)
class Updates:
    """Appends update ops with the settings and scalar inputs that they need."""

    builder: Builder
    optimizer: Optimizer
    state: Mapping[str, int]
    rate: int
    step: Callable[[], int]
    steps: int | None  # steps between two updates; None: every step updates
    divisor: int  # the number of gradients in a sum that must still be averaged

    def apply(
        self,
        kind: str,
        name: str,
        inputs: Sequence[int],
        more: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> tuple[int, ...]:
        """Append an update op; its formula's scalars and attributes are filled in."""
        if self.steps is not None:
            kind += "_accumulated"
            settings = {"steps": self.steps, "divisor": self.divisor, **settings}
        formula = op_type(kind).formula
        assert formula is not None
        operands = list(inputs)
        for each in formula.operands[len(operands) :]:
            if each == "step":
                operands.append(self.step())
            else:
                operands.append(self.rate if each == "rate" else (more or {})[each])
        for each in formula.defaults:
            value = getattr(self.optimizer, each, None)
            if each not in settings and value is not None:
                settings[each] = value
        settings = {key: settings[key] for key in settings if key in formula.defaults}
        return self.builder.apply(kind, operands, settings, name=name, phase="update")

    def backward(self, kind: str, name: str, inputs: Sequence[int], **a: Any) -> int:
        """Append an op on gradients and return its output."""
        return self.builder.apply(kind, inputs, a, name=name, phase="backward")[0]


class Optimizer(FixedAttributes, Configured):
    """Base class of the optimizers.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule
        The learning rate, zero or more, or a schedule that computes it for each step.
    weight_decay : float, optional
        Decoupled weight decay: before each update a weight is reduced by ``weight *
        weight_decay * learning_rate``.
    clipnorm : float, optional
        The largest norm of each weight's gradient; larger gradients are scaled down.
    clipvalue : float, optional
        The largest absolute value of a gradient's elements.
    global_clipnorm : float, optional
        The largest norm of all gradients together. At most one of the three clipping
        arguments can be set.
    use_ema : bool, default False
        Whether to keep a moving average of each weight, which replaces the weight at
        the end of `Model.fit`.
    ema_momentum : float, default 0.99
        The factor of the old average at each update, in ``[0, 1]``.
    ema_overwrite_frequency : int, optional
        Also replace the weights by their averages every so many updates.
    loss_scale_factor : None, optional
        Not supported: gradients are float32 and need no scaling.
    gradient_accumulation_steps : int, optional
        Number of steps, 2 or more, whose mean gradient makes one update. `iterations`
        counts updates; schedules receive the number of steps.
    name : str, optional
        The name. None: the class's name with a number.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    Notes
    -----
    The state of an optimizer (`slots`, accumulated gradients and moving averages of
    weights) is stored in the device's memory, after the weights, and is part of every
    plan and report.
    """

    __slots__ = (
        "_excluded",
        "_iterations",
        "_learning_rate",
        "_owner",
        "_scheduled",  # the schedule, or what computes a user's without programs
        "_updates",
        "clipnorm",
        "clipvalue",
        "ema_momentum",
        "ema_overwrite_frequency",
        "global_clipnorm",
        "gradient_accumulation_steps",
        "name",
        "use_ema",
        "weight_decay",
    )

    _advice = "set learning_rate between steps, or make another optimizer"

    kind = "optimizer"
    loss_scale_factor = constant(
        "loss_scale_factor", None, "gradients are float32, and need no scaling"
    )

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule,
        weight_decay: float | None = None,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
    ) -> None:
        self.name = automatic_name(self.kind) if name is None else check_name(name)
        self.learning_rate = learning_rate
        self.weight_decay = (
            None if weight_decay is None else nonnegative(weight_decay, "weight_decay")
        )
        self.clipnorm = _limit(clipnorm, "clipnorm")
        self.clipvalue = _limit(clipvalue, "clipvalue")
        self.global_clipnorm = _limit(global_clipnorm, "global_clipnorm")
        limits = (self.clipnorm, self.clipvalue, self.global_clipnorm)
        if sum(limit is not None for limit in limits) > 1:
            raise ValueError(
                "at most one of clipnorm, clipvalue and global_clipnorm can be set, "
                f"got clipnorm={clipnorm}, clipvalue={clipvalue}, "
                f"global_clipnorm={global_clipnorm}"
            )
        if loss_scale_factor is not None:
            raise ValueError(
                f"loss_scale_factor={loss_scale_factor!r} is not supported: gradients "
                "are float32 and need no scaling"
            )
        self.use_ema = bool(use_ema)
        self.ema_momentum = real(ema_momentum, "ema_momentum")
        if not 0 <= self.ema_momentum <= 1:
            raise ValueError(f"ema_momentum must be in [0, 1], got {ema_momentum!r}")
        self.ema_overwrite_frequency = _count(
            ema_overwrite_frequency, "ema_overwrite_frequency", 1
        )
        self.gradient_accumulation_steps = _count(
            gradient_accumulation_steps, "gradient_accumulation_steps", 2
        )
        self._excluded: tuple[str, ...] = ()
        self._iterations = Counter()
        self._owner: weakref.ref[Any] | None = None
        self._updates: Any = None  # what updates weights outside of functions

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step; can be set between steps.

        Set it to a number or a `LearningRateSchedule`. As in Keras, a number cannot
        replace a schedule; set another schedule instead.

        Raises
        ------
        TypeError
            When set to anything else, or to a number while there is a schedule.
        ValueError
            When set to a number that is negative or not finite in float32, or when read
            while the schedule returns such a number.
        """
        rate = self._learning_rate
        if isinstance(rate, LearningRateSchedule):
            return nonnegative(
                self._scheduled(self._iterations.value), f"what {rate!r} returns"
            )
        result = Rate(rate)
        result._optimizer = self
        return result

    @learning_rate.setter
    def learning_rate(self, value: float | LearningRateSchedule) -> None:
        if isinstance(value, LearningRateSchedule):
            self._learning_rate: float | LearningRateSchedule = value
            here = type(value).__module__.startswith("memcfg.nn.")
            self._scheduled = value if here else value.of_number(value)
            return
        given: Any = value
        if callable(given):
            raise TypeError(
                f"learning_rate must be a number or a schedule, got {value!r}: to "
                "compute it from the step, subclass "
                "optimizers.schedules.LearningRateSchedule"
            )
        if isinstance(getattr(self, "_learning_rate", None), LearningRateSchedule):
            raise TypeError(
                "a number cannot replace the schedule of the learning rate: set "
                "another schedule, or make an optimizer with a number"
            )
        self._learning_rate = nonnegative(value, "learning_rate")

    rates: Any = learning_rate  # what a step reads: one, or those of several

    def __init_subclass__(cls, **options: Any) -> None:
        """Let steps read the learning rate that a subclass computes, in one call."""
        super().__init_subclass__(**options)
        if "learning_rate" in vars(cls) and "rates" not in vars(cls):
            cls.rates = vars(cls)["learning_rate"]

    def rates_after(self, steps: int) -> Any:
        """Return what the step reads of learning rates that follows so many others.

        Parameters
        ----------
        steps : int
            The number of steps that one program runs before.

        Returns
        -------
        float or numpy.ndarray
            As `rates`.
        """
        now = self._iterations
        self._iterations = Counter(now.value + steps)
        try:
            return self.rates
        finally:
            self._iterations = now

    @property
    def rate_shape(self) -> tuple[int, ...]:
        """The shape of what a step reads of learning rates."""
        return ()

    @property
    def iterations(self) -> int:
        """The number of updates made so far; in `update_step`, a tensor of float32."""
        traced: Any = current_iterations()
        if traced is not None:
            return traced  # type: ignore[no-any-return]
        return self._iterations.value // (self.gradient_accumulation_steps or 1)

    def exclude_from_weight_decay(
        self,
        var_list: Sequence[Variable] | None = None,
        var_names: Sequence[str] | None = None,
    ) -> None:
        """Exclude some weights from weight decay; call it before `Model.compile`.

        Parameters
        ----------
        var_list : sequence of Variable, optional
            The weights, as of `Layer.weights`.
        var_names : sequence of str, optional
            Regular expressions. Weights whose name contains a match, such as
            ``"dense/bias"``, do not decay.

        Raises
        ------
        TypeError
            If `var_list` has anything else than weights, or `var_names` is a string.
        RuntimeError
            If the optimizer already belongs to a model.
        """
        paths = [getattr(each, "path", None) for each in var_list or ()]
        if None in paths or isinstance(var_names, str):
            raise TypeError(
                "pass weights in var_list, or their names, as in var_names=['bias']"
            )
        if self._owner is not None:
            raise RuntimeError("weights must be excluded before the model is compiled")
        names = [f"(^|/){re.escape(str(path))}$" for path in paths]
        names += var_names or ()
        self._excluded = tuple(re.compile(each).pattern for each in names)

    # State

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return ()

    def _slots(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a weight's state tensors by slot."""
        if self.updates_itself:
            made = declared(self, HeldVariable("weight", shape))
            return {each.path: each.shape for each in made}
        return dict.fromkeys(self.slots, shape)

    # Of users' own classes, with Keras's names

    @property
    def updates_itself(self) -> bool:
        """Whether the class has an `update_step` of the user's."""
        return type(self).update_step is not Optimizer.update_step

    built = False  # `build` is called for each weight

    def build(self, variables: Sequence[Any]) -> None:
        """Make the state of weights; a subclass with an `update_step` overrides this.

        Parameters
        ----------
        variables : sequence of Variable
            The weights. `build` is called for one at a time.
        """

    def add_variable_from_reference(
        self,
        reference_variable: Any,
        name: str | None = None,
        initializer: Any = "zeros",
    ) -> Any:
        """Return a state tensor of the shape of a weight, in `build`.

        Parameters
        ----------
        reference_variable : Variable
            The weight.
        name : str, optional
            The name of the state.
        initializer : {"zeros", "ones"}, default "zeros"
            The first value.

        Returns
        -------
        Variable
            The state.
        """
        return add_state(reference_variable, name, initializer)

    def add_optimizer_variables(
        self, trainable_variables: Sequence[Any], name: Any, initializer: Any = "zeros"
    ) -> Any:
        """Return state tensors of weights, in `build`.

        Parameters
        ----------
        trainable_variables : sequence of Variable
            The weights.
        name : str or sequence of str
            The name of the state, or the names of several.
        initializer : {"zeros", "ones"}, or sequence of them, default "zeros"
            The first values.

        Returns
        -------
        list of Variable, or tuple of such lists
            The states, for each name.
        """
        names = [name] if isinstance(name, str) else list(name)
        several = not isinstance(initializer, str)
        firsts = initializer if several else [initializer] * len(names)
        made = tuple(
            [add_state(each, label, first) for each in trainable_variables]
            for label, first in zip(names, firsts, strict=True)
        )
        return made[0] if isinstance(name, str) else made

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update a weight; a subclass overrides this to be an optimizer of its own.

        Parameters
        ----------
        gradient : SymbolicTensor
            The gradient of the weight.
        variable : Variable
            The weight, which `assign`, `assign_add` and `assign_sub` change.
        learning_rate : SymbolicTensor
            The learning rate of this step.
        """
        raise NotImplementedError(
            f"{type(self).__name__} must define update_step(gradient, variable, "
            "learning_rate)"
        )

    def _get_variable_index(self, variable: Any) -> int:
        """Return the place of a weight among those of `build`."""
        del variable
        return 0

    def assign(self, variable: Any, value: Any) -> None:
        """Replace the value of a weight or a state, in `update_step`.

        Parameters
        ----------
        variable : Variable
            The weight or the state.
        value : SymbolicTensor
            The new value.
        """
        variable.assign(value)

    def assign_add(self, variable: Any, value: Any) -> None:
        """Add to a weight or a state, in `update_step`.

        Parameters
        ----------
        variable : Variable
            The weight or the state.
        value : SymbolicTensor
            What is added.
        """
        variable.assign_add(value)

    def assign_sub(self, variable: Any, value: Any) -> None:
        """Subtract from a weight or a state, in `update_step`.

        Parameters
        ----------
        variable : Variable
            The weight or the state.
        value : SymbolicTensor
            What is subtracted.
        """
        variable.assign_sub(value)

    def _slots_of(self, weight: Weight) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a weight's state tensors, which its name may decide."""
        return self._slots(weight.shape)

    def _first(self, slot: str) -> float:
        """Return the initial value of a slot's elements."""
        if self.updates_itself:
            made = declared(self, HeldVariable("weight", ()))
            return next((each.first for each in made if each.path == slot), 0.0)
        return 0.0

    @property
    def _shared(self) -> dict[str, float]:
        """Initial values of the state scalars that all weights share, by name."""
        return {}

    def state(
        self, weights: Sequence[Weight], *, accumulates: bool = False
    ) -> list[Slot]:
        """List the state tensors of weights.

        Parameters
        ----------
        weights : sequence of Weight
            The trainable weights.
        accumulates : bool, default False
            Whether weights have a gradient accumulator in any case, since a step may
            run in parts.

        Returns
        -------
        list of Slot
            The tensors, in the order in which they are stored.
        """
        result = [
            Slot(f"{self.kind}/{name}", name, (), "float32", value)
            for name, value in self._shared.items()
        ]
        for weight in weights:
            kept = self._kept(weight, accumulates=accumulates)
            for name, shape in (self._slots_of(weight) | kept).items():
                label, key = f"{self.kind}/{weight.name}/{name}", f"{weight.key}/{name}"
                value = self._first(name)
                result.append(Slot(label, key, shape, weight.dtype, value, weight.name))
        return result

    def _kept(self, weight: Weight, *, accumulates: bool) -> dict[str, tuple[int, ...]]:
        """Return the shapes of a weight's gradient accumulator and average, if kept."""
        kept = {}
        if accumulates or self.gradient_accumulation_steps is not None:
            kept["gradient_accumulator"] = weight.shape
        if accumulates and self.gradient_accumulation_steps is not None:
            kept["part_accumulator"] = weight.shape
        if self.use_ema:
            kept["average"] = weight.shape
        return kept

    def why_whole(self) -> str:
        """Say what of an update needs more than the elements at one place.

        Returns
        -------
        str
            A clause for an error, or nothing if each element is updated by itself.
        """
        if self.clipnorm is not None or self.global_clipnorm is not None:
            name = "global_clipnorm" if self.clipnorm is None else "clipnorm"
            return f"{name} needs the norm of whole gradients"
        if type(self)._update is not Optimizer._update or self.updates_itself:
            return f"{type(self).__name__} computes with whole weights"
        return ""

    # Tracing

    def trace(
        self,
        builder: Builder,
        weights: Mapping[str, int],
        gradients: Mapping[str, int],
        state: Mapping[str, int],
        rate: int,
        step: Callable[[], int],
        parts: int = 1,
    ) -> list[int]:
        """Append the updates of a step.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        weights, gradients : mapping of str to int
            Ids of the weights and of their gradients, by the weights' names.
        state : mapping of str to int
            Ids of the state tensors, by the names in `Slot`.
        rate : int
            Id of the learning rate.
        step : callable
            Returns the id of the step number.
        parts : int, default 1
            The number of programs that run one after the other as one step, each with
            the gradients of its share of the loss. Their sum is the step's gradient.

        Returns
        -------
        list of int
            Ids of the new values of weights and state.
        """
        new: list[int] = []
        applied = dict(gradients)
        divisor = self.gradient_accumulation_steps or 1
        steps = divisor * parts if divisor * parts > 1 else None
        # Ops decide by the step number whether to accumulate or to update, so that all
        # steps run the same program. The parts of a step are summed apart from its
        # window, which a step that fails in one of them leaves as it was.
        sums: list[tuple[str, str, dict[str, int]]] = []
        if divisor > 1 and parts > 1:
            sums.append(("part_accumulator", "accumulate", {"steps": parts}))
            a = {"steps": divisor * parts, "parts": parts}
            sums.append(("gradient_accumulator", "accumulate_parts", a))
        elif steps is not None:
            sums.append(("gradient_accumulator", "accumulate", {"steps": steps}))
        for (slot, kind, a), name in itertools.product(sums, weights):
            (applied[name],) = builder.apply(
                kind,
                (state[f"{self.kind}/{name}/{slot}"], applied[name], step()),
                a,
                name=f"{self.kind}/{name}/{kind}",
                phase="update",
            )
            new.append(applied[name])
        updates = Updates(builder, self, state, rate, step, steps, divisor)
        updates, applied = self._clip(updates, applied)
        shared = self._update_shared(updates)
        new += shared.values()
        for name, weight in weights.items():
            operands = (weight, applied[name])
            made = self._update(updates, name, operands, shared)
            new += self._averaged(updates, name, made) if self.use_ema else made
        return new

    def _clip(
        self, updates: Updates, gradients: Mapping[str, int]
    ) -> tuple[Updates, dict[str, int]]:
        """Append the clipping of all gradients, which also averages them."""
        names = [f"{self.kind}/{name}" for name in gradients]
        values, divisor = list(gradients.values()), updates.divisor
        if self.clipvalue is not None:
            a: dict[str, Any] = {"limit": self.clipvalue, "divisor": divisor}
            made = [
                updates.backward("clip_by_value", f"{name}/clipped", [g], **a)
                for name, g in zip(names, values, strict=True)
            ]
        elif self.clipnorm is not None or self.global_clipnorm is not None:
            if self.clipnorm is not None:
                norms = [
                    updates.backward("norm", f"{name}/norm", [g])
                    for name, g in zip(names, values, strict=True)
                ]
            else:
                whole = updates.backward("norm", f"{self.kind}/norm", values)
                norms = [whole] * len(values)
            a = {"norm": self.clipnorm or self.global_clipnorm, "divisor": divisor}
            made = [
                updates.backward("clip_by_norm", f"{name}/clipped", pair, **a)
                for name, *pair in zip(names, values, norms, strict=True)
            ]
        elif divisor > 1 and self._needs_means:
            made = [
                updates.backward("mean_gradient", f"{name}/mean", [g], divisor=divisor)
                for name, g in zip(names, values, strict=True)
            ]
        else:
            return updates, dict(gradients)
        return replace(updates, divisor=1), dict(zip(gradients, made, strict=True))

    _needs_means = False  # whether updates need mean gradients and not their sums

    def _update_shared(self, updates: Updates) -> dict[str, int]:
        """Append the updates of the shared state; return the new values by name."""
        del updates
        return {}

    def _decay(self, name: str) -> dict[str, float]:
        """Return a weight decay of 0 for an excluded weight, else nothing."""
        excluded = any(re.search(each, name) for each in self._excluded)
        return {"weight_decay": 0.0} if excluded else {}

    def _update(
        self,
        updates: Updates,
        name: str,
        operands: tuple[int, int],
        shared: Mapping[str, int],
    ) -> list[int]:
        """Append the update of a weight; return the new values of it and its slots."""
        if self.updates_itself:
            return trace_update(self, updates, name, operands)
        label = f"{self.kind}/{name}"
        slots = [updates.state[f"{label}/{slot}"] for slot in self.slots]
        inputs = [*operands, *slots]
        decay = self._decay(name)
        return list(updates.apply(self._op, label, inputs, shared, **decay))

    @property
    def _op(self) -> str:
        """The op type of a weight's update."""
        return self.kind

    def _averaged(self, updates: Updates, name: str, made: list[int]) -> list[int]:
        """Append the update of a weight's average, which may replace the weight."""
        weight, *slots = made
        label = f"{self.kind}/{name}/average"
        average, step = updates.state[label], updates.step()
        steps = self.gradient_accumulation_steps or 1
        a: dict[str, Any] = {"momentum": self.ema_momentum, "steps": steps}
        if (parts := (updates.steps or steps) // steps) > 1:
            a["parts"] = parts
        kind, inputs, kept = "average", (average, weight, step), [weight]
        if self.ema_overwrite_frequency is not None:
            kind, inputs, kept = "average_overwriting", (weight, average, step), []
            a["frequency"] = self.ema_overwrite_frequency
        name = f"{label}/moved"
        result = updates.builder.apply(kind, inputs, a, name=name, phase="update")
        return [*kept, *result, *slots]

    # In a function

    def apply(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        """Update weights, in a function that `memcfg.function` traces or at once.

        Parameters
        ----------
        grads : sequence of (SymbolicTensor, array_like or None)
            The gradients, as of `memcfg.GradientTape.gradient`; outside of a function,
            arrays. A weight whose gradient is None stays as it is.
        trainable_variables : sequence of Variable
            The weights, as of `Model.trainable_variables`.

        Raises
        ------
        TypeError
            If the weights are missing.
        ValueError
            If a gradient has not the shape of its weight, no weight has a gradient, or
            a weight is updated twice in one function.
        """
        name = type(self).__name__
        if not trainable_variables:
            raise TypeError(f"{name}.apply: pass the weights that the gradients are of")
        first = trainable_variables[0]
        if not hasattr(first, "functions"):
            raise TypeError(f"{name}.apply: weights are Variables, got {first!r}")
        functions = first.functions
        tracing = functions.is_tracing()
        update = functions.apply_gradients if tracing else functions.update_at_once
        update(self, [*grads], [*trainable_variables])

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Any]]) -> None:
        """Update weights, as `apply` does.

        Parameters
        ----------
        grads_and_vars : iterable of (SymbolicTensor, array_like or None, Variable)
            Pairs of a gradient and its weight.

        Raises
        ------
        TypeError, ValueError
            As of `apply`.
        """
        pairs = list(grads_and_vars)
        self.apply([each for each, _ in pairs], [each for _, each in pairs])

    # The model's values

    def _check_free(self, owner: object) -> None:
        """Raise ValueError if the optimizer belongs to another model."""
        if self._holder() not in (None, owner):
            raise ValueError(
                "this optimizer already belongs to another model: make a new one"
            )

    def _claim(self, owner: object) -> None:
        """Make a model the owner of the optimizer."""
        self._owner = weakref.ref(owner)

    def _holder(self) -> Any:
        """Return the model or function that holds the state, or None."""
        return None if self._owner is None else self._owner()

    def _model(self) -> Any:
        model = self._holder()
        if model is None:
            raise RuntimeError(
                "the optimizer has no state: it belongs to no model. Call compile first"
            )
        return model

    def get_state(self) -> dict[str, np.ndarray]:
        """Return a copy of the optimizer's state.

        Returns
        -------
        dict of str to numpy.ndarray
            ``"iteration"``, the number of steps, and an array for each weight and slot,
            such as ``"dense/kernel/m"``. Automatic layer names are numbered within the
            model.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model is not built.
        """
        model = self._model()
        with model._lock.turn():
            result = {"iteration": np.array(self._iterations.value, np.int64)}
            session = model._built_session()
            for slot in session.slots_of(self):
                result[slot.key] = session.read(slot.name)
            return result

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replace the optimizer's state.

        Parameters
        ----------
        state : mapping of str to array_like
            The state, as `get_state` returns it.

        Raises
        ------
        WeightsError
            If names or shapes differ; the state is unchanged then.
        RuntimeError
            If the optimizer belongs to no model, or the model is not built.
        """
        model = self._model()
        with model._lock.turn():
            session = model._built_session()
            slots = {slot.key: slot for slot in session.slots_of(self)}
            if state.keys() != {"iteration", *slots}:
                differ = sorted(state.keys() ^ {"iteration", *slots})
                raise WeightsError(
                    "the state does not match the optimizer and model: "
                    f"{', '.join(differ[:5])} {'is' if len(differ) == 1 else 'are'} "
                    "not in both"
                )
            values = {key: np.array(state[key], slots[key].dtype) for key in slots}
            for key, value in values.items():
                if value.shape != slots[key].shape:
                    raise WeightsError(
                        f"{key!r} must have shape {slots[key].shape}, got {value.shape}"
                    )
            steps = Counter(integer(np.asarray(state["iteration"]).item(), "steps", 0))
            for key, value in values.items():
                session.write(slots[key].name, value)
            self._iterations = steps

    @property
    def variables(self) -> list[np.ndarray]:
        """Copies of the arrays of the optimizer's state, the number of steps first."""
        return list(self.get_state().values())

    def finalize_variable_values(self, var_list: Any = None) -> None:
        """Replace the weights by their moving averages, as the end of `Model.fit` does.

        Does nothing without `use_ema` or before the first step.

        Parameters
        ----------
        var_list : list, optional
            Ignored; Keras's argument. All weights of the model are replaced.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model is not built.
        """
        del var_list
        if self.use_ema and self._iterations.value:
            for session, slot in self._averages():
                session.write(slot.weight, session.read(slot.name))

    def take_averages(self) -> dict[str, np.ndarray]:
        """Replace the weights by their moving averages, as `SwapEMAWeights` does.

        Returns
        -------
        dict of str to numpy.ndarray
            The weights, which `put_back` takes; empty before the first step.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model is not built.
        """
        kept: dict[str, np.ndarray] = {}
        if self.use_ema and self._iterations.value:
            for session, slot in self._averages():
                kept[slot.weight] = session.read(slot.weight)
                session.write(slot.weight, session.read(slot.name))
        return kept

    def put_back(self, weights: Mapping[str, np.ndarray]) -> None:
        """Put back the weights that `take_averages` replaced.

        Parameters
        ----------
        weights : mapping of str to numpy.ndarray
            The weights.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model is not built.
        """
        for session, slot in self._averages():
            if slot.weight in weights:
                session.write(slot.weight, weights[slot.weight])

    def _averages(self) -> Iterator[tuple[Any, Slot]]:
        """Yield the averages with what reads and writes them."""
        model = self._model()
        with model._lock.turn():
            session = model._built_session()
            for slot in session.slots_of(self):
                if slot.key.endswith("/average"):
                    yield session, slot

    # Settings

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name; a schedule as `schedules.serialize` returns it.
        """
        rate = self._learning_rate
        if isinstance(rate, LearningRateSchedule):
            rate = serialize(rate)  # type: ignore[assignment]
        own = {key: getattr(self, key) for key in self._own_settings()}
        shared = {key: getattr(self, key) for key in _DEFAULTS}
        return {"name": self.name, "learning_rate": rate} | shared | own

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: dict[str, Any] | None = None
    ) -> Self:
        """Create an optimizer from its settings.

        Parameters
        ----------
        config : mapping
            The settings, as `get_config` returns them.
        custom_objects : dict, optional
            Your own schedules by name.

        Returns
        -------
        Optimizer
            The optimizer, without state.
        """
        given = dict(config)
        if isinstance(given.get("learning_rate"), dict):
            given["learning_rate"] = deserialize(given["learning_rate"], custom_objects)
        return cls(**given)

    def _own_settings(self) -> list[str]:
        """Return the names of the settings that are not common to all optimizers."""
        shared = {*_DEFAULTS, "name", "learning_rate"}
        given = FixedAttributes._settings(self)
        if self.updates_itself:  # its attributes are also those of `build`
            known = inspect.signature(type(self).__init__).parameters
            return [key for key in given if key in known and key not in shared]
        return [key for key in given if key not in shared]

    def _settings(self) -> dict[str, Any]:
        rate = self._learning_rate
        shown = {key: getattr(self, key) for key in self._own_settings()}
        more = {key: getattr(self, key) for key in _DEFAULTS}
        more = {key: more[key] for key in more if more[key] != _DEFAULTS[key]}
        return {"learning_rate": rate} | shown | more

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which has no model and no state."""
        return super().__getstate__() | {
            "_owner": None,
            "_updates": None,
            "_iterations": Counter(),
        }


def _limit(value: Any, what: str) -> float | None:
    if value is None:
        return None
    number = real(value, what)
    if number <= 0:
        raise ValueError(f"{what} must be above zero, or None, got {value!r}")
    return number


def _count(value: Any, what: str, least: int) -> int | None:
    if value is None:
        return None
    number = integer(value, what)
    if number < least:
        raise ValueError(f"{what} must be {least} or more, or None, got {value!r}")
    return number
