"""Ftrl: each weight is the best of all gradients so far, with penalties."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import nonnegative, real
from memcfg.nn.optimizers._optimizer import Optimizer, common

if TYPE_CHECKING:
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Ftrl"]


class Ftrl(Optimizer):
    """Follow the regularized leader: few weights of a linear model are not 0.

    With ``p = -learning_rate_power``, ``n = a + g²`` and ``z += g + 2 * l2_shrinkage *
    w - (n^p - a^p) / learning_rate * w``, ``w`` is ``(clip(z, -l1, l1) - z) / (n^p /
    learning_rate + 2 * l2 + beta / learning_rate)``, and ``a = n``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, above zero, or a schedule.
    learning_rate_power : float, default -0.5
        How the rate falls with the sum of squared gradients, zero or less.
    initial_accumulator_value : float, default 0.1
        The initial value of the sum, zero or more.
    l1_regularization_strength, l2_regularization_strength : float, default 0.0
        The penalties on weights, zero or more.
    l2_shrinkage_regularization_strength : float, default 0.0
        A penalty that is a part of the gradient, zero or more.
    beta : float, default 0.0
        Added to the penalty on squares, divided by twice the learning rate.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    McMahan et al., "Ad click prediction: a view from the trenches", KDD 2013.
    """

    __slots__ = (
        "beta",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "learning_rate_power",
    )

    kind = "ftrl"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
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
        self.learning_rate_power = real(learning_rate_power, "learning_rate_power")
        if self.learning_rate_power > 0:
            raise ValueError(
                "Ftrl: learning_rate_power must be zero or less, got "
                f"{learning_rate_power!r}"
            )
        self.initial_accumulator_value = nonnegative(
            initial_accumulator_value, "Ftrl: initial_accumulator_value"
        )
        self.l1_regularization_strength = nonnegative(
            l1_regularization_strength, "Ftrl: l1_regularization_strength"
        )
        self.l2_regularization_strength = nonnegative(
            l2_regularization_strength, "Ftrl: l2_regularization_strength"
        )
        self.l2_shrinkage_regularization_strength = nonnegative(
            l2_shrinkage_regularization_strength,
            "Ftrl: l2_shrinkage_regularization_strength",
        )
        self.beta = real(beta, "Ftrl: beta")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "accumulator", "linear"

    def _first(self, slot: str) -> float:
        return self.initial_accumulator_value if slot == "accumulator" else 0.0
