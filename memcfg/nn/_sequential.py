"""Sequential models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn._model import Model, Parts, is_shape
from memcfg.nn._nested import Symbolic, symbolic
from memcfg.nn._network import Network
from memcfg.nn.exchange._architecture import sequential_config, stacked, started
from memcfg.nn.exchange._custom_objects import CustomObjectScope
from memcfg.nn.layers._layer import (
    Input,
    InputLayer,
    Layer,
    Node,
    OpenShape,
    SymbolicTensor,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.config import DTypePolicy
    from memcfg.nn._nesting import Structure

__all__ = ["Sequential"]


class Sequential(Model):
    """A chain of layers, the first of which may take several inputs.

    If it starts with an `Input`, the shapes of its weights are known at once; otherwise
    after `build` or the first call with data.

    Parameters
    ----------
    layers : sequence of Layer, optional
        The layers from input to output; the first may be an `Input`.
    name : str, optional
        The name. None: ``"sequential"``, ``"sequential_1"``, ...
    trainable : bool, default True
        Whether training changes the weights.
    dtype : {"float32", "mixed_bfloat16"} or DTypePolicy, optional
        The dtype policy of layers that have none of their own. None: the policy set
        by `memcfg.config.set_dtype_policy` when they were made.

    Raises
    ------
    TypeError
        If an element of `layers` is not a layer.
    ValueError
        If two layers have the same name, a layer cannot take the output of the
        previous one, or `dtype` is not supported.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.nn.Sequential([mc.nn.Input((8, 8, 1)), mc.nn.Conv2D(4, 3),
    ...                           mc.nn.Flatten(), mc.nn.Dense(10)])
    >>> model.count_params()
    1490
    """

    __slots__ = ("_ends", "_extensible", "_stack")

    _saved_as = "Sequential"

    def __init__(
        self,
        layers: Sequence[Layer | SymbolicTensor] | None = None,
        name: str | None = None,
        trainable: bool = True,
        *,
        dtype: str | DTypePolicy | None = None,
    ) -> None:
        if isinstance(layers, Layer | SymbolicTensor):
            raise TypeError("Sequential expects a list of layers: Sequential([a, b])")
        self._begin(name, "sequential", dtype)
        self._stack: list[Layer] = []
        self._ends: tuple[Symbolic, Symbolic] | None = None  # before and after them
        # the shape comes from an `Input`, not from `build` or data
        self._extensible = True
        if layers is not None and not isinstance(layers, list | tuple):
            raise TypeError(f"Sequential expects a list of layers, got {layers!r}")
        for layer in layers or ():
            self.add(layer)
        if not trainable:
            self.trainable = False

    def get_config(self) -> dict[str, Any]:
        """Return the layers with their settings, as Keras writes them."""
        if type(self).__init__ is Sequential.__init__:  # also of a user's class
            return sequential_config(self)
        return super().get_config()

    @classmethod
    def from_config(
        cls, config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
    ) -> Any:
        """Build a model from the result of `get_config`; see `Model.from_config`."""
        if "layers" not in config:
            return super().from_config(config, custom_objects)
        with CustomObjectScope(custom_objects):
            layers = stacked(config)
        shapes = config.get("build_input_shape")
        several = isinstance(shapes, list | tuple | dict) and not is_shape(shapes)
        if layers and isinstance(layers[0], InputLayer):
            layers[0] = started(layers[0])
        made = cls(layers, name=config.get("name"))
        if config.get("trainable") is False:
            object.__setattr__(made._as_layer(), "_trainable", False)
        if several:
            made.build(shapes)
        return made

    def _is_built(self) -> bool:
        return self._ends is not None  # without connecting the layers

    @property
    def layers(self) -> list[Layer]:
        """The layers, in order, without the `Input`, as in Keras."""
        return [getattr(each, "model", each) for each in self._stack]

    def _stacked(self) -> Sequence[Layer]:
        return list(self._stack)

    def add(self, layer: Layer | SymbolicTensor) -> None:
        """Append a layer.

        Parameters
        ----------
        layer : Layer
            The layer; the first may be the result of `Input`.

        Raises
        ------
        TypeError
            If the argument is not a layer.
        ValueError
            If the name is taken, or the layer cannot take the output of the previous
            layer; the model is unchanged.
        RuntimeError
            If the model is compiled, or was built by `build` or from data.
        """
        if self._config is not None or not self._extensible:
            raise RuntimeError(
                f"{self.name!r} is already compiled or built: add all layers before"
            )
        if isinstance(layer, SymbolicTensor):
            self._start(layer)
            return
        as_layer = getattr(layer, "_as_layer", None)
        if as_layer is not None:
            layer = as_layer()
        if isinstance(layer, InputLayer) and not (self._stack or self._ends):
            self._start(Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0])
            return
        if not isinstance(layer, Layer) or isinstance(layer, InputLayer):
            raise TypeError(
                "Sequential accepts layers, models and, in first place, an Input; got "
                f"{layer!r}"
            )
        first = None if self._stack or self._ends else layer._first_input()
        if first is not None:
            self._start(first)
        if any(each is layer for each in self._stack):
            raise ValueError(
                f"layer {layer.name!r} is already in {self.name!r}: to call a layer "
                "twice, use Model(inputs, outputs)"
            )
        if any(each.name == layer.name for each in self._stack):
            raise ValueError(
                f"layer names must be unique in a model; {layer.name!r} is taken"
            )
        take_policy = self._policy_for([layer])
        if self._ends is not None:
            self._extend(*self._ends, [layer])
        take_policy()
        self._stack.append(layer)

    def pop(self) -> Layer:
        """Remove the last layer; compile the model again, if it was compiled.

        Returns
        -------
        Layer
            The layer, with its weights.

        Raises
        ------
        ValueError
            If there are no layers.
        """
        if not self._stack:
            raise ValueError(f"{self.name!r} has no layers to remove")
        with self._lock.turn():
            layer = self._stack[-1]
            held = [leaf for _, leaf in layer._leaves() if leaf._model is self]
            values = [leaf._copied_values() for leaf in held]
            if self._ends is not None:
                start = self._ends[0]
                self._extend(start, start, self._stack[:-1])
            self._stack.pop()
            for leaf, own in zip(held, values, strict=True):
                leaf._take_back(own)
            self._replace(self._parts._replace(config=None))
        removed: Layer = getattr(layer, "model", layer)
        return removed

    def _start(self, tensor: SymbolicTensor) -> None:
        if not isinstance(tensor.node.layer, InputLayer):
            raise TypeError(
                f"Sequential expects layers, got the result of a layer: {tensor!r}"
            )
        if self._stack or self._ends is not None:
            raise ValueError("an Input must be the first layer of a Sequential")
        self._ends = (tensor, tensor)

    def _build(
        self, shapes: Sequence[OpenShape], given: Structure | None = None
    ) -> None:
        if not self._stack:
            raise ValueError(f"{self.name!r} has no layers")
        starts = [Input(shape) for shape in shapes]
        several = starts if given is None else given.pack(starts)
        start: Symbolic = starts[0] if len(starts) == 1 else several
        self._extend(start, start, self._stacked())
        self._extensible = False

    def _unbuild(self) -> None:
        self._ends, self._extensible = None, True
        self._replace(Parts(None, self._config, None))
        for layer in self._stack:
            layer._release()

    def __getstate__(self) -> dict[str, Any]:
        """Return the architecture without symbolic tensors; see `Model`."""
        return super().__getstate__() | {"_ends": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the model from a state; see `Model`."""
        super().__setstate__(state)
        network = self._parts.network
        self._ends = None
        if network is not None:
            start = network.takes.pack(network.inputs)
            self._ends = start, network.gives.pack(network.outputs)

    @property
    def _network(self) -> Network | None:
        """The architecture, built from the layers on first use."""
        if self._ends is None:
            return None
        with self._lock.turn():
            network = self._parts.network
            ends, gives = symbolic(self._ends[1], "outputs")
            if network is None or network.outputs[0] is not ends[0]:
                starts, takes = symbolic(self._ends[0], "inputs")
                self._adopt(Network(starts, ends, takes, gives))
            return self._parts.network

    def _extend(self, start: Symbolic, end: Symbolic, layers: Sequence[Layer]) -> None:
        """Call layers in sequence; if one call fails, leave all layers unchanged."""
        taken = {each.name for each in symbolic(start, "inputs")[0]}
        fresh = [layer for layer in layers if layer.weight_specs is None]
        try:
            for layer in layers:
                if layer.name in taken:
                    raise ValueError(
                        f"layer names must be unique in a model; {layer.name!r} is the "
                        "name of the input"
                    )
                end = layer(end)
        except BaseException:
            for layer in fresh:
                layer._release()
            raise
        with self._lock.turn():
            if self._session is not None:  # it was compiled for the shorter chain
                self._session.retire()
            self._ends = start, end
