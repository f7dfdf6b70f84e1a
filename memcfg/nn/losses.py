"""What training minimises, and what is counted beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._attributes import Settled

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SparseCategoricalCrossentropy"]

_METRICS = ("accuracy", "sparse_categorical_accuracy")


class SparseCategoricalCrossentropy(Settled):
    """Mean cross-entropy of softmax(logits) against integer labels.

    ``loss = mean(log(sum(exp(logits))) - logits[label])`` over the batch, computed
    so that large logits do not overflow.

    Parameters
    ----------
    from_logits : bool, default False
        Keras's default is False, which cannot be honoured: pass True, and let the
        model end in logits without a softmax.

    Raises
    ------
    ValueError
        If `from_logits` is False.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    SparseCategoricalCrossentropy(from_logits=True)
    """

    __slots__ = ("from_logits",)

    def __init__(self, from_logits: bool = False) -> None:
        if from_logits is not True:
            raise ValueError(
                "SparseCategoricalCrossentropy works on logits: let the model end "
                "without a softmax and pass from_logits=True"
            )
        self.from_logits = True

    def __repr__(self) -> str:
        return "SparseCategoricalCrossentropy(from_logits=True)"


def get_loss(loss: Any) -> SparseCategoricalCrossentropy:
    """Return the loss that `compile`'s argument means.

    Parameters
    ----------
    loss : SparseCategoricalCrossentropy
        The object. Keras's string ``"sparse_categorical_crossentropy"`` means
        ``from_logits=False`` and is refused with the same words.

    Returns
    -------
    SparseCategoricalCrossentropy
        The object.

    Raises
    ------
    TypeError
        If it is not a loss.
    ValueError
        If it is a string.
    """
    if loss == "sparse_categorical_crossentropy":
        return SparseCategoricalCrossentropy(from_logits=False)
    if isinstance(loss, str):
        raise ValueError(
            f"unknown loss {loss!r}; known: "
            "SparseCategoricalCrossentropy(from_logits=True)"
        )
    if not isinstance(loss, SparseCategoricalCrossentropy):
        raise TypeError(
            f"a loss is SparseCategoricalCrossentropy(from_logits=True), not {loss!r}"
        )
    return loss


def get_metrics(metrics: Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the metrics that `compile`'s argument means.

    Parameters
    ----------
    metrics : sequence of str, or None
        Of ``"accuracy"`` and ``"sparse_categorical_accuracy"``, which are the same
        number under two names.

    Returns
    -------
    tuple of str
        The names.

    Raises
    ------
    TypeError
        If it is not a list of strings.
    ValueError
        If a name is unknown or stands twice.
    """
    if metrics is None:
        return ()
    if not isinstance(metrics, list | tuple):
        raise TypeError(f"metrics is a list such as ['accuracy'], not {metrics!r}")
    for metric in metrics:
        if not isinstance(metric, str):
            raise TypeError(f"a metric is a name such as 'accuracy', not {metric!r}")
        if metric not in _METRICS:
            raise ValueError(f"unknown metric {metric!r}; known: {', '.join(_METRICS)}")
    if len(set(metrics)) != len(metrics):
        raise ValueError(f"a metric stands twice in {list(metrics)!r}")
    return tuple(metrics)
