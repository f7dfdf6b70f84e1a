"""Gradient descent with and without momentum: SGD and Lion."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, common

if TYPE_CHECKING:
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["SGD", "Lion"]


class SGD(Optimizer):
    """Gradient descent, optionally with momentum.

    Without momentum ``w -= learning_rate * g``. With momentum
    ``v = momentum * v - learning_rate * g`` and ``w += v``, or with Nesterov's momentum
    ``w += momentum * v - learning_rate * g``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.01
        The learning rate, zero or more, or a schedule.
    momentum : float, default 0.0
        The momentum, in ``[0, 1)``.
    nesterov : bool, default False
        Whether to use Nesterov's momentum; `momentum` must be above 0.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Sutskever, Martens, Dahl and Hinton, "On the importance of initialization and
    momentum in deep learning", ICML 2013.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.SGD(0.05, momentum=0.9)
    SGD(learning_rate=0.05, momentum=0.9, nesterov=False)
    """

    __slots__ = ("momentum", "nesterov")

    kind = "sgd"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
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
        self.momentum = unit_interval(momentum, "SGD: momentum")
        self.nesterov = bool(nesterov)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD: nesterov=True needs a momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return ("momentum",) if self.momentum else ()

    @property
    def _op(self) -> str:
        return "sgd_momentum" if self.momentum else "sgd"


class Lion(Optimizer):
    """Lion: steps in the direction of the sign of a momentum.

    ``w -= learning_rate * sign(beta_1 * m + (1 - beta_1) * g)`` and then
    ``m = beta_2 * m + (1 - beta_2) * g``. The state is half as large as Adam's.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    beta_1 : float, default 0.9
        The factor of the momentum in the step, above 0 and below 1.
    beta_2 : float, default 0.99
        The factor of the old momentum at each update, in ``[0, 1)``.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Chen et al., "Symbolic discovery of optimization algorithms", NeurIPS 2023.
    """

    __slots__ = ("beta_1", "beta_2")

    kind = "lion"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
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
        self.beta_1 = unit_interval(beta_1, "Lion: beta_1")
        self.beta_2 = unit_interval(beta_2, "Lion: beta_2")
        if self.beta_1 == 0:
            raise ValueError(
                "Lion: beta_1 must be above 0; with 0 it would be sign SGD"
            )

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return ("m",)
