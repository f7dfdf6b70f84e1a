"""`Variable`: a weight that belongs to no layer until one has it as an attribute."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.initializers import Constant
from memcfg.nn.initializers import get as get_initializer
from memcfg.nn.layers._layer import Variable as LayerVariable
from memcfg.nn.layers._layer import WeightSpec
from memcfg.nn.layers._operators import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Variable"]

_FLOATS = ("float32", "float64", "float")  # which are float32 here


class Variable(LayerVariable):
    """A weight with a value, for functions and for layers of one's own.

    A layer or a model that has it as an attribute trains and saves it. Its values are
    float32.

    Parameters
    ----------
    initializer : array_like, Initializer or str
        The value, or what makes it.
    shape : sequence of int, optional
        The shape, which an initializer needs.
    dtype : str, optional
        ``"float32"`` or None.
    trainable : bool, default True
        Whether training changes the weight.
    name : str, optional
        The name. None: ``variable`` with a number.

    Raises
    ------
    TypeError, ValueError
        If an initializer has no shape, or an argument is invalid.

    Examples
    --------
    >>> import memcfg as mc
    >>> scale = mc.nn.Variable([1.0, 2.0])
    >>> scale.assign_add([1.0, 1.0])
    >>> scale.value
    array([2., 3.], dtype=float32)
    """

    __slots__ = ()

    stands_alone = True

    def __init__(
        self,
        initializer: Any,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        trainable: bool = True,
        name: str | None = None,
    ) -> None:
        if dtype is not None and str(np.dtype(dtype)) not in _FLOATS:
            raise ValueError(f"Variable: weights are float32, got dtype={dtype!r}")
        if isinstance(initializer, str) or callable(initializer):
            if shape is None:
                raise ValueError(
                    "Variable: an initializer needs a shape: Variable('zeros', (3,))"
                )
            start, lengths = get_initializer(initializer), tuple(shape)
        else:
            value = np.asarray(initializer, np.float32)
            if shape is not None and prod(shape) == value.size:
                value = value.reshape(tuple(shape))
            start = Constant(value if value.ndim else value.item())
            lengths = value.shape
        holder = Parameter(lengths, trainable, name=name)
        spec = WeightSpec("value", lengths, start, trainable)
        holder._weight_specs = (spec,)
        super().__init__(holder, 0, holder.name)
