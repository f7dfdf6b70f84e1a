"""Adagrad, RMSprop and Adadelta: steps scaled by squared gradients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import nonnegative, unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, common

if TYPE_CHECKING:
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Adadelta", "Adagrad", "RMSprop"]


class RMSprop(Optimizer):
    """RMSprop: steps scaled by the moving mean square of the gradient.

    ``v = rho * v + (1 - rho) * g²`` and
    ``w -= learning_rate * g / sqrt(v + epsilon)``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    rho : float, default 0.9
        The factor of the old mean at each update, in ``[0, 1)``.
    momentum : float, default 0.0
        The factor of the previous step that is added to a step, in ``[0, 1)``.
    epsilon : float, default 1e-7
        A constant for numerical stability, zero or more.
    centered : bool, default False
        Whether to subtract the square of the moving mean gradient from ``v``.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Tieleman and Hinton, "Lecture 6.5: RMSProp", Coursera 2012. Centered: Graves,
    "Generating sequences with recurrent neural networks", arXiv:1308.0850.
    """

    __slots__ = ("centered", "epsilon", "momentum", "rho")

    kind = "rmsprop"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
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
        super().__init__(**common(locals()))
        self.rho = unit_interval(rho, "RMSprop: rho")
        self.momentum = unit_interval(momentum, "RMSprop: momentum")
        self.epsilon = nonnegative(epsilon, "RMSprop: epsilon")
        self.centered = bool(centered)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        slots = ["velocity", *["momentum"] * (self.momentum > 0)]
        return *slots, *["average_gradient"] * self.centered

    @property
    def _op(self) -> str:
        name = "rmsprop_centered" if self.centered else "rmsprop"
        return f"{name}_momentum" if self.momentum else name


class Adagrad(Optimizer):
    """Adagrad: steps scaled by the sum of squared gradients.

    ``a += g²`` and ``w -= learning_rate * g / sqrt(a + epsilon)``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    initial_accumulator_value : float, default 0.1
        The initial value of the sum, zero or more.
    epsilon : float, default 1e-7
        A constant for numerical stability, zero or more.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and
    stochastic optimization", JMLR 12, 2011.
    """

    __slots__ = ("epsilon", "initial_accumulator_value")

    kind = "adagrad"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
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
        super().__init__(**common(locals()))
        self.initial_accumulator_value = nonnegative(
            initial_accumulator_value, "Adagrad: initial_accumulator_value"
        )
        self.epsilon = nonnegative(epsilon, "Adagrad: epsilon")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return ("accumulator",)

    def _first(self, slot: str) -> float:
        return self.initial_accumulator_value if slot == "accumulator" else 0.0


class Adadelta(Optimizer):
    """Adadelta: steps scaled by moving averages of squared gradients and steps.

    ``a = rho * a + (1 - rho) * g²``, ``d = sqrt(s + epsilon) * g / sqrt(a + epsilon)``,
    ``s = rho * s + (1 - rho) * d²`` and ``w -= learning_rate * d``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule. The paper uses 1.
    rho : float, default 0.95
        The factor of the old means at each update, in ``[0, 1)``.
    epsilon : float, default 1e-7
        A constant for numerical stability, zero or more.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Zeiler, "ADADELTA: an adaptive learning rate method", arXiv:1212.5701.
    """

    __slots__ = ("epsilon", "rho")

    kind = "adadelta"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
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
        super().__init__(**common(locals()))
        self.rho = unit_interval(rho, "Adadelta: rho")
        self.epsilon = nonnegative(epsilon, "Adadelta: epsilon")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "accumulated_grad", "accumulated_delta_var"
