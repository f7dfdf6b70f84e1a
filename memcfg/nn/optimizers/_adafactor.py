"""Adafactor: second moments of rows and columns instead of elements."""

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
    """Adafactor: Adam's second moment in the memory of rows and columns.

    Of a weight of two axes or more it keeps mean squares of the gradient by row and by
    column of the last two axes, whose product stands for those of the elements; of any
    other weight the mean squares. There is no first moment.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        Zero or more, or what makes it of the number of the step.
    beta_2_decay : float, default -0.8
        Below 0; at update ``t`` the part ``1 - t^beta_2_decay`` of the means stays.
    epsilon_1 : float, default 1e-30
        Is added to squared gradients.
    epsilon_2 : float, default 1e-3
        The least size of a weight that steps are in proportion to.
    clip_threshold : float, default 1.0
        The greatest root mean square of a step before the learning rate.
    relative_step : bool, default True
        Keras's; the rate is at most ``1 / sqrt(t)`` with True and with False, there
        and here.
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
                f"Adafactor: beta_2_decay is below 0, not {beta_2_decay!r}"
            )
        if self.clip_threshold <= 0:
            raise ValueError(
                f"Adafactor: clip_threshold is above 0, not {clip_threshold!r}"
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
