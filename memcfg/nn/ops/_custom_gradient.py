"""`custom_gradient`: functions that say what their gradients are."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import (
    InputLayer,
    Layer,
    Scope,
    calls_to,
    is_whole,
    operation,
    pattern,
    start_of,
)
from memcfg.nn.layers._operators import as_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["custom_gradient"]


class CustomGradient(Layer):
    """What `custom_gradient` returns, which a file names, on tensors."""

    __slots__ = ("function",)

    arity: ClassVar[int | None] = None

    def __init__(
        self, function: Callable[..., Any], *, name: str | None = None
    ) -> None:
        if not hasattr(function, "traced"):
            raise TypeError(
                f"CustomGradient: {function!r} was not made by custom_gradient"
            )
        self.function = function
        super().__init__(name)

    def _called(self) -> str:
        return "custom_gradient"

    def _operands(self, inputs: Any) -> tuple[SymbolicTensor, ...]:
        return tuple(inputs)

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append the ops of the function, and keep its rule for those of gradients."""
        name = getattr(self.function, "__name__", repr(self.function))
        what = f"custom_gradient of {name!r}"
        builder = scope.builder
        starts = [start_of(builder.shape(each), scope.dtype(each)) for each in inputs]
        made = self.function.traced(*starts)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise TypeError(
                f"{what}: it must return its results and a function of their "
                f"gradients, got {made!r}"
            )
        results, slope = made
        ends: list[Any] = []
        pattern(results, ends, SymbolicTensor)
        values = dict(zip(starts, inputs, strict=True))
        _trace(what, scope, ends, values)
        outputs = [values[each] for each in ends]

        def rule(gradients: Sequence[int]) -> list[int | None]:
            given = [
                start_of(builder.shape(each), scope.dtype(each)) for each in gradients
            ]
            returned = slope(*given)
            several = returned if isinstance(returned, list | tuple) else [returned]
            if len(several) != len(starts):
                raise ValueError(
                    f"{what}: it has {len(starts)} arguments, but {len(several)} "
                    "gradients were returned"
                )
            slopes = [each for each in several if each is not None]
            for each, start in zip(several, starts, strict=True):
                if each is not None and (
                    not is_whole(each) or each.whole_shape != start.whole_shape
                ):
                    raise ValueError(
                        f"{what}: the gradient of an argument of shape "
                        f"{start.whole_shape} must be a tensor of that shape or None, "
                        f"got {each!r}"
                    )
            before, builder.phase = builder.phase, "backward"
            known = values | dict(zip(given, gradients, strict=True))
            _trace(what, scope, slopes, known)
            builder.phase = before
            return [None if each is None else known[each] for each in several]

        label = f"{scope.name}/copy"
        copies = builder.with_rule(outputs, inputs, rule, label)
        return copies[0] if isinstance(results, SymbolicTensor) else copies


def _trace(
    what: str, scope: Scope, ends: Sequence[Any], values: dict[SymbolicTensor, int]
) -> None:
    """Append the ops that lead to tensors; TypeError for what is no argument."""
    nodes = calls_to(ends, values)
    made = {each for node in nodes for each in node.outputs} | values.keys()
    read = [*ends, *(each for node in nodes for each in node.inputs)]
    strangers = [each for each in read if each not in made]
    for node in nodes:
        own = any(leaf.weight_specs for _, leaf in node.layer._leaves())
        if own or isinstance(node.layer, InputLayer):
            strangers += node.outputs
    if strangers:
        raise TypeError(
            f"{what}: it uses {strangers[0]!r}, which is no argument: pass it as one"
        )
    scope.trace(nodes, values, {})


def custom_gradient(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function whose gradients are those that it says.

    Parameters
    ----------
    f : callable
        ``f(*tensors)`` returns ``(result, grad)``. ``grad`` takes the gradient of the
        result, or of each of several, and returns a gradient for each argument: a
        tensor of its shape, or None. It may use tensors that `f` has computed, which
        are then kept for it. Weights and other tensors have to be arguments.

    Returns
    -------
    callable
        Takes tensors or arrays, and returns the result.

    Raises
    ------
    TypeError
        If `f` is not callable or does not return a pair, or uses a tensor that is no
        argument.
    ValueError
        If ``grad`` returns another number of gradients, or one of another shape.

    Notes
    -----
    In ``call`` of a layer and in a function alike, axis 0 is like any other.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> @mc.nn.ops.custom_gradient
    ... def reversed_gradient(x):
    ...     return x, lambda upstream: -upstream
    >>> mc.grad(lambda x: mc.nn.ops.sum(reversed_gradient(x)))(np.ones(2, np.float32))
    array([-1., -1.], dtype=float32)
    """
    if not callable(f):
        raise TypeError(f"custom_gradient: f must be a function, got {f!r}")

    @functools.wraps(f)
    def call(*args: Any) -> Any:
        return CustomGradient(made)(
            [as_tensor(each, "custom_gradient", floats=True) for each in args]
        )

    made: Any = operation(call)
    made.traced = f
    return made  # type: ignore[no-any-return]
