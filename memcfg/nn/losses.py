"""What training minimises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._attributes import FixedAttributes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Builder
    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["SparseCategoricalCrossentropy"]

_PASS = "pass SparseCategoricalCrossentropy(from_logits=True)"


class SparseCategoricalCrossentropy(FixedAttributes):
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

    def classes(self, outputs: Sequence[SymbolicTensor]) -> int:
        """Return how many classes labels choose from.

        Parameters
        ----------
        outputs : sequence of SymbolicTensor
            The model's.

        Returns
        -------
        int
            The number of logits of a sample.

        Raises
        ------
        ValueError
            If there are several outputs, or it is none of logits.
        """
        if len(outputs) != 1:
            raise ValueError(
                f"the model has {len(outputs)} outputs, and a loss reads one: train a "
                "model of one output, and predict with a model of all of them"
            )
        (output,) = outputs
        if len(output.sample_shape) != 1:
            raise ValueError(
                f"the model's output, of layer {output.name!r}, has shape "
                f"{output.shape}, but cross-entropy reads logits (None, classes): end "
                "with Flatten or GlobalAveragePooling2D and Dense"
            )
        return output.sample_shape[0]

    def label_spec(self, batch_size: int) -> tuple[tuple[int, ...], str]:
        """Tell what a batch of labels is.

        Parameters
        ----------
        batch_size : int
            How many samples it has.

        Returns
        -------
        tuple of (tuple of int, str)
            Shape and dtype.
        """
        return (batch_size,), "int32"

    def trace(
        self, builder: Builder, output: int, labels: int, *, training: bool
    ) -> int:
        """Append the op of the loss.

        Parameters
        ----------
        builder : Builder
            Collects the ops.
        output, labels : int
            Ids of the model's output and of the labels.
        training : bool
            Whether gradients are asked for.

        Returns
        -------
        int
            The id of one number, the mean over the batch.
        """
        kind = "softmax_cross_entropy" + ("" if training else "_inference")
        return builder.apply(kind, (output, labels), name="loss")[0]


def get_loss(loss: Any) -> SparseCategoricalCrossentropy:
    """Return the loss that `compile`'s argument means."""
    if loss == "sparse_categorical_crossentropy":
        raise ValueError(
            f"the loss {loss!r} reads probabilities, as in Keras, and only logits are "
            f"supported: let the model end without a softmax and {_PASS}"
        )
    if isinstance(loss, str):
        raise ValueError(f"unknown loss {loss!r}: {_PASS}")
    if not isinstance(loss, SparseCategoricalCrossentropy):
        raise TypeError(
            f"a loss is SparseCategoricalCrossentropy(from_logits=True), not {loss!r}"
        )
    return loss
