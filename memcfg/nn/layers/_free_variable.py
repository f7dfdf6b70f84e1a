"""`Variable`: a weight that belongs to no layer until one has it as an attribute."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.initializers import Constant
from memcfg.nn.initializers import get as get_initializer
from memcfg.nn.layers._layer import Variable as LayerVariable
from memcfg.nn.layers._layer import WeightSpec, as_weight, weight_dtype
from memcfg.nn.layers._operators import Parameter

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Variable"]

_DOUBLES = ("float64", "float", float, np.float64)  # which are float32 here


class Variable(LayerVariable):
    """A weight with a value, for functions and for layers of one's own.

    A layer or a model that has it as an attribute trains and saves it.

    Parameters
    ----------
    initializer : array_like, Initializer or str
        The value, or what makes it.
    shape : sequence of int, optional
        The shape, which an initializer needs.
    dtype : {"float32", "int32"}, optional
        None is ``"float32"``, and so is ``"float64"``. Integers do not train.
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
        kept = weight_dtype(None if dtype in _DOUBLES else dtype)
        trains = trainable and kept == "float32"
        value: Any = None
        if isinstance(initializer, str) or callable(initializer):
            if shape is None:
                raise ValueError(
                    "Variable: an initializer needs a shape: Variable('zeros', (3,))"
                )
            start, lengths = get_initializer(initializer), tuple(shape)
        else:
            value = as_weight(initializer, kept)
            if shape is not None and prod(shape) == value.size:
                value = value.reshape(tuple(shape))
            start = Constant(value if value.ndim else value.item())
            lengths = value.shape
        holder = Parameter(lengths, trains, name=name)
        spec = WeightSpec("value", lengths, start, trains, kept)
        holder._weight_specs = (spec,)
        super().__init__(holder, 0, holder.name)
        if kept == "int32" and value is not None:
            self.assign(value)  # which initializers would round to float32
