"""Learning rate schedules with the formulas of Keras 3.

Rates are computed on the host, in double precision, before each step.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.nn._argument_checks import nonnegative, real
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn.exchange._configs import Configured, serialize_keras_object
from memcfg.nn.exchange._custom_objects import own_class

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Self

__all__ = [
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "InverseTimeDecay",
    "LearningRateSchedule",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "deserialize",
    "serialize",
]


class LearningRateSchedule(FixedAttributes, Configured):
    """Base class of the schedules.

    A subclass defines ``__call__(step)``, which returns the learning rate of a step,
    and ``get_config()`` if its model will be saved.
    """

    __slots__ = ()

    of_number: ClassVar[Any]  # wraps schedules of users, which may call ops

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step.

        Parameters
        ----------
        step : int
            The number of the step, from 0. Steps that only accumulate gradients count.

        Returns
        -------
        float
            The learning rate.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define __call__(self, step)"
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name.
        """
        return self._settings()

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Create a schedule from its settings.

        Parameters
        ----------
        config : mapping of str to object
            The settings, as `get_config` returns them.

        Returns
        -------
        LearningRateSchedule
            The schedule.
        """
        return cls(**config)


def _positive(value: Any, what: str) -> float:
    number = real(value, what)
    if number <= 0:
        raise ValueError(f"{what} must be above zero, got {value!r}")
    return number


def _set_decay(
    schedule: ExponentialDecay | InverseTimeDecay,
    initial_learning_rate: float,
    decay_steps: float,
    decay_rate: float,
    staircase: bool,
    name: str,
) -> None:
    schedule.initial_learning_rate = nonnegative(
        initial_learning_rate, "initial_learning_rate"
    )
    schedule.decay_steps = _positive(decay_steps, "decay_steps")
    schedule.decay_rate = nonnegative(decay_rate, "decay_rate")
    schedule.staircase = bool(staircase)
    schedule.name = name


def _fraction(schedule: ExponentialDecay | InverseTimeDecay, step: int) -> float:
    passed = step / schedule.decay_steps
    return math.floor(passed) if schedule.staircase else passed


class ExponentialDecay(LearningRateSchedule):
    """``initial_learning_rate * decay_rate ** (step / decay_steps)``.

    Parameters
    ----------
    initial_learning_rate : float
        The learning rate of step 0.
    decay_steps : float
        The number of steps that multiply the rate by `decay_rate`.
    decay_rate : float
        The decay factor, zero or more.
    staircase : bool, default False
        Whether the exponent is rounded down to a whole number.
    name : str, default "ExponentialDecay"
        A name; it has no effect.

    Examples
    --------
    >>> import memcfg as mc
    >>> rate = mc.nn.optimizers.schedules.ExponentialDecay(0.5, 10, 0.5)
    >>> rate(0), rate(10), rate(20)
    (0.5, 0.25, 0.125)
    """

    __slots__ = (
        "decay_rate",
        "decay_steps",
        "initial_learning_rate",
        "name",
        "staircase",
    )

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool
    name: str

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "ExponentialDecay",
    ) -> None:
        _set_decay(
            self, initial_learning_rate, decay_steps, decay_rate, staircase, name
        )

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        return float(
            self.initial_learning_rate * self.decay_rate ** _fraction(self, step)
        )


class InverseTimeDecay(LearningRateSchedule):
    """``initial_learning_rate / (1 + decay_rate * step / decay_steps)``.

    Parameters
    ----------
    initial_learning_rate : float
        The learning rate of step 0.
    decay_steps : float
        The number of steps in one unit of decay, above 0.
    decay_rate : float
        The decay per unit, zero or more.
    staircase : bool, default False
        Whether ``step / decay_steps`` is rounded down to a whole number.
    name : str, default "InverseTimeDecay"
        A name; it has no effect.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.optimizers.schedules.InverseTimeDecay(0.5, 10, 1.0)(10)
    0.25
    """

    __slots__ = (
        "decay_rate",
        "decay_steps",
        "initial_learning_rate",
        "name",
        "staircase",
    )

    initial_learning_rate: float
    decay_steps: float
    decay_rate: float
    staircase: bool
    name: str

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        decay_rate: float,
        staircase: bool = False,
        name: str = "InverseTimeDecay",
    ) -> None:
        _set_decay(
            self, initial_learning_rate, decay_steps, decay_rate, staircase, name
        )

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.initial_learning_rate / (
            1 + self.decay_rate * _fraction(self, step)
        )


class PiecewiseConstantDecay(LearningRateSchedule):
    """A constant rate for each interval of steps.

    Parameters
    ----------
    boundaries : sequence of int
        The last step of each interval except the final one, in ascending order.
    values : sequence of float
        The rate of each interval, one more than there are boundaries.
    name : str, default "PiecewiseConstant"
        A name; it has no effect.

    Examples
    --------
    >>> import memcfg as mc
    >>> schedules = mc.nn.optimizers.schedules
    >>> rate = schedules.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1])
    >>> rate(10), rate(11), rate(21)
    (1.0, 0.5, 0.1)
    """

    __slots__ = ("boundaries", "name", "values")

    def __init__(
        self,
        boundaries: Sequence[float],
        values: Sequence[float],
        name: str = "PiecewiseConstant",
    ) -> None:
        self.boundaries = [real(each, "a boundary") for each in boundaries]
        self.values = [nonnegative(each, "a value") for each in values]
        self.name = name
        if len(self.values) != len(self.boundaries) + 1 or not self.boundaries:
            raise ValueError(
                "there must be at least one boundary, and one value more than "
                f"boundaries; got {len(self.boundaries)} boundaries and "
                f"{len(self.values)} values"
            )
        if sorted(set(self.boundaries)) != self.boundaries:
            raise ValueError(
                f"boundaries must be in ascending order, got {boundaries!r}"
            )

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        number = float(np.asarray(step))  # a variable is one, too
        return self.values[sum(number > each for each in self.boundaries)]


class PolynomialDecay(LearningRateSchedule):
    """A polynomial decay from one rate to another.

    ``(initial - end) * (1 - step / decay_steps) ** power + end``, where the step is at
    most `decay_steps`. With `cycle`, `decay_steps` is instead replaced by its smallest
    positive multiple that is not below the step.

    Parameters
    ----------
    initial_learning_rate : float
        The learning rate of step 0.
    decay_steps : float
        The step at which `end_learning_rate` is reached, above 0.
    end_learning_rate : float, default 0.0001
        The final rate.
    power : float, default 1.0
        The exponent, above 0; 1 is a linear decay.
    cycle : bool, default False
        Whether the rate rises again after `decay_steps`.
    name : str, default "PolynomialDecay"
        A name; it has no effect.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.optimizers.schedules.PolynomialDecay(1.0, 10, 0.5)(5)
    0.75
    """

    __slots__ = (
        "cycle",
        "decay_steps",
        "end_learning_rate",
        "initial_learning_rate",
        "name",
        "power",
    )

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        end_learning_rate: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        name: str = "PolynomialDecay",
    ) -> None:
        self.initial_learning_rate = nonnegative(
            initial_learning_rate, "initial_learning_rate"
        )
        self.decay_steps = _positive(decay_steps, "decay_steps")
        self.end_learning_rate = nonnegative(end_learning_rate, "end_learning_rate")
        self.power = _positive(power, "power")
        self.cycle = bool(cycle)
        self.name = name

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        if self.cycle:
            length = self.decay_steps * max(1, math.ceil(step / self.decay_steps))
            passed = step / length
        else:
            passed = min(step, self.decay_steps) / self.decay_steps
        span = self.initial_learning_rate - self.end_learning_rate
        return float(span * (1 - passed) ** self.power + self.end_learning_rate)


class CosineDecay(LearningRateSchedule):
    """A decay along half a cosine, optionally after a linear warm-up.

    Parameters
    ----------
    initial_learning_rate : float
        The learning rate of step 0.
    decay_steps : float
        The number of steps of the cosine, above 0.
    alpha : float, default 0.0
        The final rate as a fraction of the highest rate.
    name : str, default "CosineDecay"
        A name; it has no effect.
    warmup_target : float, optional
        The rate at the end of the warm-up. None: no warm-up.
    warmup_steps : float, default 0
        The number of steps of the warm-up.

    References
    ----------
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts",
    ICLR 2017. Goyal et al., "Accurate, large minibatch SGD", arXiv:1706.02677.

    Examples
    --------
    >>> import memcfg as mc
    >>> rate = mc.nn.optimizers.schedules.CosineDecay(
    ...     0.0, 100, warmup_target=0.5, warmup_steps=10
    ... )
    >>> rate(5), rate(10), rate(110)
    (0.25, 0.5, 0.0)
    """

    __slots__ = (
        "alpha",
        "decay_steps",
        "initial_learning_rate",
        "name",
        "warmup_steps",
        "warmup_target",
    )

    def __init__(
        self,
        initial_learning_rate: float,
        decay_steps: float,
        alpha: float = 0.0,
        name: str = "CosineDecay",
        warmup_target: float | None = None,
        warmup_steps: float = 0,
    ) -> None:
        self.initial_learning_rate = nonnegative(
            initial_learning_rate, "initial_learning_rate"
        )
        self.decay_steps = _positive(decay_steps, "decay_steps")
        self.alpha = nonnegative(alpha, "alpha")
        self.name = name
        self.warmup_target = (
            None
            if warmup_target is None
            else nonnegative(warmup_target, "warmup_target")
        )
        self.warmup_steps = nonnegative(warmup_steps, "warmup_steps")

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        start, target = self.initial_learning_rate, self.warmup_target
        if target is None:
            passed, top = float(step), start
        elif step < self.warmup_steps:
            return start + (target - start) * (step / self.warmup_steps)
        else:
            passed, top = step - self.warmup_steps, target
        fraction = min(passed, self.decay_steps) / self.decay_steps
        return top * _cosine(fraction, self.alpha)


class CosineDecayRestarts(LearningRateSchedule):
    """A decay along half a cosine with restarts, in periods of growing length.

    Parameters
    ----------
    initial_learning_rate : float
        The learning rate of step 0.
    first_decay_steps : float
        The number of steps of the first period, above 0.
    t_mul : float, default 2.0
        The length of a period relative to the previous one, 1 or more.
    m_mul : float, default 1.0
        The initial rate of a period relative to that of the previous one.
    alpha : float, default 0.0
        The lowest rate as a fraction of `initial_learning_rate`.
    name : str, default "SGDRDecay"
        A name; it has no effect.

    References
    ----------
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts",
    ICLR 2017.

    Examples
    --------
    >>> import memcfg as mc
    >>> rate = mc.nn.optimizers.schedules.CosineDecayRestarts(0.5, 10, m_mul=0.5)
    >>> rate(0), rate(10), rate(30)
    (0.5, 0.25, 0.125)
    """

    __slots__ = (
        "alpha",
        "first_decay_steps",
        "initial_learning_rate",
        "m_mul",
        "name",
        "t_mul",
    )

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: float,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
        name: str = "SGDRDecay",
    ) -> None:
        self.initial_learning_rate = nonnegative(
            initial_learning_rate, "initial_learning_rate"
        )
        self.first_decay_steps = _positive(first_decay_steps, "first_decay_steps")
        self.t_mul = _positive(t_mul, "t_mul")
        self.m_mul = nonnegative(m_mul, "m_mul")
        self.alpha = nonnegative(alpha, "alpha")
        self.name = name
        if self.t_mul < 1:
            raise ValueError(f"t_mul must be 1 or more, got {t_mul!r}")

    def __call__(self, step: int) -> float:
        """Return the learning rate of a step."""
        passed = step / self.first_decay_steps  # in first periods
        if self.t_mul == 1:
            restarts = math.floor(passed)
            fraction = passed - restarts
        else:
            growth = 1 + passed * (self.t_mul - 1)
            restarts = math.floor(math.log(growth) / math.log(self.t_mul) + 1e-12)
            length = self.t_mul**restarts
            fraction = (passed - (length - 1) / (self.t_mul - 1)) / length
        wave = 0.5 * (1 + math.cos(math.pi * fraction))
        height = (1 - self.alpha) * self.m_mul**restarts * wave + self.alpha
        return self.initial_learning_rate * height


def _cosine(fraction: float, alpha: float) -> float:
    wave = 0.5 * (1 + math.cos(math.pi * fraction))
    return (1 - alpha) * wave + alpha


def serialize(learning_rate_schedule: LearningRateSchedule) -> dict[str, Any]:
    """Return a schedule's settings as a dictionary.

    Parameters
    ----------
    learning_rate_schedule : LearningRateSchedule
        The schedule.

    Returns
    -------
    dict
        ``{"class_name": ..., "config": ...}``, and the module and registered name.
    """
    result: dict[str, Any] = serialize_keras_object(learning_rate_schedule)
    return result


def deserialize(
    config: dict[str, Any], custom_objects: dict[str, Any] | None = None
) -> LearningRateSchedule:
    """Create a schedule from the settings that `serialize` returned.

    Parameters
    ----------
    config : dict
        ``{"class_name": ..., "config": ...}``.
    custom_objects : dict, optional
        Your own schedules by name, beside those that are registered.

    Returns
    -------
    LearningRateSchedule
        The schedule.

    Raises
    ------
    ValueError
        If there is no schedule of this name.
    """
    name = config.get("class_name")
    known = {each: globals()[each] for each in __all__ if each.endswith(_ENDINGS)}
    kind = own_class(config, custom_objects) or known.get(str(name))
    if kind is None:
        known |= custom_objects or {}
        raise ValueError(
            f"unknown schedule {name!r}; known are {', '.join(sorted(known))}"
        )
    result: LearningRateSchedule = kind.from_config(config.get("config", {}))
    return result


_ENDINGS = ("Decay", "Restarts")
