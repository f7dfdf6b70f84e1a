"""Adam that averages its iterates in place of a schedule of learning rates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import integer, nonnegative, unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, common

if TYPE_CHECKING:
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["ScheduleFreeAdamW"]


class ScheduleFreeAdamW(Optimizer):
    """Adam whose weights are between an iterate and the mean of all iterates.

    With ``t`` the number of the update, from 1, ``v += (g² - v) * (1 - beta_2)``,
    ``z -= learning_rate * g / (sqrt(v / (1 - beta_2^t)) + epsilon)``, ``x`` the mean of
    all ``z``, and ``w = (1 - beta_1) * z + beta_1 * x``. At first ``z`` is the weight.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.0025
        The learning rate, zero or more, or a schedule.
    beta_1 : float, default 0.9
        The share of the mean in a weight, above 0 and below 1.
    beta_2 : float, default 0.999
        The factor of the old moment at each update, in ``[0, 1)``.
    epsilon : float, default 1e-8
        A constant for numerical stability, zero or more.
    warmup_steps : int, default 0
        The number of updates in which the rate grows in proportion to `t`.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Defazio et al., "The road less scheduled", NeurIPS 2024.
    """

    __slots__ = ("beta_1", "beta_2", "epsilon", "warmup_steps")

    kind = "schedulefreeadamw"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.0025,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        warmup_steps: int = 0,
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
        kind = "ScheduleFreeAdamW"
        self.beta_1 = unit_interval(beta_1, f"{kind}: beta_1")
        if self.beta_1 == 0:
            raise ValueError(f"{kind}: beta_1 must be above 0, got {beta_1!r}")
        self.beta_2 = unit_interval(beta_2, f"{kind}: beta_2")
        self.epsilon = nonnegative(epsilon, f"{kind}: epsilon")
        self.warmup_steps = integer(warmup_steps, f"{kind}: warmup_steps", 0)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "momentum", "velocity"

    @property
    def _op(self) -> str:
        return "schedule_free_adamw"
