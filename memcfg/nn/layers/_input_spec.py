"""`InputSpec`: the inputs that a user's layer accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["InputSpec", "check_inputs"]


class InputSpec:
    """The rank, the lengths and the type of an input of a layer.

    A layer with ``call`` that has one, or a list of them, as attribute ``input_spec``
    is called on such tensors alone. The batch is axis 0.

    Parameters
    ----------
    dtype : str, optional
        The type, such as ``"float32"``.
    shape : sequence of (int or None), optional
        The lengths of all axes, None for any.
    ndim, max_ndim, min_ndim : int, optional
        The number of axes, or its bounds.
    axes : dict of int to (int or None), optional
        The lengths of some axes.
    allow_last_axis_squeeze : bool, default False
        Whether a last axis of length 1 may be there or not.
    name : str, optional
        The name of the input in errors.
    optional : bool, default False
        Taken as in Keras; inputs of models are all required.

    Raises
    ------
    TypeError
        If `axes` is not a dict of integers.
    ValueError
        If an axis is beyond the number of axes.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.layers.InputSpec(ndim=3, axes={-1: 8})
    InputSpec(ndim=3, axes={-1: 8})
    """

    __slots__ = (
        "allow_last_axis_squeeze",
        "axes",
        "dtype",
        "max_ndim",
        "min_ndim",
        "name",
        "ndim",
        "optional",
        "shape",
    )

    def __init__(
        self,
        dtype: str | None = None,
        shape: Any = None,
        ndim: int | None = None,
        max_ndim: int | None = None,
        min_ndim: int | None = None,
        axes: Any = None,
        allow_last_axis_squeeze: bool = False,
        name: str | None = None,
        optional: bool = False,
    ) -> None:
        self.dtype = dtype
        self.shape = None if shape is None else tuple(shape)
        self.ndim = ndim if self.shape is None else len(self.shape)
        self.max_ndim = max_ndim
        self.min_ndim = min_ndim
        self.allow_last_axis_squeeze = bool(allow_last_axis_squeeze)
        self.name = name
        self.optional = bool(optional)
        if not isinstance(axes or {}, dict):
            raise TypeError(f"InputSpec: axes must be a dict of integers, got {axes!r}")
        self.axes = {
            integer(key, "InputSpec: a key of axes", None): value
            for key, value in (axes or {}).items()
        }
        most = self.max_ndim if self.ndim is None else self.ndim
        if most is not None and self.axes and max(self.axes) >= most:
            raise ValueError(
                f"InputSpec: axis {max(self.axes)} is beyond the {most} axes"
            )

    def __repr__(self) -> str:
        names = ("dtype", "shape", "ndim", "max_ndim", "min_ndim", "axes")
        given = [(name, getattr(self, name)) for name in names]
        shown = [f"{name}={value!r}" for name, value in given if value]
        if self.shape is not None:
            shown = [each for each in shown if not each.startswith("ndim=")]
        return f"InputSpec({', '.join(shown)})"

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor.

        Returns
        -------
        dict
            The arguments by name.
        """
        return {name: getattr(self, name) for name in self.__slots__}

    def fault(self, shape: Sequence[int | None], dtype: str) -> str | None:
        """Return what is wrong with a tensor, if anything.

        Parameters
        ----------
        shape : sequence of (int or None)
            Its lengths with the batch, None for any.
        dtype : str
            Its type.

        Returns
        -------
        str or None
            What was expected.
        """
        rank = len(shape)
        squeezed = self.allow_last_axis_squeeze
        if self.ndim is not None and rank != self.ndim and not squeezed:
            return f"ndim={self.ndim}"
        if self.max_ndim is not None and rank > self.max_ndim:
            return f"max_ndim={self.max_ndim}"
        if self.min_ndim is not None and rank < self.min_ndim:
            return f"min_ndim={self.min_ndim}"
        if self.dtype is not None and dtype != self.dtype:
            return f"dtype={self.dtype}"
        for axis, length in self.axes.items():
            if not -rank <= axis < rank or not _same(length, shape[axis]):
                return f"axis {axis} of length {length}"
        if self.shape is not None:
            wanted, found = self.shape, tuple(shape)
            if squeezed:
                wanted, found = _squeezed(wanted), _squeezed(found)
            if len(wanted) != len(found) or not all(map(_same, wanted, found)):
                return f"shape={self.shape}"
        return None


def _squeezed(shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
    return shape[:-1] if shape[-1:] == (1,) else shape


def _same(wanted: int | None, found: int | None) -> bool:
    return wanted is None or found is None or wanted == found


def check_inputs(specs: Any, tensors: Sequence[Any], layer: str) -> None:
    """Raise ValueError if tensors are not as the specs of a layer say."""
    several = list(specs) if isinstance(specs, list | tuple) else [specs]
    several = [each for each in several if each is None or not each.optional]
    if len(several) != len(tensors):
        raise ValueError(
            f"layer {layer!r} expects {len(several)} inputs, as its input_spec says, "
            f"and was called on {len(tensors)}"
        )
    for number, (spec, tensor) in enumerate(zip(several, tensors, strict=True)):
        fault = spec and spec.fault(tensor.shape, tensor.dtype)
        if fault:
            called = f" ({spec.name!r})" if spec.name else ""
            raise ValueError(
                f"layer {layer!r}: input {number}{called} is incompatible with the "
                f"layer: expected {fault}, found {tensor.dtype} of shape {tensor.shape}"
            )
