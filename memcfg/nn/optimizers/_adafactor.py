"""Adafactor: second moments per row and column instead of per element."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import nonnegative, real
from memcfg.nn.optimizers._optimizer import Optimizer, Updates, common

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Adafactor"]


class Adafactor(Optimizer):
    """Adafactor: Adam with a factored second moment, which needs little memory.

    For weights with two or more axes, the state is the mean squares of the gradient per
    row and per column of the last two axes; their product approximates the mean squares
    of the elements. Other weights have mean squares per element. There is no first
    moment.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    beta_2_decay : float, default -0.8
        Exponent below 0; the factor of the old means at update ``t`` is
        ``1 - t^beta_2_decay``.
    epsilon_1 : float, default 1e-30
        A constant added to squared gradients, zero or more.
    epsilon_2 : float, default 1e-3
        The smallest root mean square of a weight by which steps are scaled.
    clip_threshold : float, default 1.0
        The largest root mean square of a step before the learning rate is applied.
    relative_step : bool, default True
        Accepted for Keras; the rate is at most ``1 / sqrt(t)`` either way, as in Keras.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Shazeer and Stern, "Adafactor: adaptive learning rates with sublinear memory cost",
    ICML 2018.

    Examples
    --------
    >>> import memcfg as mc
    >>> layers = [mc.nn.Input((1000,)), mc.nn.Dense(1000, use_bias=False)]
    >>> model = mc.nn.Sequential(layers)
    >>> loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile(mc.nn.Adafactor(), loss)
    >>> sum(each.nbytes for each in model.optimizer.variables[1:])
    8000
    """

    __slots__ = (
        "beta_2_decay",
        "clip_threshold",
        "epsilon_1",
        "epsilon_2",
        "relative_step",
    )

    kind = "adafactor"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        beta_2_decay: float = -0.8,
        epsilon_1: float = 1e-30,
        epsilon_2: float = 1e-3,
        clip_threshold: float = 1.0,
        relative_step: bool = True,
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
        self.beta_2_decay = real(beta_2_decay, "Adafactor: beta_2_decay")
        self.epsilon_1 = nonnegative(epsilon_1, "Adafactor: epsilon_1")
        self.epsilon_2 = nonnegative(epsilon_2, "Adafactor: epsilon_2")
        self.clip_threshold = real(clip_threshold, "Adafactor: clip_threshold")
        self.relative_step = bool(relative_step)
        if self.beta_2_decay >= 0:
            raise ValueError(
                f"Adafactor: beta_2_decay must be below 0, got {beta_2_decay!r}"
            )
        if self.clip_threshold <= 0:
            raise ValueError(
                f"Adafactor: clip_threshold must be above 0, got {clip_threshold!r}"
            )

    _needs_means = True

    def _slots(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        if len(shape) < 2:
            return {"velocity": shape}
        return {"row": shape[:-1], "column": (*shape[:-2], shape[-1])}

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
        shape = updates.builder.shape(weight)
        slots = {slot: updates.state[f"{label}/{slot}"] for slot in self._slots(shape)}
        if "velocity" in slots:
            inputs, moved = [slots["velocity"], gradient], f"{label}/velocity/moved"
            moments = list(updates.apply("adafactor_vector", moved, inputs))
            kind = "over_root"
        else:
            means = updates.builder.apply(
                "factored_means",
                [gradient],
                {"epsilon": self.epsilon_1},
                name=f"{label}/means",
                phase="backward",
            )
            moments = [
                updates.apply("adafactor_moment", f"{label}/{slot}/moved", pair)[0]
                for slot, *pair in zip(slots, slots.values(), means, strict=True)
            ]
            kind = "over_factored_root"
        unit = updates.backward(kind, f"{label}/unit", [gradient, *moments])
        norms = {
            f"{key}_norm": updates.backward("norm", f"{label}/{key}_norm", [each])
            for key, each in (("unit", unit), ("weight", weight))
        }
        settings = {"weight_decay": self.weight_decay or 0.0} | self._decay(name)
        new = updates.apply(
            "adafactor", label, [weight, unit], norms, size=prod(shape), **settings
        )
        return [*new, *moments]
