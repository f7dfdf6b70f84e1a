"""Updates of weights in a function: `Variable.assign` and `Optimizer.apply`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from memcfg.nn.functions._recorder import recorded
from memcfg.nn.layers._layer import Layer, Node, Scope, SymbolicTensor, is_whole
from memcfg.nn.layers._operators import constant_tensor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn.layers._layer import Variable
    from memcfg.nn.optimizers import Optimizer

__all__ = ["Update", "apply_gradients", "assign"]


class Update(Layer):
    """A call whose results are new values of weights; it is made for one node.

    The tracer of a function appends its ops, since it knows the optimizer's state.
    """

    __slots__ = ("optimizer", "updated")

    arity: ClassVar[int | None] = None

    def __init__(
        self, variables: Sequence[Variable], optimizer: Optimizer | None = None
    ) -> None:
        super().__init__()
        self.updated = tuple(variables)
        self.optimizer = optimizer

    def trace(self, scope: Scope, inputs: Sequence[int]) -> NoReturn:
        """Raise: an update belongs to a function."""
        raise RuntimeError("weights are updated by a function, not by a layer")


def assign(variable: Variable, value: Any) -> None:
    """Replace a weight by a tensor, or an array, in the function that is traced."""
    recording = recorded(f"assigning a symbolic tensor to {variable.path!r}")
    if not isinstance(value, SymbolicTensor):
        value = constant_tensor(value)
    if not is_whole(value) or value.shape != variable.shape:
        raise ValueError(
            f"weight {variable.path!r} must have shape {variable.shape}, got "
            f"{value.shape}"
        )
    recording.before(variable)
    results = [(variable.shape, variable.dtype)]
    node = Node(Update([variable]), (value,), results, whole=True)
    recording.calls.append(node)
    recording.write(variable, node.outputs[0])


def apply_gradients(
    optimizer: Optimizer, gradients: Sequence[Any], variables: Sequence[Variable]
) -> None:
    """Update weights by gradients of the function that is being traced."""
    recording = recorded(f"{type(optimizer).__name__}.apply")
    if len(gradients) != len(variables):
        raise ValueError(
            f"{type(optimizer).__name__}.apply: there are {len(gradients)} gradients "
            f"for {len(variables)} weights"
        )
    pairs = [
        (gradient, variable)
        for gradient, variable in zip(gradients, variables, strict=True)
        if gradient is not None
    ]
    if not pairs:
        raise ValueError(
            f"{type(optimizer).__name__}.apply: no weight has a gradient: is the loss "
            "made from the weights?"
        )
    for gradient, variable in pairs:
        if not is_whole(gradient) or gradient.shape != variable.shape:
            raise ValueError(
                f"the gradient of {variable.path!r} must have shape {variable.shape}, "
                f"got {gradient!r}"
            )
        recording.before(variable)
    updated = [variable for _, variable in pairs]
    results = [(variable.shape, variable.dtype) for variable in updated]
    layer = Update(updated, optimizer)
    node = Node(layer, tuple(gradient for gradient, _ in pairs), results, whole=True)
    recording.calls.append(node)
    for variable, output in zip(updated, node.outputs, strict=True):
        recording.write(variable, output)
