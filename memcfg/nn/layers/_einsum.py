"""A product with a kernel by Einstein's convention."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from memcfg.nn._argument_checks import activation_name, integer
from memcfg.nn.initializers import (
    GlorotNormal,
    GlorotUniform,
    HeNormal,
    HeUniform,
    Initializer,
    LecunNormal,
    LecunUniform,
    VarianceScaling,
    get_initializer,
)
from memcfg.nn.layers._activated import ActivationOf
from memcfg.nn.layers._basic import activate
from memcfg.nn.layers._layer import Scope, Shape, WeightSpec, show_shape
from memcfg.nn.layers._low_rank import _Adaptable

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

__all__ = ["EinsumDense", "for_units"]

_SCALED = (
    *(VarianceScaling, GlorotNormal, GlorotUniform, HeNormal, HeUniform),
    *(LecunNormal, LecunUniform),
)
_OTHERS = "αβγδεζηθικλμ"  # letters of the axes that ``...`` stands for


class _ForUnits(Initializer):
    """Initializer of a kernel some of whose axes are inputs, and the others units."""

    __slots__ = ("initializer", "inputs")

    def __init__(self, initializer: Initializer, inputs: int) -> None:
        self.initializer = initializer
        self.inputs = inputs  # the number of inputs of a unit

    @property
    def seed(self) -> int | None:  # type: ignore[override]
        """The seed that the caller fixed."""
        return self.initializer.seed

    def _draw_into(self, values: np.ndarray, seed: int) -> None:
        """Draw the kernel as a matrix of inputs and units."""
        matrix = (self.inputs, values.size // self.inputs)
        self.initializer.draw_into(values.reshape(matrix), seed)


def for_units(initializer: Initializer, inputs: int) -> Initializer:
    """Return an initializer that scales by the inputs of a unit, as Keras's do."""
    return (
        _ForUnits(initializer, inputs) if type(initializer) in _SCALED else initializer
    )


class _Terms(NamedTuple):
    """A letter for each axis of the input, the kernel, the output and the bias."""

    x: str
    kernel: str
    y: str
    bias: str
    lengths: dict[str, int]  # of all but the batch

    @property
    def batch(self) -> str:
        """The letter of the batch."""
        return self.x[0]

    def shape(self, term: str) -> Shape:
        """Return the lengths of a term's axes."""
        return tuple(self.lengths[each] for each in term)


class EinsumDense(_Adaptable):
    """Multiply by a kernel by Einstein's convention, such as ``"btf,fu->btu"``.

    Parameters
    ----------
    equation : str
        A letter for each axis of the input, the kernel and the output, as in
        ``"btf,fu->btu"``. The batch comes first in the input and in the output. With
        ``...`` at the beginning or the end of both, any further axes stay as they are.
    output_shape : int or tuple of (int or None)
        The shape of the output without the batch and without the axes of ``...``. None
        stands for the length of the axis in the input.
    activation : str, callable or None, default None
        The activation, as for `Activation`. None: the identity.
    bias_axes : str, optional
        The letters of the output's axes that the bias has. None: no bias.
    kernel_initializer : str or Initializer, default "glorot_uniform"
        The initializer of the kernel.
    bias_initializer : str or Initializer, default "zeros"
        The initializer of the bias.
    lora_rank, lora_alpha : optional
        As of `Dense`.
    name : str, optional
        The name, unique within a model.

    Raises
    ------
    ValueError
        If the equation has another form, or does not fit the input.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.EinsumDense("abc,cde->abde", (None, 2, 8), bias_axes="de")
    >>> layer(mc.nn.Input((7, 16))).shape
    (None, 7, 2, 8)
    """

    __slots__ = (
        "_activation_op",
        "bias_axes",
        "bias_initializer",
        "equation",
        "kernel_initializer",
        "output_shape",
    )

    activation = ActivationOf()

    def __init__(
        self,
        equation: str,
        output_shape: Any,
        activation: Any = None,
        bias_axes: str | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *,
        lora_rank: int | None = None,
        lora_alpha: float | None = None,
        name: str | None = None,
    ) -> None:
        self._begin_low_rank(lora_rank, lora_alpha)
        if not isinstance(equation, str):
            raise TypeError(f"EinsumDense: equation must be a string, got {equation!r}")
        self.equation = equation
        given = (
            output_shape if isinstance(output_shape, list | tuple) else (output_shape,)
        )
        self.output_shape = tuple(
            None if n is None else integer(n, "EinsumDense: output_shape")
            for n in given
        )
        self._activation_op = activation_name(activation, "EinsumDense")
        self.bias_axes = bias_axes
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        super().__init__(name)
        self._letters()

    def _reject(self, why: str) -> NoReturn:
        raise ValueError(f"layer {self.name!r} (EinsumDense): {self.equation!r} {why}")

    def _letters(self) -> tuple[str, str, str]:
        """Return the terms of the equation, which may have dots."""
        left, arrow, y = self.equation.replace(" ", "").partition("->")
        x, comma, kernel = left.partition(",")
        plain = [term.replace("...", "", 1) for term in (x, kernel, y)]
        if not (arrow and comma and all(map(str.isalpha, plain[:2]))):
            self._reject("must be like 'btf,fu->btu'")
        if any(len({*term}) < len(term) for term in plain):
            self._reject("names an axis of a tensor twice")
        ends = [(t.startswith("..."), t.endswith("...")) for t in (x, y)]
        dots = ends[0] if ends[0] == ends[1] else None
        if "..." in kernel or dots is None or any("..." in t[1:-3] for t in (x, y)):
            self._reject("must have '...' on the same side of the input and the output")
        if unknown := {*plain[2]} - {*plain[0], *plain[1]}:
            self._reject(f"has {''.join(sorted(unknown))!r} in the output alone")
        if unknown := {*plain[1]} - {*plain[0], *plain[2]}:
            self._reject(f"has {''.join(sorted(unknown))!r} in the kernel alone")
        if unknown := {*(self.bias_axes or "")} - {*plain[2]}:
            self._reject(f"has no {''.join(sorted(unknown))!r}, which bias_axes names")
        return x, kernel, y

    def _terms(self, shape: Shape) -> _Terms:
        """Return the terms for samples of a shape."""
        x, kernel, y = self._letters()
        count = len(shape) + 1 - len(x.replace("...", ""))
        if count < 0 or (count and "..." not in x) or count > len(_OTHERS):
            self._reject(f"is not of an input of shape {show_shape(shape)}")
        x, y = (term.replace("...", _OTHERS[:count]) for term in (x, y))
        own = [each for each in y if each not in _OTHERS]
        first = x[0]
        if first not in y[:1] or first in kernel:
            self._reject("must have the batch first in the input and the output")
        own = [each for each in own if each != first]
        if len(own) != len(self.output_shape):
            self._reject(f"has an output of {len(own)} axes, got {self.output_shape}")
        lengths = dict(zip(x[1:], shape, strict=True))
        for letter, length in zip(own, self.output_shape, strict=True):
            known = lengths.setdefault(letter, length or 0)
            if not known or length not in (None, known):
                self._reject(
                    f"has axis {letter!r} of length {known or 'None'} and {length}"
                )
        if self.bias_axes:
            places = [y.index(each) for each in self.bias_axes]
            bias = "".join(c if c in self.bias_axes else "_" for c in y[min(places) :])
        else:
            bias = ""
        return _Terms(x, kernel, y, bias, lengths | {"_": 1})

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return kernel and bias."""
        terms = self._terms(shapes[0])
        inputs = prod(terms.lengths[c] for c in terms.kernel if c not in terms.y)
        start = for_units(self.kernel_initializer, inputs)
        kernel = WeightSpec("kernel", terms.shape(terms.kernel), start)
        if not terms.bias:
            return self._with_low_rank([kernel])
        bias = WeightSpec("bias", terms.shape(terms.bias), self.bias_initializer)
        return self._with_low_rank([kernel, bias])

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the product, the bias and the activation."""
        batch, *shape = scope.builder.shape(inputs[0])
        terms = self._terms(tuple(shape))
        terms.lengths[terms.batch] = batch
        kernel = scope.weights["kernel"]
        if self.lora_enabled:
            kernel = self._through(scope, kernel, scope.weights["lora_kernel_a"])
        y = _product(scope, inputs[0], kernel, terms)
        if terms.bias:
            y = _biased(scope, y, terms)
        return activate(scope, y, self._activation_op)


