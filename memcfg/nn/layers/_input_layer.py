"""`InputLayer` with Keras's arguments, for `Sequential`."""

from __future__ import annotations

from typing import Any

from memcfg.nn.layers import _layer


class _OfAnyInput(_layer._LayerType):
    """The layer that `Input` makes is an instance, too."""

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _layer.InputLayer)


class InputLayer(_layer.InputLayer, metaclass=_OfAnyInput):
    """The layer of a model's input, in first place of a `Sequential`.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample, without the batch.
    batch_size : int, optional
        The size of all batches.
    dtype : str, optional
        ``"float32"``, the default, or ``"int32"`` for indices.
    batch_shape : sequence of int, optional
        The batch size or None, followed by `shape`.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        As for `Input`.

    Examples
    --------
    >>> import memcfg as mc
    >>> start = mc.nn.layers.InputLayer(shape=(4,))
    >>> mc.nn.Sequential([start, mc.nn.Dense(2)]).output_shape
    (None, 2)
    """

    __slots__ = ("_tensor",)

    def __init__(
        self,
        shape: Any = None,
        batch_size: int | None = None,
        dtype: str | None = None,
        *,
        batch_shape: Any = None,
        name: str | None = None,
    ) -> None:
        like = _layer.Input(shape, batch_size, dtype, batch_shape=batch_shape)
        kind: Any = like.node.layer
        super().__init__(kind.shape, kind.dtype, name, kind.batch_size)
        self._tensor = _layer.Node(self, (), [(kind.shape, kind.dtype)]).outputs[0]

    @property
    def output(self) -> Any:
        """The symbolic tensor."""
        return self._tensor
