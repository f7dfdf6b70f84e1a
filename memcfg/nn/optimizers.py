"""How gradients move weights: one op per weight, state beside it.

The learning rate is an input of the step: it can change without planning again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from memcfg._core import Counter
from memcfg.nn._argument_checks import nonnegative, unit_interval
from memcfg.nn._attributes import FixedAttributes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.graph import Builder

__all__ = ["SGD", "Adam", "Optimizer"]


class Optimizer(FixedAttributes):
    """Base class of the optimizers.

    Parameters
    ----------
    learning_rate : float
        Zero or more.
    """

    __slots__ = ("_iterations", "_learning_rate", "_owner")

    _advice = "set learning_rate between steps, or make another optimizer"

    kind = "optimizer"

    def __init__(self, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self._iterations = Counter()
        self._owner: weakref.ref[Any] | None = None

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state beside each weight."""
        return ()

    @property
    def learning_rate(self) -> float:
        """The factor of the next step; may be set between steps.

        Raises
        ------
        TypeError
            When set to what is not a number.
        ValueError
            When set to a negative number, or to what is not finite in float32.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = nonnegative(value, "learning_rate")

    @property
    def iterations(self) -> int:
        """How many steps this optimizer has made."""
        return self._iterations.value

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's attributes: its state, and the steps, are a model's."""
        return super().__getstate__() | {"_owner": None, "_iterations": Counter()}

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

    def update(
        self,
        builder: Builder,
        name: str,
        operands: Sequence[int],
        rate: Callable[[], int],
        step: Callable[[], int],
    ) -> tuple[int, ...]:
        """Append the update of one weight.

        Parameters
        ----------
        builder : Builder
            Where the op goes.
        name : str
            The op's name.
        operands : sequence of int
            Ids of the weight, its gradient and its state in the order of `slots`.
        rate, step : callable
            Return the id of the learning rate and of the counter of steps.

        Returns
        -------
        tuple of int
            Ids of the new weight and the new state.
        """
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        return {"learning_rate": self.learning_rate} | super()._settings()


class SGD(Optimizer):
    """Gradient descent, with momentum if asked.

    Without momentum ``w -= learning_rate * g``. With it
    ``v = momentum * v - learning_rate * g`` and ``w += v``, or with Nesterov's
    ``w += momentum * v - learning_rate * g``.

    Parameters
    ----------
    learning_rate : float, default 0.01
        Zero or more.
    momentum : float, default 0.0
        In ``[0, 1)``.
    nesterov : bool, default False
        Whether to look ahead; needs a momentum.

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
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(learning_rate)
        self.momentum = unit_interval(momentum, "SGD: momentum")
        self.nesterov = bool(nesterov)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD: nesterov=True needs a momentum above 0")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state beside each weight."""
        return ("momentum",) if self.momentum else ()

    def update(
        self,
        builder: Builder,
        name: str,
        operands: Sequence[int],
        rate: Callable[[], int],
        step: Callable[[], int],
    ) -> tuple[int, ...]:
        """Append the update of one weight."""
        del step
        kind, attributes = "sgd", {}
        if self.momentum:
            kind = "sgd_momentum"
            attributes = {"momentum": self.momentum, "nesterov": self.nesterov}
        inputs = (*operands, rate())
        return builder.apply(kind, inputs, attributes, name=name, phase="update")


class Adam(Optimizer):
    """Adam: steps scaled by moving moments of the gradient.

    With ``t`` the number of the step from 1,
    ``m += (g - m) * (1 - beta_1)``, ``v += (g² - v) * (1 - beta_2)``,
    ``w -= learning_rate * sqrt(1 - beta_2^t) / (1 - beta_1^t) * m /
    (sqrt(v) + epsilon)``.

    Parameters
    ----------
    learning_rate : float, default 0.001
        Zero or more.
    beta_1, beta_2 : float, default 0.9 and 0.999
        The part of each moment that stays at a step, in ``[0, 1)``.
    epsilon : float, default 1e-7
        Zero or more.

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Adam().learning_rate
    0.001
    """

    __slots__ = ("beta_1", "beta_2", "epsilon")

    kind = "adam"

    def __init__(
        self,
        learning_rate: float = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
    ) -> None:
        super().__init__(learning_rate)
        self.beta_1 = unit_interval(beta_1, "Adam: beta_1")
        self.beta_2 = unit_interval(beta_2, "Adam: beta_2")
        self.epsilon = nonnegative(epsilon, "Adam: epsilon")

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the state beside each weight."""
        return "m", "v"

    def update(
        self,
        builder: Builder,
        name: str,
        operands: Sequence[int],
        rate: Callable[[], int],
        step: Callable[[], int],
    ) -> tuple[int, ...]:
        """Append the update of one weight."""
        attributes = {
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }
        inputs = (*operands, rate(), step())
        return builder.apply("adam", inputs, attributes, name=name, phase="update")


def get_optimizer(optimizer: Any) -> Optimizer:
    """Return the optimizer that `compile`'s argument means."""
    if isinstance(optimizer, str):
        known: dict[str, Callable[[], Optimizer]] = {"sgd": SGD, "adam": Adam}
        if optimizer.lower() not in known:
            raise ValueError(f"unknown optimizer {optimizer!r}; known: 'sgd', 'adam'")
        return known[optimizer.lower()]()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(
            f"an optimizer is SGD(...), Adam(...), 'sgd' or 'adam', not {optimizer!r}"
        )
    return optimizer