def _product(scope: Scope, x: int, kernel: int, terms: _Terms) -> int:
    """Append the product, and moves of axes before and after it."""
    alone = [c for c in terms.x if c not in terms.kernel and c not in terms.y]
    left = "".join(c for c in terms.x if c not in alone)
    if alone:
        axes = {"axes": tuple(map(terms.x.index, alone)), "keepdims": False}
        (x,) = scope.apply("reduce_sum", (x,), axes)
    shared = [c for c in left if c in terms.kernel and c in terms.y]
    summed = [c for c in left if c in terms.kernel and c not in terms.y]
    own = [c for c in left if c not in terms.kernel]
    units = [c for c in terms.kernel if c not in left]
    x = _moved(scope, x, left, [*shared, *own, *summed])
    kernel = _moved(scope, kernel, terms.kernel, [*shared, *summed, *units])
    inner, width = prod(terms.shape(summed)), prod(terms.shape(units))  # type: ignore[arg-type]
    rows, lead = prod(terms.shape(own)), terms.shape(shared)  # type: ignore[arg-type]
    x = _shaped(scope, x, (*lead, rows, inner))
    kernel = _shaped(scope, kernel, (*lead, inner, width))
    (y,) = scope.apply("matmul" if shared else "dense", (x, kernel))
    order = [*shared, *own, *units]
    y = _shaped(scope, y, terms.shape(order))  # type: ignore[arg-type]
    return _moved(scope, y, "".join(order), list(terms.y))


def _moved(scope: Scope, x: int, term: str, order: Sequence[str]) -> int:
    """Append a transpose to another order of letters."""
    if list(term) == list(order):
        return x
    axes = {"axes": tuple(map(term.index, order))}
    return scope.apply("transpose", (x,), axes)[0]


def _shaped(scope: Scope, x: int, shape: Shape) -> int:
    if scope.builder.shape(x) == shape:
        return x
    return scope.apply("reshape", (x,), {"shape": shape})[0]


def _biased(scope: Scope, y: int, terms: _Terms) -> int:
    """Append the sum with the bias, whose axes of length 1 are broadcast."""
    shape, bias = scope.builder.shape(y), scope.weights["bias"]
    last = shape[len(shape) - len(terms.bias) :]
    if scope.builder.shape(bias) != last:
        (bias,) = scope.apply("broadcast_to", (bias,), {"shape": last})
    width = prod(last)
    y = _shaped(scope, y, (prod(shape) // width, width))
    (y,) = scope.apply("bias", (y, _shaped(scope, bias, (width,))))
    return _shaped(scope, y, shape)
