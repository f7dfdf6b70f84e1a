"""Adam and its variants: steps scaled by moments of the gradient."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._argument_checks import nonnegative, unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, Updates, common

if TYPE_CHECKING:
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Adam", "AdamW", "Adamax", "Nadam"]


def _set_moments(
    optimizer: Adam | AdamW | Adamax | Nadam,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> None:
    kind = type(optimizer).__name__
    optimizer.beta_1 = unit_interval(beta_1, f"{kind}: beta_1")
    optimizer.beta_2 = unit_interval(beta_2, f"{kind}: beta_2")
    optimizer.epsilon = nonnegative(epsilon, f"{kind}: epsilon")


class Adam(Optimizer):
    """Adam: steps scaled by moving averages of the gradient and of its square.

    With ``t`` the number of the update, from 1,
    ``m += (g - m) * (1 - beta_1)``, ``v += (g² - v) * (1 - beta_2)``,
    ``w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m /
    (sqrt(v) + epsilon)``.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    beta_1, beta_2 : float, default 0.9 and 0.999
        The factors of the old moments at each update, in ``[0, 1)``.
    epsilon : float, default 1e-7
        A constant for numerical stability, zero or more.
    amsgrad : bool, default False
        Whether to use the maximum of ``v`` so far, a third state tensor, in its place.
    weight_decay, clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015. Reddi, Kale
    and Kumar, "On the convergence of Adam and beyond", ICLR 2018.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Adam().learning_rate
    0.001
    """

    __slots__ = ("amsgrad", "beta_1", "beta_2", "epsilon")

    beta_1: float
    beta_2: float
    epsilon: float

    kind = "adam"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
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
        _set_moments(self, beta_1, beta_2, epsilon)
        self.amsgrad = bool(amsgrad)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return ("m", "v", "v_hat") if self.amsgrad else ("m", "v")

    @property
    def _op(self) -> str:
        return "adam_amsgrad" if self.amsgrad else "adam"


class AdamW(Optimizer):
    """Adam with decoupled weight decay.

    The `weight_decay` of the other optimizers is decoupled, too.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    weight_decay : float, default 0.004
        As for `Optimizer`; not None.
    beta_1, beta_2 : float, default 0.9 and 0.999
        The factors of the old moments at each update, in ``[0, 1)``.
    epsilon : float, default 1e-7
        A constant for numerical stability, zero or more.
    amsgrad : bool, default False
        Whether to use the maximum of ``v`` so far, a third state tensor, in its place.
    clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.

    References
    ----------
    Loshchilov and Hutter, "Decoupled weight decay regularization", ICLR 2019.
    """

    __slots__ = ("amsgrad", "beta_1", "beta_2", "epsilon")

    beta_1: float
    beta_2: float
    epsilon: float

    kind = "adamw"

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        weight_decay: float | None = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
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
        _set_moments(self, beta_1, beta_2, epsilon)
        self.amsgrad = bool(amsgrad)
        if self.weight_decay is None:
            raise ValueError(
                "AdamW: weight_decay must be a number; for no decay use Adam"
            )

    slots = Adam.slots
    _op = Adam._op


class Adamax(Optimizer):
    """Adam with a decaying maximum of the absolute gradient as second moment.

    ``m += (g - m) * (1 - beta_1)``, ``u = max(beta_2 * u, |g|)``,
    ``w -= learning_rate / (1 - beta_1^t) * m / (u + epsilon)``.

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
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015, section 7.
    """

    __slots__ = ("beta_1", "beta_2", "epsilon")

    beta_1: float
    beta_2: float
    epsilon: float

    kind = "adamax"

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
        _set_moments(self, beta_1, beta_2, epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "m", "u"


class Nadam(Optimizer):
    """Adam with Nesterov's momentum.

    The momentum of update ``t`` is ``beta_1 * (1 - 0.96^t / 2)``. The product of all
    momenta is a state scalar.

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
    Dozat, "Incorporating Nesterov momentum into Adam", ICLR workshop 2016.
    """

    __slots__ = ("beta_1", "beta_2", "epsilon")

    beta_1: float
    beta_2: float
    epsilon: float

    kind = "nadam"

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
        _set_moments(self, beta_1, beta_2, epsilon)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state tensors of each weight."""
        return "m", "v"

    @property
    def _shared(self) -> dict[str, float]:
        return {"product": 1.0}

    def _update_shared(self, updates: Updates) -> dict[str, int]:
        name = f"{self.kind}/product"
        before = [updates.state[name]]
        (product,) = updates.apply("nadam_product", f"{name}/moved", before)
        return {"product": product}
