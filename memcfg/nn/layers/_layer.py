"""What every layer is: a name, weights of known shapes, and a piece of a graph.

A layer that is called on symbolic tensors gives one. Weights live in the model that the
layer belongs to, since a model's arena is where they are trained.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.nn._argument_checks import integer
from memcfg.nn._attributes import (
    FixedAttributes,
    automatic_name,
    check_name,
    constant,
    snake_case,
)
from memcfg.nn._random import next_seed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from memcfg.nn.initializers import Initializer

__all__ = [
    "Input",
    "InputLayer",
    "Layer",
    "Node",
    "Scope",
    "Shape",
    "SymbolicTensor",
    "WeightSpec",
    "sample_shape",
    "show_shape",
]

Shape = tuple[int, ...]  # of one sample, the batch left out

_order: Iterator[int] = itertools.count()  # calls of this process, in time


class SymbolicTensor(FixedAttributes):
    """The result of a layer that was called on other symbolic tensors.

    Parameters
    ----------
    sample_shape : tuple of int
        Its shape without the batch.
    node : Node
        The call that made it.
    dtype : str, default "float32"
        Its dtype's name.
    """

    __slots__ = ("dtype", "node", "sample_shape")

    def __init__(self, sample_shape: Shape, node: Node, dtype: str = "float32") -> None:
        self.sample_shape = sample_shape
        self.node = node
        self.dtype = dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Its shape; None stands for a batch of any size."""
        return (self.node.batch_size, *self.sample_shape)

    @property
    def name(self) -> str:
        """The name of the layer that made it."""
        return self.node.layer.name

    def __repr__(self) -> str:
        return f"<SymbolicTensor shape={self.shape} of layer {self.name!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} is a call of a layer, and no copy of it could be: copy models, "
            "or call layers again"
        )

    def __array__(self, *_args: object, **_options: object) -> None:
        raise TypeError(f"{self!r} has no values: it stands for data to come")

    # What operators mean; `_operators`, whose layers are made of this module's.
    operators: ClassVar[Any]
    __array_ufunc__ = None  # NumPy leaves operators to this class
    __iter__ = None

    def __add__(self, other: Any) -> Any:
        return self.operators.binary("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.operators.binary("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.operators.binary("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.operators.binary("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.operators.binary("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.operators.binary("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.operators.binary("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.operators.binary("divide", other, self)

    def __pow__(self, other: Any) -> Any:
        return self.operators.binary("power", self, other)

    def __matmul__(self, other: Any) -> Any:
        return self.operators.binary("matmul", self, other)

    def __neg__(self) -> Any:
        return self.operators.negative(self)

    def __abs__(self) -> Any:
        return self.operators.absolute(self)

    def __getitem__(self, key: Any) -> Any:
        return self.operators.get_item(self, key)


class Node(FixedAttributes):
    """One call of a layer; `results` are shape and dtype of what it makes."""

    __slots__ = ("batch_size", "inputs", "layer", "order", "outputs")

    batch_size: int | None

    def __init__(
        self,
        layer: Layer,
        inputs: tuple[SymbolicTensor, ...],
        results: Sequence[tuple[Shape, str]],
    ) -> None:
        self.layer = layer
        self.inputs = inputs
        self.order = next(_order)
        sizes = {tensor.node.batch_size for tensor in inputs} - {None}
        own: int | None = getattr(layer, "batch_size", None)
        self.batch_size = sizes.pop() if sizes else own
        self.outputs = tuple(SymbolicTensor(shape, self, t) for shape, t in results)


def show_shape(sample_shape: Shape) -> str:
    """Write a shape as Keras does, the batch as None."""
    return str((None, *sample_shape))


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of a layer, without its value."""

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True
    dtype: str = "float32"
    hidden: bool = False  # a state: not among a model's weights, nor in its files


@dataclass(eq=False)
class Scope:
    """What one call of a layer sees while its model is traced."""

    builder: Builder
    name: str
    weights: Mapping[str, int]
    _: KW_ONLY
    training: bool
    call: int = 0
    step: Callable[[], int] | None = None
    moving: list[tuple[str, int, float]] = field(default_factory=list, init=False)

    def apply(
        self, kind: str, inputs: Sequence[int], attributes: Any = None, /
    ) -> tuple[int, ...]:
        """Append an op named after the layer."""
        label = "bias_add" if kind == "bias" else kind  # "bias" names the weight
        return self.builder.apply(kind, inputs, attributes, name=f"{self.name}/{label}")

    def move(self, weight: str, value: int, momentum: float) -> None:
        """Ask for a moving average, to be taken once at the end of the step."""
        self.moving.append((weight, value, momentum))


class Layer(FixedAttributes):
    """Base class of all layers.

    Calling a layer on the result of another joins them. A layer called in two
    places has one set of weights, and their gradients are added.

    Parameters
    ----------
    name : str, optional
        Unique within a model. None: as Keras names it, such as ``"conv2d_1"``.

    Raises
    ------
    TypeError
        If `name` is not a string.
    ValueError
        If `name` is empty or contains ``/``.
    """

    __slots__ = ("_owner", "_seed", "_weight_specs", "kind", "name", "named")

    arity: ClassVar[int | None] = 1  # how many inputs; None: two or more
    _reads_images: ClassVar[bool] = False  # alone
    trainable = constant("trainable", True, "layers cannot be frozen yet")

    def __init__(self, name: str | None = None) -> None:
        self.kind = snake_case(type(self).__name__)
        self.named = name is not None
        self.name = automatic_name(self.kind) if name is None else check_name(name)
        self._seed = next_seed()
        self._weight_specs: tuple[WeightSpec, ...] | None = None
        self._owner: weakref.ref[Any] | None = None

    @property
    def seed(self) -> int:
        """Decides what the layer draws."""
        return self._seed

    @property
    def weight_specs(self) -> tuple[WeightSpec, ...] | None:
        """The weights; None until the layer is called."""
        return self._weight_specs

    def __call__(self, inputs: SymbolicTensor | Sequence[SymbolicTensor]) -> Any:
        """Join this layer to the results of others."""
        operands = self._operands(inputs)
        specs = self._specs_for([operand.sample_shape for operand in operands])
        structure, results = self._infer(specs, operands)
        self._weight_specs = specs
        outputs = Node(self, operands, results).outputs
        return outputs[0] if structure is None else structure(outputs)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append the layer's ops.

        Parameters
        ----------
        scope : Scope
            Where they go.
        inputs : sequence of int
            Ids of the tensors that the layer reads.

        Returns
        -------
        int, or list or tuple of int
            Id of the layer's result, or of several.
        """
        raise NotImplementedError

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the weights that inputs of these shapes call for.

        Parameters
        ----------
        shapes : sequence of tuple of int
            The inputs' shapes without the batch.

        Returns
        -------
        tuple of WeightSpec
            In Keras's order.

        Raises
        ------
        ValueError
            If the layer cannot take such inputs.
        """
        if self._reads_images:
            self.require_rank(shapes[0], 3, "images (None, height, width, channels)")
        return ()

    def _claim(self, owner: object) -> None:
        """Give the layer to a model."""
        self._check_free(owner)
        self._owner = weakref.ref(owner)

    def _release(self) -> None:
        """Reset the model and the shapes: the layer is as it was constructed."""
        self._owner = None
        self._weight_specs = None

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's attributes: it belongs to no model, and has no shapes."""
        return super().__getstate__() | {"_owner": None, "_weight_specs": None}

    def _check_free(self, owner: object) -> None:
        """Refuse a second model."""
        held = None if self._owner is None else self._owner()
        if held is not None and held is not owner:
            raise ValueError(
                f"layer {self.name!r} already belongs to another model: weights live "
                "in one model's arena. Make a new layer and copy them with "
                "get_weights and set_weights"
            )

    def require_rank(self, shape: Shape, rank: int, wanted: str) -> None:
        """Refuse an input of another rank.

        Parameters
        ----------
        shape : tuple of int
            The input's shape without the batch.
        rank : int
            The rank wanted, without the batch.
        wanted : str
            The shape wanted, in words.

        Raises
        ------
        ValueError
            If the rank differs.
        """
        if len(shape) != rank:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) reads {wanted}, but its "
                f"input has shape {show_shape(shape)}"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r}>"

    def _operands(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor]
    ) -> tuple[SymbolicTensor, ...]:
        several = isinstance(inputs, list | tuple)
        given: Any = inputs
        operands: tuple[Any, ...] = tuple(given) if several else (given,)
        for operand in operands:
            if not isinstance(operand, SymbolicTensor):
                raise TypeError(
                    f"layer {self.name!r} is called on symbolic tensors, which start "
                    f"from Input(shape); got {type(operand).__name__}. Data goes to a "
                    "model's fit, evaluate or predict"
                )
        if self.arity is None and (not several or len(operands) < 2):
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) is called on a list of "
                f"two tensors or more, got {len(operands)}"
            )
        if self.arity is not None and len(operands) != self.arity:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) takes {self.arity} "
                f"input{'s' if self.arity > 1 else ''}, got {len(operands)}"
            )
        return operands

    def _specs_for(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        specs = self.specs(shapes)
        if self._weight_specs is None:
            return specs
        old = [spec.shape for spec in self._weight_specs]
        new = [spec.shape for spec in specs]
        if old != new:
            raise ValueError(
                f"layer {self.name!r} already has weights of shapes {old}; an "
                f"input of shape {show_shape(shapes[0])} would need {new}"
            )
        return self._weight_specs

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        """Trace the layer for one sample, and read what comes out."""
        builder = Builder(self.name)
        weights = {
            spec.name: builder.tensor(spec.name, spec.shape, spec.dtype, "parameter")
            for spec in specs
        }
        inputs = [
            builder.tensor(
                f"input {i}",
                (each.node.batch_size or 1, *each.sample_shape),
                each.dtype,
                "input",
            )
            for i, each in enumerate(operands)
        ]
        scope = Scope(builder, self.name, weights, training=False)
        try:
            made = self.trace(scope, inputs)
        except GraphError as error:
            shown = " and ".join(show_shape(each.sample_shape) for each in operands)
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) cannot take an input of "
                f"shape {shown}: {error}"
            ) from error
        structure = None if isinstance(made, int) else type(made)
        several = [made] if isinstance(made, int) else made
        return structure, [(builder.shape(i)[1:], builder.dtype(i)) for i in several]


