"""Muon: orthogonal steps of matrices, and Adam's of other weights."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer, nonnegative, real, unit_interval
from memcfg.nn.optimizers._optimizer import Optimizer, Updates, common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.nn._network import Weight
    from memcfg.nn.optimizers.schedules import LearningRateSchedule

__all__ = ["Muon"]

_LEAST = 1e-7  # added to the norm that is divided by, as in Keras


class Muon(Optimizer):
    """Muon: the momentum of a matrix made orthogonal, and Adam for other weights.

    Matrices are all weights of two axes but embeddings and excluded layers. A
    Newton-Schulz iteration of matrix products brings the singular values of the
    momentum close to 1.

    Parameters
    ----------
    learning_rate : float or LearningRateSchedule, default 0.001
        The learning rate, zero or more, or a schedule.
    adam_beta_1, adam_beta_2 : float, default 0.9 and 0.999
        The factors of Adam's moments, in ``[0, 1)``.
    adam_weight_decay : float, default 0.004
        The weight decay of the weights that Adam updates.
    epsilon : float, default 1e-7
        Adam's constant for numerical stability, zero or more.
    weight_decay : float, default 0.004
        The weight decay of the matrices.
    clipnorm, clipvalue, global_clipnorm : float, optional
        As for `Optimizer`.
    use_ema, ema_momentum, ema_overwrite_frequency, loss_scale_factor : optional
        As for `Optimizer`.
    gradient_accumulation_steps, name : optional
        As for `Optimizer`.
    exclude_layers : sequence of str, optional
        Regular expressions. Adam updates the weights whose names contain a match.
    exclude_embeddings : bool, default True
        Whether Adam updates the weights with ``"embedding"`` in their names.
    muon_a, muon_b, muon_c : float, default 3.4445, -4.775 and 2.0315
        The coefficients of the iteration ``a X + b X X' X + c (X X')² X``.
    adam_lr_ratio : float, default 1
        The learning rate of Adam by that of the matrices, above 0.
    momentum : float, default 0.95
        The factor of the old momentum at each update, in ``[0, 1)``.
    ns_steps : int, default 5
        The number of iterations.
    nesterov : bool, default True
        Whether the gradient is added once more, as Nesterov's momentum does.
    rms_rate : float or None, default 0.2
        A step is multiplied by this and the root of its longer side, which makes it as
        large as Adam's. None: it stays as it is.

    References
    ----------
    Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024.

    Liu et al., "Muon is scalable for LLM training", arXiv:2502.16982, 2025.
    """

    __slots__ = (
        "adam_beta_1",
        "adam_beta_2",
        "adam_lr_ratio",
        "adam_weight_decay",
        "epsilon",
        "exclude_embeddings",
        "exclude_layers",
        "momentum",
        "muon_a",
        "muon_b",
        "muon_c",
        "nesterov",
        "ns_steps",
        "rms_rate",
    )

    kind = "muon"
    _needs_means = True

    def __init__(
        self,
        learning_rate: float | LearningRateSchedule = 0.001,
        adam_beta_1: float = 0.9,
        adam_beta_2: float = 0.999,
        adam_weight_decay: float | None = 0.004,
        epsilon: float = 1e-7,
        weight_decay: float | None = 0.004,
        clipnorm: float | None = None,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
        use_ema: bool = False,
        ema_momentum: float = 0.99,
        ema_overwrite_frequency: int | None = None,
        loss_scale_factor: None = None,
        gradient_accumulation_steps: int | None = None,
        name: str | None = None,
        exclude_layers: Sequence[str] | None = None,
        exclude_embeddings: bool = True,
        muon_a: float = 3.4445,
        muon_b: float = -4.7750,
        muon_c: float = 2.0315,
        adam_lr_ratio: float = 1,
        momentum: float = 0.95,
        ns_steps: int = 5,
        nesterov: bool = True,
        rms_rate: float | None = 0.2,
    ) -> None:
        super().__init__(**common(locals()))
        self.adam_beta_1 = unit_interval(adam_beta_1, "Muon: adam_beta_1")
        self.adam_beta_2 = unit_interval(adam_beta_2, "Muon: adam_beta_2")
        decay = 0.0 if adam_weight_decay is None else adam_weight_decay
        self.adam_weight_decay = nonnegative(decay, "Muon: adam_weight_decay")
        self.epsilon = nonnegative(epsilon, "Muon: epsilon")
        if isinstance(exclude_layers, str):
            raise TypeError("Muon: exclude_layers is a list of regular expressions")
        self.exclude_layers = tuple(exclude_layers or ())
        self.exclude_embeddings = bool(exclude_embeddings)
        self.muon_a = real(muon_a, "Muon: muon_a")
        self.muon_b = real(muon_b, "Muon: muon_b")
        self.muon_c = real(muon_c, "Muon: muon_c")
        self.adam_lr_ratio = real(adam_lr_ratio, "Muon: adam_lr_ratio")
        if self.adam_lr_ratio <= 0:
            raise ValueError(
                f"Muon: adam_lr_ratio must be above 0, got {adam_lr_ratio!r}"
            )
        self.momentum = unit_interval(momentum, "Muon: momentum")
        self.ns_steps = integer(ns_steps, "Muon: ns_steps")
        self.nesterov = bool(nesterov)
        self.rms_rate = None if rms_rate is None else real(rms_rate, "Muon: rms_rate")

    def _is_matrix(self, name: str, shape: Sequence[int]) -> bool:
        """Return whether the steps of a weight are orthogonal, and not Adam's."""
        if len(shape) != 2 or (self.exclude_embeddings and "embedding" in name.lower()):
            return False
        return not any(re.search(each, name) for each in self.exclude_layers)

    def _slots_of(self, weight: Weight) -> dict[str, tuple[int, ...]]:
        if self._is_matrix(weight.name, weight.shape):
            return {"momentum": weight.shape}
        return {"momentum": weight.shape, "velocity": weight.shape}

    def _update(
        self,
        updates: Updates,
        name: str,
        operands: tuple[int, int],
        shared: Mapping[str, int],
    ) -> list[int]:
        del shared
        weight, gradient = operands
        if not self._is_matrix(name, updates.builder.shape(weight)):
            return self._adam(updates, name, weight, gradient)
        label = f"{self.kind}/{name}"
        momentum = updates.state[f"{label}/momentum"]
        (moved,) = updates.apply(
            "muon_momentum", f"{label}/moved", [momentum, gradient]
        )
        ahead = moved
        if self.nesterov:
            ahead = _weighted(updates, label, (moved, self.momentum), (gradient, 1.0))
        unit = self._orthogonal(updates, label, ahead)
        longer = max(updates.builder.shape(weight))
        factor = 1.0 if self.rms_rate is None else self.rms_rate * longer**0.5
        settings: dict[str, Any] = {"weight_decay": self.weight_decay or 0.0}
        settings |= self._decay(name) | {"factor": factor}
        new = updates.apply("muon", label, [weight, unit], **settings)
        return [*new, moved]

    def _adam(
        self, updates: Updates, name: str, weight: int, gradient: int
    ) -> list[int]:
        """Append Adam's update."""
        label, ratio = f"{self.kind}/{name}", self.adam_lr_ratio
        slots = [updates.state[f"{label}/{slot}"] for slot in ("momentum", "velocity")]
        if ratio != 1:
            how = {"factor": ratio, "term": -0.0}
            rate = updates.backward("affine", f"{label}/rate", [updates.rate], **how)
            updates = replace(updates, rate=rate)
        settings: dict[str, Any] = {
            "beta_1": self.adam_beta_1,
            "beta_2": self.adam_beta_2,
            "weight_decay": self.adam_weight_decay / ratio,  # of the other rate
        }
        settings |= self._decay(name)
        inputs = [weight, gradient, *slots]
        return list(updates.apply("adam", label, inputs, **settings))

    def _orthogonal(self, updates: Updates, label: str, matrix: int) -> int:
        """Append the iterations on a matrix, which is the wider way."""

        def append(kind: str, *inputs: int, **attributes: Any) -> int:
            return updates.backward(kind, f"{label}/{kind}", inputs, **attributes)

        rows, columns = updates.builder.shape(matrix)
        x = append("transpose", matrix, axes=(1, 0)) if rows > columns else matrix
        length = append("affine", append("norm", x), factor=1.0, term=_LEAST)
        x = append("scale", x, append("quotient", length, number=1.0))
        for _ in range(self.ns_steps):
            square = append("matmul", x, x, transpose_b=True)
            fourth = append("matmul", square, square)
            pair = (square, self.muon_b), (fourth, self.muon_c)
            product = append("matmul", _weighted(updates, label, *pair), x)
            x = _weighted(updates, label, (x, self.muon_a), (product, 1.0))
        return append("transpose", x, axes=(1, 0)) if rows > columns else x


def _weighted(updates: Updates, label: str, *terms: tuple[int, float]) -> int:
    """Append the sum of tensors times numbers."""
    parts = [
        tensor
        if factor == 1
        else updates.backward(
            "affine", f"{label}/part", [tensor], factor=factor, term=-0.0
        )
        for tensor, factor in terms
    ]
    return updates.backward("add", f"{label}/sum", parts)
