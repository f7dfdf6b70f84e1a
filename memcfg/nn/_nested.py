"""Models as layers of other models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from memcfg.nn._nesting import Structure, taken_apart
from memcfg.nn.layers._layer import (
    Input,
    Layer,
    Node,
    Scope,
    Shape,
    SymbolicTensor,
    members,
    of_any_length,
)

__all__ = ["Nested", "Symbolic", "symbolic"]

Symbolic = SymbolicTensor | Sequence[Any] | Mapping[str, Any]


class Nested(Layer):
    """A model as a layer of another."""

    __slots__ = ("model",)

    arity: ClassVar[int | None] = None

    def __init__(self, model: Any) -> None:
        super().__init__(model.name)
        if model._kind is not None:  # numbered within files, like automatic names
            Layer.__setstate__(self, {"_named": False, "_kind": model._kind})
        self.model = model

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Connect the model's layers to symbolic tensors."""
        return self._connect(inputs, *more, **options)

    @of_any_length
    def _connect(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Connect the layers for lengths that stand for any."""
        mode = self._given_mode(options)
        self._check_call(*more, **options)
        model = self.model
        given, structure = symbolic(inputs, "inputs")
        whole = all(each.whole for each in given)
        if model._network is None:
            try:
                model._build([tensor.open_shape for tensor in given], structure)
                model._from_data = True  # by what it is called on
            except (TypeError, ValueError):  # such as of the batch in another place
                if not whole or not model._calls_itself:
                    raise
                model._calls_whole = True
        if whole and model._calls_whole:
            return model._called(inputs, mode)
        network = model._built_network()
        operands = network.takes.unpack(inputs, "what it is called on", "inputs")
        if model._from_data:
            with suppress(TypeError, ValueError):  # what follows refuses the shapes
                model._open([each.open_shape for each in operands], network.takes)
            network = model._built_network()
        results = self._again(operands, None)
        self._weight_specs = ()
        node = self._node(operands, results, ((), mode) if mode else None)
        return network.gives.pack(node.outputs)

    def _again(
        self, inputs: Sequence[SymbolicTensor], details: Any
    ) -> list[tuple[Shape, str]]:
        """Return the shapes and dtypes of the outputs for inputs of their shapes."""
        del details
        network = self._network_for([each.sample_shape for each in inputs])
        return [(each.sample_shape, each.sample_dtype) for each in network.outputs]

    def _network_for(self, shapes: Sequence[Shape]) -> Any:
        """Return the network for inputs of these shapes."""
        network = self.model._built_network()
        return network.at(network.lengths_of(shapes, f"model {self.name!r}"))

    def _arguments_of(self, node: Node) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the inputs in the model's structure."""
        _, options = node.details or ((), {})
        return (self.model._built_network().takes.pack(node.inputs),), dict(options)

    def __repr__(self) -> str:
        return repr(self.model)

    def _float_dtype(self, tensor: SymbolicTensor) -> str:
        """Return the output dtype of the model's own layer."""
        pairs = zip(
            tensor.node.outputs, self.model._built_network().outputs, strict=True
        )
        return next(str(own.dtype) for given, own in pairs if given is tensor)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append the ops of all inner layers."""
        shapes = [scope.builder.shape(each)[1:] for each in inputs]
        network = self._network_for(shapes).of(scope.training)
        values = dict(zip(network.inputs, inputs, strict=True))
        values |= network.values_of_reads(scope.weights)
        masks = dict(zip(network.inputs, scope.masks, strict=False))
        scope.trace(network.nodes, values, masks)
        scope.penalties += [(None, values[each]) for each in network.losses]
        scope.mask = [masks.get(tensor) for tensor in network.outputs]
        made = [values[tensor] for tensor in network.outputs]
        return made[0] if len(made) == 1 else made

    def _first_input(self) -> SymbolicTensor | None:
        """Return an input of the model's input shape, or None if it is unknown."""
        if not self.model.built or len(self.model.inputs) > 1:
            return None
        (own,) = self.model.inputs
        return Input(own.open_shape, own.node.batch_size, own.sample_dtype)

    def _sublayers(self) -> list[Layer]:
        network = self.model._parts.network or self.model._network
        if network is not None and not self.model._calls_itself:
            return list(network.layers)
        values = getattr(self.model, "__dict__", {}).values()
        held = list(dict.fromkeys(each for value in values for each in members(value)))
        return held if network is None else network.with_held(held)

    def _mixes_samples(self, training: bool) -> bool:
        """Return whether outputs of the model depend on other samples."""
        mixes: bool = self.model._built_network().mixes_samples(training)
        return mixes

    def _measured(self, node: Node) -> tuple[str, str] | None:
        """Return the names of a layer of the model and of a metric that it updates."""
        del node
        measured: tuple[str, str] | None = self.model._built_network().measured
        return measured

    def _called_leaves(self) -> list[Layer]:
        network = self.model._built_network()
        called = [node.layer for node in network.nodes]
        called += [each.layer for each in network.reads]
        return [leaf for layer in called for leaf in layer._called_leaves()]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the state, and make this the layer of the copied model."""
        super().__setstate__(state)
        self.model._nested = self


def symbolic(tensors: Symbolic, what: str) -> tuple[list[SymbolicTensor], Structure]:
    """Return symbolic tensors as a list with their structure; TypeError for others."""
    several, form = taken_apart(tensors, lambda _: False)
    if not several or not all(isinstance(each, SymbolicTensor) for each in several):
        raise TypeError(
            f"{what} must be a symbolic tensor, which starts from Input(shape), or a "
            f"list of them, got {tensors!r}"
        )
    if isinstance(form, list | tuple) and len(several) == 1 and form[0] == 0:
        form = 0  # a list of one is taken for it
    return several, Structure.of(form, [each.name for each in several])
