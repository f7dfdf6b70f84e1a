"""Functions of one's own as layers, and the layer that does nothing."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn.layers._layer import Layer, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["Identity", "Lambda"]


class Identity(Layer):
    """Return the input as it is.

    Parameters
    ----------
    name : str, optional
        The name, unique within a model.
    """

    __slots__ = ()

    supports_masking: ClassVar[bool] = True

    def __init__(self, *, name: str | None = None) -> None:
        super().__init__(name)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the input."""
        del scope
        return inputs[0]


class Lambda(Layer):
    """Apply a function of symbolic tensors, which is traced once for each shape.

    The function has no weights. A model with a `Lambda` is saved with the function's
    name, and whoever loads it passes the function: a lambda has no name to save.

    Parameters
    ----------
    function : callable
        ``function(inputs)`` returns a symbolic tensor or several, made with operators,
        layers and the functions of `memcfg.nn.ops`. It may also take ``mask`` and
        ``training``.
    output_shape : tuple of int or callable, optional
        The shape of the result without the batch, or a function of the input's shape
        with it. The shape follows from the function in any case; another one is an
        error.
    mask : callable, optional
        ``mask(inputs, mask)`` returns the mask of the result. By default there is none.
    arguments : dict, optional
        Further arguments of the function by name.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    TypeError
        If a function cannot be called.
    ValueError
        If the result has not the given shape.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Lambda(lambda x: x**2 - 1)(mc.nn.Input((3,))).shape
    (None, 3)
    """

    __slots__ = ("arguments", "function", "mask", "output_shape")

    def __init__(
        self,
        function: Callable[..., Any],
        output_shape: Any = None,
        mask: Callable[..., Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        for what, given in (("function", function), ("mask", mask or function)):
            if not callable(given):
                raise TypeError(f"Lambda: {what} must be a function, got {given!r}")
        if output_shape is not None and not callable(output_shape):
            given = output_shape
            output_shape = tuple(given) if isinstance(given, list | tuple) else (given,)
        self.function = function
        self.output_shape = output_shape
        self.mask = mask
        self.arguments = dict(arguments or {})
        super().__init__(name)

    def call(self, inputs: Any, mask: Any = None, training: bool | None = None) -> Any:
        """Call the function.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            The layer's inputs.
        mask : SymbolicTensor, optional
            The mask of the inputs.
        training : bool, optional
            Whether the model trains.

        Returns
        -------
        SymbolicTensor or sequence of SymbolicTensor
            The result.
        """
        takes = inspect.signature(self.function).parameters
        more = {"mask": mask, "training": training}
        more = {name: more[name] for name in more if name in takes}
        made = self.function(inputs, **self.arguments, **more)
        self._check_shape(inputs, made)
        return made

    def _check_shape(self, inputs: Any, made: Any) -> None:
        """Raise ValueError if the result has not the given shape."""
        wanted, shape = self.output_shape, getattr(made, "shape", None)
        if wanted is None or shape is None:
            return
        if callable(wanted):
            several = isinstance(inputs, list | tuple)
            wanted = wanted(
                [each.shape for each in inputs] if several else inputs.shape
            )
            wanted = tuple(wanted)[1:]
        if shape[1:] != wanted:
            raise ValueError(
                f"layer {self.name!r} (Lambda): the function returns samples of shape "
                f"{shape[1:]}, and output_shape says {wanted}"
            )

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Return the mask that the function of the constructor returns, or None.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            The layer's inputs.
        mask : SymbolicTensor or sequence of SymbolicTensor, optional
            The masks of the inputs.

        Returns
        -------
        SymbolicTensor, optional
            The mask.
        """
        return None if self.mask is None else self.mask(inputs, mask)
