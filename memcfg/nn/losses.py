"""What training minimises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn._attributes import FixedAttributes, check_name, snake_case

if TYPE_CHECKING:
    from memcfg.graph import Builder
    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["Loss", "SparseCategoricalCrossentropy", "Target"]

_PASS = "pass SparseCategoricalCrossentropy(from_logits=True)"


class Target(NamedTuple):
    """What y is converted to for a loss or a metric.

    Parameters
    ----------
    shape : tuple of int
        Of one sample; ``()`` for a label.
    dtype : str
        ``"int32"`` for labels, or ``"float32"``.
    classes : int or None
        Labels are checked to be below it.
    """

    shape: tuple[int, ...]
    dtype: str
    classes: int | None


class Loss(FixedAttributes):
    """Base class of the losses.

    Parameters
    ----------
    name : str, optional
        None: that of the class, as ``"sparse_categorical_crossentropy"``.
    reduction : str, default "sum_over_batch_size"
        How the losses of the samples become one number.

    Raises
    ------
    ValueError
        If the reduction is not known, or leaves more than one number.
    """

    __slots__ = ("name", "reduction")

    def __init__(
        self, name: str | None = None, reduction: str = "sum_over_batch_size"
    ) -> None:
        if reduction != "sum_over_batch_size":
            raise ValueError(
                f"the reduction of a loss is 'sum_over_batch_size', not {reduction!r}"
            )
        self.name = (
            snake_case(type(self).__name__) if name is None else check_name(name)
        )
        self.reduction = reduction

    def target(self, output: SymbolicTensor) -> Target:
        """Return what y is of one sample.

        Parameters
        ----------
        output : SymbolicTensor
            The model's output that the loss reads.

        Returns
        -------
        Target
            Shape, dtype and number of classes.

        Raises
        ------
        ValueError
            If the loss cannot read such an output.
        """
        raise NotImplementedError

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> int:
        """Append the ops of the loss.

        Parameters
        ----------
        builder : Builder
            Collects the ops; its `training` says whether gradients are asked for.
        y_true, y_pred : int
            Ids of the targets of a batch and of the model's output.
        sample_weight : int or None
            Id of a float32 tensor of shape ``(batch,)``, with a mask
            ``(batch, time)``; None: all weigh the same.

        Returns
        -------
        int
            The id of one number.
        """
        raise NotImplementedError

    def _settings(self) -> dict[str, Any]:
        usual = {
            "name": snake_case(type(self).__name__),
            "reduction": "sum_over_batch_size",
        }
        found = super()._settings()
        own = {name: value for name, value in found.items() if name not in usual}
        return own | {n: found[n] for n in usual if found[n] != usual[n]}


class SparseCategoricalCrossentropy(Loss):
    """Mean cross-entropy of softmax(logits) against integer labels.

    ``loss = mean(log(sum(exp(logits))) - logits[label])`` over the batch, computed
    so that large logits do not overflow.

    Parameters
    ----------
    from_logits : bool, default False
        Keras's default is False, which cannot be honoured: pass True, and let the
        model end in logits without a softmax.
    reduction : str, default "sum_over_batch_size"
        As of `Loss`.
    name : str, default "sparse_categorical_crossentropy"
        The loss's name.

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

    def __init__(
        self,
        from_logits: bool = False,
        *,
        reduction: str = "sum_over_batch_size",
        name: str | None = "sparse_categorical_crossentropy",
    ) -> None:
        super().__init__(name, reduction)
        if from_logits is not True:
            raise ValueError(
                "SparseCategoricalCrossentropy works on logits: let the model end "
                "without a softmax and pass from_logits=True"
            )
        self.from_logits = True

    def target(self, output: SymbolicTensor) -> Target:
        """Return a label of one of as many classes as there are logits."""
        if len(output.sample_shape) != 1:
            raise ValueError(
                f"the model's output, of layer {output.name!r}, has shape "
                f"{output.shape}, but cross-entropy reads logits (None, classes): end "
                "with Flatten or GlobalAveragePooling2D and Dense"
            )
        return Target((), "int32", output.sample_shape[0])

    def trace(
        self, builder: Builder, y_true: int, y_pred: int, sample_weight: int | None
    ) -> int:
        """Append the op of the loss."""
        if sample_weight is not None:
            raise ValueError(f"{self!r} does not weigh samples yet")
        kind = "softmax_cross_entropy" + ("" if builder.training else "_inference")
        return builder.apply(kind, (y_pred, y_true), name="loss")[0]


def get_loss(loss: Any) -> Loss:
    """Return the loss that an entry of `compile`'s argument means."""
    if loss == "sparse_categorical_crossentropy":
        raise ValueError(
            f"the loss {loss!r} reads probabilities, as in Keras, and only logits are "
            f"supported: let the model end without a softmax and {_PASS}"
        )
    if isinstance(loss, str):
        raise ValueError(f"unknown loss {loss!r}: {_PASS}")
    if not isinstance(loss, Loss):
        raise TypeError(
            f"a loss is SparseCategoricalCrossentropy(from_logits=True), not {loss!r}"
        )
    return loss
