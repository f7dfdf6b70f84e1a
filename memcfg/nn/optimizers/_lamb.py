"""Lamb: Adam's steps, each as long as its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import nonnegative, unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, Updates, common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Lamb"]


class Lamb(Optimizer):
    """Lamb: Adam's step, scaled to the norm of the weight, for large batches.

    ``u`` is Adam's step without the learning rate, and
    ``w -= learning_rate * norm(w) / norm(u) * u``; the quotient is 1 if a norm is 0.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    beta_1, beta_2 : float, default 0.9 and 0.999
        The factors of the old moments at each update, in ``[0, 1)``.
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
    You et al., "Large batch optimization for deep learning: training BERT in 76
    minutes", ICLR 2020.
    """

    __slots__ = ("beta_1", "beta_2", "epsilon")

    kind = "lamb"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
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
        self.beta_1 = unit_interval(beta_1, "Lamb: beta_1")
        self.beta_2 = unit_interval(beta_2, "Lamb: beta_2")
        self.epsilon = nonnegative(epsilon, "Lamb: epsilon")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "momentum", "velocity"

    def _update(
        self,
        updates: Updates,
        name: str,
        operands: tuple[int, int],
        shared: Mapping[str, int],
    ) -> list[int]:
        del shared
        label = f"{self.kind}/{name}"
        weight, gradient = operands
        slots = [updates.state[f"{label}/{slot}"] for slot in self.slots]
        moments = updates.apply("lamb_moments", f"{label}/moved", [*slots, gradient])
        unit = updates.backward(
            "lamb_unit",
            f"{label}/unit",
            [*moments, updates.step()],
            beta_1=self.beta_1,
            beta_2=self.beta_2,
            epsilon=self.epsilon,
            steps=updates.steps or 1,
        )
        norms = {
            f"{key}_norm": updates.backward("norm", f"{label}/{key}_norm", [each])
            for key, each in (("unit", unit), ("weight", weight))
        }
        settings = {"weight_decay": self.weight_decay or 0.0} | self._decay(name)
        new = updates.apply("lamb", label, [weight, unit], norms, **settings)
        return [*new, *moments]
