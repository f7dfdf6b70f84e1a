"""What every layer is: a name, weights of known shapes, and a piece of a graph.

Owns the contract between layers and models. Refuses values: weights live in the
model that the layer belongs to, since a model's arena is where they are trained.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.nn._attributes import Constant, Settled
from memcfg.nn._naming import automatic_name, check_name, snake_case
from memcfg.nn._random import next_seed
from memcfg.nn.layers._symbolic import Node, Shape, SymbolicTensor, show_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from memcfg.nn.initializers import Initializer

__all__ = ["Layer", "Scope", "WeightSpec"]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of a layer, without its value.

    Parameters
    ----------
    name : str
        Within the layer, such as ``"kernel"``.
    shape : tuple of int
        Its shape; all weights are float32.
    initializer : Initializer
        What it starts from.
    trainable : bool, default True
        Whether the optimizer updates it.
    """

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True


class Scope:
    """What one call of a layer sees while its model is traced.

    Parameters
    ----------
    builder : Builder
        Collects the ops.
    name : str
        Prefix of the ops' names.
    weights : mapping of str to int
        The layer's weights: name within the layer to tensor id.
    training : bool
        Whether this is a training step.
    call : int, default 0
        Which call of the layer in its model this is.
    step : callable, optional
        Returns the id of the tensor that counts steps. None when not training.
    """

    def __init__(
        self,
        builder: Builder,
        name: str,
        weights: Mapping[str, int],
        *,
        training: bool,
        call: int = 0,
        step: Callable[[], int] | None = None,
    ) -> None:
        self.builder = builder
        self.name = name
        self.weights = weights
        self.training = training
        self.call = call
        self.step = step
        self.moving: list[tuple[str, int, float]] = []

    def apply(
        self, kind: str, inputs: Sequence[int], attributes: Any = None, /
    ) -> tuple[int, ...]:
        """Append an op named after the layer.

        Parameters
        ----------
        kind : str
            The op type.
        inputs : sequence of int
            Tensor ids.
        attributes : mapping, optional
            The op's attributes.

        Returns
        -------
        tuple of int
            The ids of its outputs.
        """
        label = "bias_add" if kind == "bias" else kind  # "bias" names the weight
        return self.builder.apply(kind, inputs, attributes, name=f"{self.name}/{label}")

    def move(self, weight: str, value: int, momentum: float) -> None:
        """Ask for a moving average, to be taken once at the end of the step.

        Parameters
        ----------
        weight : str
            The weight that holds the average.
        value : int
            Id of this step's value.
        momentum : float
            The part of the old average that stays.
        """
        self.moving.append((weight, value, momentum))


class Layer(Settled):
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
    trainable = Constant(True, "layers cannot be frozen yet")

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

    def __call__(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor]
    ) -> SymbolicTensor:
        """Join this layer to the results of others.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            One tensor, or for `Add` several.

        Returns
        -------
        SymbolicTensor
            The layer's result.

        Raises
        ------
        TypeError
            If `inputs` is not symbolic: data goes to a model's `fit` or `predict`.
        ValueError
            If the layer cannot take inputs of these shapes.
        """
        operands = self._operands(inputs)
        shapes = tuple(operand.sample_shape for operand in operands)
        specs = self._specs_for(shapes)
        output = self._infer(specs, shapes)
        self._weight_specs = specs
        return Node(self, operands, output).output

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Append the layer's ops.

        Parameters
        ----------
        scope : Scope
            Where they go.
        inputs : sequence of int
            Ids of the tensors that the layer reads.

        Returns
        -------
        int
            Id of the layer's result.
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
        return ()

    def claim(self, owner: object) -> None:
        """Give the layer to a model.

        Parameters
        ----------
        owner : object
            The model.

        Raises
        ------
        ValueError
            If it belongs to another model that is still alive.
        """
        self.check_free(owner)
        self._owner = weakref.ref(owner)

    def release(self) -> None:
        """Forget the model and the shapes: the layer is as it was constructed."""
        self._owner = None
        self._weight_specs = None

    def restore(self, specs: tuple[WeightSpec, ...] | None) -> None:
        """Have the weights of the layer that this is a copy of.

        Parameters
        ----------
        specs : tuple of WeightSpec or None
            That layer's.
        """
        self._weight_specs = specs

    def __getstate__(self) -> dict[str, Any]:
        """Return a copy's attributes: it belongs to no model, and has no shapes."""
        return super().__getstate__() | {"_owner": None, "_weight_specs": None}

    def check_free(self, owner: object) -> None:
        """Refuse a second model.

        Parameters
        ----------
        owner : object
            The model that wants the layer.

        Raises
        ------
        ValueError
            If the layer belongs to another model that is still alive.
        """
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
                f"input, got {len(operands)}"
            )
        return operands

    def _specs_for(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        specs = self.specs(shapes)
        if self._weight_specs is not None:
            old = [spec.shape for spec in self._weight_specs]
            new = [spec.shape for spec in specs]
            if old != new:
                raise ValueError(
                    f"layer {self.name!r} already has weights of shapes {old}; an "
                    f"input of shape {show_shape(shapes[0])} would need {new}"
                )
            return self._weight_specs
        return specs

    def _infer(self, specs: Sequence[WeightSpec], shapes: Sequence[Shape]) -> Shape:
        """Trace the layer for one sample, and read the shape that comes out."""
        builder = Builder(self.name)
        weights = {
            spec.name: builder.tensor(spec.name, spec.shape, role="parameter")
            for spec in specs
        }
        inputs = [
            builder.tensor(f"input {i}", (1, *shape), role="input")
            for i, shape in enumerate(shapes)
        ]
        scope = Scope(builder, self.name, weights, training=False)
        try:
            return builder.shape(self.trace(scope, inputs))[1:]
        except GraphError as error:
            shown = " and ".join(show_shape(shape) for shape in shapes)
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) cannot take an input of "
                f"shape {shown}: {error}"
            ) from error
