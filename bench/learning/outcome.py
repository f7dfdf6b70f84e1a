"""What training a task gives, and how both sides start from the same weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Outcome", "digits", "outcome_of", "start_alike", "stepper"]


@dataclass(frozen=True)
class Outcome:
    """The score on data that were not trained on, the bits of weights, and a plan."""

    score: float
    weights: str  # a hash
    keep_all_bytes: int | None = None  # if every tensor had its own buffer
    peak_bytes: int | None = None


def outcome_of(score: float, models: Sequence[Any], plan: Any) -> Outcome:
    """Return the outcome of models; Keras has no plan."""
    code = hashlib.sha256()
    for model in models:
        for weight in model.get_weights():
            code.update(np.ascontiguousarray(weight).tobytes())
    if plan is None:
        return Outcome(float(score), code.hexdigest())
    return Outcome(
        float(score), code.hexdigest(), plan.summary.all_bytes, plan.peak_bytes
    )


def start_alike(models: Sequence[Any], seed: int = 0) -> None:
    """Draw all weights anew by NumPy: matrices by their width, vectors stay."""
    generator = np.random.default_rng(seed)
    for model in models:
        values = []
        for weight in model.get_weights():
            if np.ndim(weight) > 1:
                width = np.sqrt(2.0 / (np.prod(np.shape(weight)[:-1]) + 1))
                drawn = generator.uniform(-1, 1, np.shape(weight)) * width * 1.5
                values.append(drawn.astype(np.float32))
            else:
                values.append(np.asarray(weight))
        model.set_weights(values)


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's 1,797 digits, (n, 8, 8, 1) from 0 to 1, and labels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    images = (x / 16).astype(np.float32).reshape(-1, 8, 8, 1)
    return images[order], y[order].astype(np.int32)


def stepper(loss_of: Any, model: Any, optimizer: Any, own: bool) -> Any:
    """Return a function that updates a model by the gradients of a loss of its data."""
    if own:
        import memcfg as mc

        @mc.function
        def step(*data: Any) -> Any:
            with mc.GradientTape() as tape:
                loss = loss_of(*data)
            weights = model.trainable_variables
            optimizer.apply(tape.gradient(loss, weights), weights)
            return loss

        return step

    from keras import ops

    def train_step(*data: Any) -> Any:
        model.zero_grad()
        loss = loss_of(*map(ops.convert_to_tensor, data))
        loss.backward()
        weights = model.trainable_variables
        optimizer.apply([each.value.grad for each in weights], weights)
        return loss

    return train_step
