"""Where a functional model begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn._argument_checks import positive_int
from memcfg.nn.layers._layer import Layer, Scope
from memcfg.nn.layers._symbolic import Node, Shape, SymbolicTensor

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Input", "InputLayer", "sample_shape"]


class InputLayer(Layer):
    """The layer that stands for a model's input; made by `Input`.

    Parameters
    ----------
    shape : tuple of int
        The shape of one sample.
    name : str, optional
        Unique within a model.
    """

    __slots__ = ("shape",)

    arity: ClassVar[int | None] = 0

    def __init__(self, shape: Shape, name: str | None = None) -> None:
        super().__init__(name)
        self.shape = shape

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the tensor of the data itself.

        Parameters
        ----------
        scope : Scope
            Not used.
        inputs : sequence of int
            The id of the data.

        Returns
        -------
        int
            The same id.
        """
        return inputs[0]


def Input(  # noqa: N802  (Keras's name)
    shape: Sequence[int], dtype: str | None = None, name: str | None = None
) -> SymbolicTensor:
    """Return the symbolic tensor from which a model starts.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample, without the batch; every length is known.
    dtype : str, optional
        Only ``"float32"`` or None.
    name : str, optional
        The name of the input layer.

    Returns
    -------
    SymbolicTensor
        To call layers on.

    Raises
    ------
    TypeError
        If `shape` is not a sequence of integers.
    ValueError
        If a length is None or not positive, or `dtype` is another one.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Input((28, 28, 1)).shape
    (None, 28, 28, 1)
    """
    if dtype not in (None, "float32"):
        raise ValueError(f"an Input is float32, not {dtype!r}")
    layer = InputLayer(sample_shape(shape), name)
    return Node(layer, (), layer.shape).output


def sample_shape(shape: Any) -> Shape:
    """Return a sample's shape as a tuple.

    Parameters
    ----------
    shape : sequence of int
        What was given.

    Returns
    -------
    tuple of int
        The shape.

    Raises
    ------
    TypeError
        If it is not a sequence of integers.
    ValueError
        If it is empty, or a length is None or not positive.
    """
    if not isinstance(shape, list | tuple):
        raise TypeError(
            f"a shape is a tuple such as (28, 28, 1), without the batch; got {shape!r}"
        )
    if not shape or None in shape:
        raise ValueError(
            f"every length of a sample's shape must be known, and the batch is left "
            f"out: write (28, 28, 1), got {tuple(shape)!r}"
        )
    return tuple(positive_int(length, "a length of a shape") for length in shape)
