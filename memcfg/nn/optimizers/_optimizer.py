"""How gradients move weights: what all optimizers have in common.

An optimizer appends to the graph of a step: the accumulation of gradients, clipping, an
update op for each weight, averages. What it keeps lies in the arena behind the weights.
The learning rate is an input of the step: it can change without planning again.
"""

from __future__ import annotations

import re
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from memcfg._core import Counter
from memcfg.errors import WeightsError
from memcfg.nn._argument_checks import integer, nonnegative, real
from memcfg.nn._attributes import FixedAttributes, automatic_name, check_name, constant
from memcfg.nn.optimizers.schedules import LearningRateSchedule, deserialize, serialize
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from memcfg.graph import Builder
    from memcfg.nn._network import Weight

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
    """Pick from a constructor's arguments those that all optimizers have."""
    names = ("learning_rate", *_DEFAULTS, "loss_scale_factor", "name")
    return {name: given[name] for name in names}


class Rate(float):
    """A learning rate, which knows whose it is."""

    _optimizer: Optimizer

    def assign(self, value: float) -> None:
        """Set the optimizer's learning rate."""
        self._optimizer.learning_rate = value

    def numpy(self) -> np.float32:
        """Return it as a number of NumPy's."""
        return np.float32(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return float, (float(self),)


class Slot(NamedTuple):
    """A tensor that an optimizer keeps, without its value."""

    name: str  # in every graph
    key: str  # in files
    shape: tuple[int, ...]
    dtype: str
    value: float  # that it starts from
    weight: str = ""  # that has it

    def first_value(self) -> np.ndarray:
        """Return what training starts from."""
        if self.value:
            return np.full(self.shape, self.value, self.dtype)
        return np.zeros(self.shape, self.dtype)


@dataclass(frozen=True)
class Updates:
    """What an optimizer's ops read: inputs of the step and settings."""

    builder: Builder
    optimizer: Optimizer
    state: Mapping[str, int]
    rate: int
    step: Callable[[], int]
    divisor: int  # of accumulated gradients that are no means yet

    def apply(
        self,
        kind: str,
        name: str,
        inputs: Sequence[int],
        more: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> tuple[int, ...]:
        """Append an update; the scalars and attributes that it reads are added."""
        steps = self.optimizer.gradient_accumulation_steps
        if steps is not None:
            kind += "_accumulated"
            settings = {"steps": steps, "divisor": self.divisor, **settings}
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
        """Append an op that makes something of gradients."""
        return self.builder.apply(kind, inputs, a, name=name, phase="backward")[0]


class Optimizer(FixedAttributes):
    """Base class of the optimizers.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule
        Zero or more, or what makes it of the number of the step.
    weight_decay : float, optional
        At each update a weight loses this part of itself, times the learning rate,
        before the gradient moves it.
    clipnorm : float, optional
        The greatest norm of each weight's gradient; longer ones are shortened.
    clipvalue : float, optional
        The greatest absolute value of a gradient's elements.
    global_clipnorm : float, optional
        The greatest norm of all gradients together. One of the three at most.
    use_ema : bool, default False
        Whether a moving average of each weight is kept, which takes the weight's place
        at the end of `Model.fit`.
    ema_momentum : float, default 0.99
        The fraction of the average that stays at a step, in ``[0, 1]``.
    ema_overwrite_frequency : int, optional
        The average takes the weight's place after so many updates, too.
    loss_scale_factor : None, optional
        Not supported: gradients are float32, and need no scaling.
    gradient_accumulation_steps : int, optional
        Weights change once in so many steps, 2 or more, by the mean of the steps'
        gradients. `iterations` counts the changes, schedules the steps.
    name : str, optional
        None: the class's name, numbered.

    Raises
    ------
    TypeError, ValueError
        If a setting cannot be honoured.

    Notes
    -----
    What an optimizer keeps (`slots`, one accumulated gradient and one average of each
    weight) lies in the device's memory, behind the weights, and is part of every plan
    and report.
    """

    __slots__ = (
        "_excluded",
        "_iterations",
        "_learning_rate",
        "_owner",
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
                "one of clipnorm, clipvalue and global_clipnorm can be set, got "
                f"clipnorm={clipnorm}, clipvalue={clipvalue}, "
                f"global_clipnorm={global_clipnorm}"
            )
        if loss_scale_factor is not None:
            raise ValueError(
                f"loss_scale_factor={loss_scale_factor!r} is for gradients of 16 bits, "
                "and memcfg's are float32: leave it out"
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

    @property
    def learning_rate(self) -> float:
        """The factor of the next step; may be set between steps.

        To a number or a `LearningRateSchedule`. Setting a number where there is a
        schedule is refused, as in Keras: set another schedule.

        Raises
        ------
        TypeError
            When set to what is neither, or to a number instead of a schedule.
        ValueError
            When set to a negative number, or to what is not finite in float32; when
            read, if a schedule returns that.
        """
        rate = self._learning_rate
        if isinstance(rate, LearningRateSchedule):
            return nonnegative(rate(self._iterations.value), f"what {rate!r} returns")
        result = Rate(rate)
        result._optimizer = self
        return result

    @learning_rate.setter
    def learning_rate(self, value: float | LearningRateSchedule) -> None:
        if isinstance(value, LearningRateSchedule):
            self._learning_rate: float | LearningRateSchedule = value
            return
        given: Any = value
        if callable(given):
            raise TypeError(
                "learning_rate is a number or a schedule: write a subclass of "
                f"optimizers.schedules.LearningRateSchedule instead of {value!r}"
            )
        if isinstance(getattr(self, "_learning_rate", None), LearningRateSchedule):
            raise TypeError(
                "the learning rate follows a schedule, which a number would end: set "
                "another schedule, or make an optimizer with a number"
            )
        self._learning_rate = nonnegative(value, "learning_rate")

    @property
    def iterations(self) -> int:
        """How many updates this optimizer has made."""
        return self._iterations.value // (self.gradient_accumulation_steps or 1)

    def exclude_from_weight_decay(
        self, var_list: None = None, var_names: Sequence[str] | None = None
    ) -> None:
        """Keep some weights from decaying; before the optimizer is compiled.

        Parameters
        ----------
        var_list : None, optional
            Not supported: weights have names.
        var_names : sequence of str, optional
            Regular expressions; a weight in whose name one is found, such as
            ``"dense/bias"``, does not decay.

        Raises
        ------
        TypeError
            If `var_list` is given, or `var_names` are no strings.
        RuntimeError
            If the optimizer belongs to a model already.
        """
        if var_list is not None or isinstance(var_names, str):
            raise TypeError("pass the weights' names, as in var_names=['bias']")
        if self._owner is not None:
            raise RuntimeError("exclude weights before compile: steps are planned then")
        self._excluded = tuple(re.compile(each).pattern for each in var_names or ())

    # State

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state that each weight has."""
        return ()

    def _slots(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the state that a weight has."""
        return dict.fromkeys(self.slots, shape)

    def _first(self, slot: str) -> float:
        """Return what each element of a slot starts from."""
        del slot
        return 0.0

    @property
    def _shared(self) -> dict[str, float]:
        """Numbers that are kept once, and what they start from."""
        return {}

    def state(self, weights: Sequence[Weight]) -> list[Slot]:
        """List the state that weights have.

        Parameters
        ----------
        weights : sequence of Weight
            The weights that are trained.

        Returns
        -------
        list of Slot
            Names, shapes and first values, in the order in which they lie.
        """
        result = [
            Slot(f"{self.kind}/{name}", name, (), "float32", value)
            for name, value in self._shared.items()
        ]
        for weight in weights:
            for name, shape in (self._slots(weight.shape) | self._kept(weight)).items():
                label, key = f"{self.kind}/{weight.name}/{name}", f"{weight.key}/{name}"
                value = self._first(name)
                result.append(Slot(label, key, shape, weight.dtype, value, weight.name))
        return result

    def _kept(self, weight: Weight) -> dict[str, tuple[int, ...]]:
        """Return what all optimizers may keep: sums of gradients, averages."""
        kept = {}
        if self.gradient_accumulation_steps is not None:
            kept["gradient_accumulator"] = weight.shape
        if self.use_ema:
            kept["average"] = weight.shape
        return kept

    # Tracing

    def trace(
        self,
        builder: Builder,
        weights: Mapping[str, int],
        gradients: Mapping[str, int],
        state: Mapping[str, int],
        rate: int,
        step: Callable[[], int],
    ) -> list[int]:
        """Append the updates of a step.

        Parameters
        ----------
        builder : Builder
            Where the ops go.
        weights, gradients : mapping of str to int
            Ids by the weights' names.
        state : mapping of str to int
            Ids by the names that `state` gives.
        rate : int
            Id of the learning rate.
        step : callable
            Returns the id of the number of the step.

        Returns
        -------
        list of int
            Ids of the newest values of weights and state.
        """
        new: list[int] = []
        found = dict(gradients)
        steps = self.gradient_accumulation_steps
        # Ops choose by the number of the step whether they add or update, so that a
        # step stays one program, with the same bits in every mode.
        for name in weights if steps is not None else ():
            place = state[f"{self.kind}/{name}/gradient_accumulator"]
            (found[name],) = builder.apply(
                "accumulate",
                (place, found[name], step()),
                {"steps": steps},
                name=f"{self.kind}/{name}/accumulate",
                phase="update",
            )
            new.append(found[name])
        updates = Updates(builder, self, state, rate, step, steps or 1)
        updates, found = self._clip(updates, found)
        shared = self._update_shared(updates)
        new += shared.values()
        for name, weight in weights.items():
            operands = (weight, found[name])
            made = self._update(updates, name, operands, shared)
            new += self._averaged(updates, name, made) if self.use_ema else made
        return new

    def _clip(
        self, updates: Updates, gradients: Mapping[str, int]
    ) -> tuple[Updates, dict[str, int]]:
        """Append the clipping of all gradients, which are means then."""
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
        fields = (updates.builder, self, updates.state, updates.rate, updates.step)
        return Updates(*fields, divisor=1), dict(zip(gradients, made, strict=True))

    _needs_means = False  # whether updates cannot take sums of several gradients

    def _update_shared(self, updates: Updates) -> dict[str, int]:
        """Append the updates of what is kept once; their new values by name."""
        del updates
        return {}

    def _decay(self, name: str) -> dict[str, float]:
        """Return the weight decay of a weight, if it is not the optimizer's."""
        excluded = any(re.search(each, name) for each in self._excluded)
        return {"weight_decay": 0.0} if excluded else {}

    def _update(
        self,
        updates: Updates,
        name: str,
        operands: tuple[int, int],
        shared: Mapping[str, int],
    ) -> list[int]:
        """Append the update of a weight; its new value, and that of its slots."""
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
        """Append a weight's moving average, which may take its place."""
        weight, *slots = made
        label = f"{self.kind}/{name}/average"
        average, step = updates.state[label], updates.step()
        steps = self.gradient_accumulation_steps or 1
        a: dict[str, Any] = {"momentum": self.ema_momentum, "steps": steps}
        kind, inputs, kept = "average", (average, weight, step), [weight]
        if self.ema_overwrite_frequency is not None:
            kind, inputs, kept = "average_overwriting", (weight, average, step), []
            a["frequency"] = self.ema_overwrite_frequency
        name = f"{label}/moved"
        result = updates.builder.apply(kind, inputs, a, name=name, phase="update")
        return [*kept, *result, *slots]

    # The model's values

    def _check_free(self, owner: object) -> None:
        """Refuse a second model."""
        held = None if self._owner is None else self._owner()
        if held is not None and held is not owner:
            raise ValueError(
                "this optimizer already belongs to another model: make a new one"
            )

    def _claim(self, owner: object) -> None:
        """Give the optimizer to a model."""
        self._owner = weakref.ref(owner)

    def _model(self) -> Any:
        model = None if self._owner is None else self._owner()
        if model is None:
            raise RuntimeError(
                "the optimizer has no state yet: it is a model's. Call compile first"
            )
        return model

    def get_state(self) -> dict[str, np.ndarray]:
        """Return copies of all that the optimizer keeps.

        Returns
        -------
        dict of str to numpy.ndarray
            ``"iteration"``, the number of steps, and arrays by the names of the weight
            and the slot, such as ``"dense/kernel/m"``. Automatic layer names are
            counted within the model.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model's shapes are not known.
        """
        model = self._model()
        with model._lock.turn():
            result = {"iteration": np.array(self._iterations.value, np.int64)}
            session = model._built_session()
            for slot in session.slots:
                result[slot.key] = session.read(slot.name)
            return result

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Replace all that the optimizer keeps.

        Parameters
        ----------
        state : mapping of str to array_like
            As `get_state` returns it.

        Raises
        ------
        WeightsError
            If names or shapes differ; nothing changed then.
        RuntimeError
            If the optimizer belongs to no model, or the model's shapes are not known.
        """
        model = self._model()
        with model._lock.turn():
            session = model._built_session()
            slots = {slot.key: slot for slot in session.slots}
            if state.keys() != {"iteration", *slots}:
                differ = sorted(state.keys() ^ {"iteration", *slots})
                raise WeightsError(
                    f"state of another optimizer or model: {', '.join(differ[:5])} "
                    "is not in both"
                )
            values = {key: np.array(state[key], slots[key].dtype) for key in slots}
            for key, value in values.items():
                if value.shape != slots[key].shape:
                    raise WeightsError(
                        f"{key!r} has shape {value.shape}, not {slots[key].shape}"
                    )
            steps = Counter(integer(np.asarray(state["iteration"]).item(), "steps", 0))
            for key, value in values.items():
                session.write(slots[key].name, value)
            self._iterations = steps

    @property
    def variables(self) -> list[np.ndarray]:
        """Copies of all that the optimizer keeps, the number of steps first."""
        return list(self.get_state().values())

    def finalize_variable_values(self, var_list: Any = None) -> None:
        """Put the moving averages in the weights' places; `Model.fit` ends with it.

        Parameters
        ----------
        var_list : list, optional
            Keras's; it is not read, since an optimizer has one model.

        Raises
        ------
        RuntimeError
            If the optimizer belongs to no model, or the model's shapes are not known.
        """
        del var_list
        if not self.use_ema or not self._iterations.value:
            return
        model = self._model()
        with model._lock.turn():
            session = model._built_session()
            for slot in session.slots:
                if slot.name == f"{self.kind}/{slot.weight}/average":
                    session.write(slot.weight, session.read(slot.name))

    # Settings

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            By name; a schedule as `schedules.serialize` returns it.
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
        """Make an optimizer.

        Parameters
        ----------
        config : mapping
            As `get_config` returns it.
        custom_objects : dict, optional
            Schedules of your own by their names.

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
        """Name the settings that not all optimizers have."""
        shared = {*_DEFAULTS, "name", "learning_rate"}
        return [key for key in FixedAttributes._settings(self) if key not in shared]

    def _settings(self) -> dict[str, Any]:
        rate = self._learning_rate
        shown = {key: getattr(self, key) for key in self._own_settings()}
        more = {key: getattr(self, key) for key in _DEFAULTS}
        more = {key: more[key] for key in more if more[key] != _DEFAULTS[key]}
        return {"learning_rate": rate} | shown | more

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's attributes: its state, and the steps, are a model's."""
        return super().__getstate__() | {"_owner": None, "_iterations": Counter()}


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