class InputLayer(Layer):
    """The layer that stands for a model's input; made by `Input`."""

    __slots__ = ("batch_size", "dtype", "shape")

    arity: ClassVar[int | None] = 0

    def __init__(
        self,
        shape: Shape,
        dtype: str = "float32",
        name: str | None = None,
        batch_size: int | None = None,
    ) -> None:
        super().__init__(name)
        self.shape = shape
        self.dtype = dtype
        self.batch_size = batch_size

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the tensor of the data itself."""
        return inputs[0]


def Input(  # noqa: N802  (Keras's name)
    shape: Sequence[int] | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    *,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
) -> SymbolicTensor:
    """Return the symbolic tensor from which a model starts.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample, without the batch; every length is known.
    batch_size : int, optional
        Samples of every batch; stateful layers need it.
    dtype : str, optional
        ``"float32"``, which None stands for, or ``"int32"``, for indices.
    batch_shape : sequence of int, optional
        `batch_size`, or None, and `shape` in one.
    name : str, optional
        The name of the input layer, by which data can be given.

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
    if dtype not in (None, "float32", "int32"):
        raise ValueError(f"an Input is 'float32' or 'int32', not {dtype!r}")
    if batch_shape is not None:
        if shape is not None or batch_size is not None:
            raise ValueError("Input: batch_shape says shape and batch_size already")
        batch_size, *rest = batch_shape
        shape = tuple(length or 0 for length in rest)
    if batch_size is not None:
        batch_size = integer(batch_size, "Input: batch_size")
    layer = InputLayer(sample_shape(shape), dtype or "float32", name, batch_size)
    return Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0]


def sample_shape(shape: Any) -> Shape:
    """Return a sample's shape as a tuple."""
    if not isinstance(shape, list | tuple):
        raise TypeError(
            f"a shape is a tuple such as (28, 28, 1), without the batch; got {shape!r}"
        )
    if not shape or None in shape:
        raise ValueError(
            f"every length of a sample's shape must be known, and the batch is left "
            f"out: write (28, 28, 1), got {tuple(shape)!r}"
        )
    return tuple(integer(length, "a length of a shape") for length in shape)
