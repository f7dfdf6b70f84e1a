"""Gradients of functions: `grad`, `value_and_grad` and `GradientTape`.

A gradient is the result of a call like that of a layer, with the loss and the tensors
as its inputs. The backward ops are derived when the call is traced, so the plan of a
function has both, and gradients can be differentiated if the rules of ops allow it.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from memcfg.graph import gradients
from memcfg.nn._argument_checks import integer
from memcfg.nn.functions._eager_tape import EagerTape, TapedArray, active_tape
from memcfg.nn.functions._function import Function
from memcfg.nn.functions._recorder import current, recorded, resumed
from memcfg.nn.layers._layer import (
    Layer,
    Node,
    Scope,
    SymbolicTensor,
    Variable,
    WeightTensor,
    filled_in,
    is_whole,
    pattern,
)
from memcfg.nn.layers._operators import Function as OpLayer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Self

__all__ = ["GradientTape", "grad", "value_and_grad"]


class Gradients(Layer):
    """The gradients of a scalar, the first input, by the other inputs."""

    __slots__ = ()

    arity: ClassVar[int | None] = None

    def trace(self, scope: Scope, inputs: Sequence[int]) -> list[int]:
        """Append the backward ops; zeros where the loss does not depend on a tensor."""
        loss, *wrt = inputs
        builder = scope.builder
        made = gradients(builder, loss, wrt)
        result = []
        for each in wrt:
            if each not in made:
                zeros = {"shape": builder.shape(each), "value": 0.0, "dtype": "float32"}
                (made[each],) = scope.apply("fill", (), zeros)
            result.append(builder.cast(made[each], "float32", phase="backward"))
        return result


def derivatives(
    target: Any, sources: Sequence[Any], what: str, *, zeros: bool = False
) -> list[Any]:
    """Return the gradients of a tensor by others.

    Where a tensor is not made from another, the gradient is None, or has `zeros`.
    Elements of a target that is no scalar are summed first, as in TensorFlow.
    """
    recording = recorded(what)
    if not is_whole(target):
        raise TypeError(
            f"{what}: the target must be a tensor of the function, got {target!r}"
        )
    if target.shape:
        axes = {"axes": tuple(range(len(target.shape))), "keepdims": False}
        target = OpLayer("reduce_sum", axes)(target)
    # All values of a weight that the target is made from count, as in TensorFlow.
    values = [
        recording.values(each) if isinstance(each, Variable) else [each]
        for each in sources
    ]
    for source, several in zip(sources, values, strict=True):
        for each in several:
            if not is_whole(each) or each.sample_dtype != "float32":
                raise TypeError(
                    f"{what}: gradients are with respect to float32 tensors of the "
                    f"function and to weights, got {source!r}"
                )
    reached = _reached(target, values)
    if zeros:
        reached |= {several[-1] for several in values}
    distinct = list(
        dict.fromkeys(each for several in values for each in several if each in reached)
    )
    made: dict[Any, Any] = {}
    if distinct:
        recording.differentiates = True
        recording.losses.append(target)
        results = [(each.shape, "float32") for each in distinct]
        node = Node(Gradients(), (target, *distinct), results, whole=True)
        made = dict(zip(distinct, node.outputs, strict=True))
    return [_sum([made[x] for x in several if x in made]) for several in values]


def _sum(terms: Sequence[Any]) -> Any:
    """Return the sum of gradients; None without any."""
    return functools.reduce(operator.add, terms) if terms else None


def _reached(target: SymbolicTensor, values: Sequence[Sequence[Any]]) -> set[Any]:
    """Return those tensors that a target is made from, but for `stop_gradient`.

    `values` has the values of each source, oldest first. The calls of a layer read the
    newest value of a weight that is older than they are.
    """
    weights = {
        (several[0].layer, several[0].spec.name): several
        for several in values
        if isinstance(several[0], WeightTensor)
    }
    wanted, result = {each for several in values for each in several}, set()
    nodes: set[Node] = set()
    stack = [target]
    while stack:
        tensor = stack.pop()
        if tensor in wanted:
            result.add(tensor)
        fixed = getattr(tensor.node.layer, "op", None) == "stop_gradient"
        if tensor.node not in nodes and not fixed:
            nodes.add(tensor.node)
            # A model may compute one of its results from another.
            result |= wanted.intersection(tensor.node.outputs)
            stack += tensor.node.inputs
            for leaf in tensor.node.layer._called_leaves():
                for spec in leaf.weight_specs or ():
                    first, *later = weights.get((leaf, spec.name), (None,))
                    older = [x for x in later if x.node.order < tensor.node.order]
                    if first is not None:
                        result.add(older[-1] if older else first)
    return result


class GradientTape:
    """Derive gradients, as TensorFlow's tape does.

    A function's gradients can be derived at any place of it, so the tape records
    nothing there: `watch` and `persistent` are accepted and change nothing.

    Outside of a function, ops, layers and losses in the block compute arrays at once,
    and one program computes the gradients. Each of these takes some milliseconds, so a
    loop of many steps belongs in a function. Weights must not change between the block
    and `gradient`.

    Parameters
    ----------
    persistent : bool, default False
        Accepted for TensorFlow's programs; a tape may be asked any number of times.
    watch_accessed_variables : bool, default True
        Accepted; only the sources of `gradient` matter.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> @mc.function
    ... def slope(x):
    ...     with mc.GradientTape() as tape:
    ...         tape.watch(x)
    ...         y = x * x
    ...     return tape.gradient(y, x)
    >>> slope(np.float32(3)).item()
    6.0
    """

    def __init__(
        self, persistent: bool = False, watch_accessed_variables: bool = True
    ) -> None:
        del persistent, watch_accessed_variables
        self._eager: EagerTape | None = None  # outside of a function
        self._open: EagerTape | None = None  # the same, if the block has begun it

    def __enter__(self) -> Self:
        """Begin the block whose results are differentiated."""
        if current() is None:
            self._eager = active_tape() or EagerTape()
            if active_tape() is None:
                self._open = self._eager.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the block."""
        if self._open is not None:
            self._open.__exit__(kind, error, trace)
            self._open = None

    def watch(self, tensor: Any) -> None:
        """Accept a tensor; sources need not be watched.

        Parameters
        ----------
        tensor : SymbolicTensor or array, or sequence of them
            The tensors.

        Raises
        ------
        TypeError
            Outside of a function, if an array does not come from ops or layers in the
            block: what NumPy computes from it would not be seen.
        """
        leaves: list[Any] = []
        pattern(tensor, leaves, (np.ndarray, np.generic))
        if self._eager is not None:
            _check_seen(leaves, "GradientTape.watch")

    def gradient(self, target: Any, sources: Any) -> Any:
        """Return the gradients of a target by sources.

        Parameters
        ----------
        target : SymbolicTensor or array
            A float32 tensor of the function, or an array that was computed in the
            block; the elements of one that is no scalar are summed first.
        sources : SymbolicTensor, Variable or array, or nested lists or dicts of them
            Tensors of the function, or arrays that the block reads, and weights.

        Returns
        -------
        SymbolicTensor, array or None, or nested lists, tuples or dicts of them
            The gradients; None for a source that the target is not made from.

        Raises
        ------
        TypeError
            If the target or a source is no float32 tensor of the function, nor a
            weight.
        RuntimeError
            Outside of a function, if the tape has no block.
        """
        several: list[Any] = []
        kinds = (SymbolicTensor, Variable)
        eager = current() is None and self._eager is not None
        shape = pattern(sources, several, (*kinds, np.ndarray) if eager else kinds)
        if not several:
            raise TypeError(
                "GradientTape.gradient: gradients are with respect to tensors of the "
                f"function and to weights, got {sources!r}"
            )
        what = "GradientTape.gradient"
        if not eager:
            return filled_in(shape, derivatives(target, several, what))
        assert self._eager is not None
        return filled_in(shape, _slopes(self._eager, target, several, what))


def _slopes(tape: EagerTape, target: Any, sources: Sequence[Any], what: str) -> Any:
    """Return the gradients of what was computed at once, as arrays."""
    if not tape.has_made(target):
        raise TypeError(
            f"{what}: the target was not computed by ops, layers and losses within the "
            f"tape, from arrays that went through them, got {target!r}"
        )
    _check_seen([x for x in sources if not isinstance(x, Variable)], what)
    with resumed(tape.recording):
        given = [x if isinstance(x, Variable) else tape.symbol(x) for x in sources]
        made = derivatives(tape.symbol(target), given, what)
    values = iter(tape.computed([each for each in made if each is not None]))
    return [None if each is None else next(values) for each in made]


def _check_seen(arrays: Sequence[Any], what: str) -> None:
    """Raise TypeError for an array whose operators the tape does not see."""
    for each in arrays:
        if not isinstance(each, TapedArray):
            raise TypeError(
                f"{what}: NumPy's operators on an array of shape {np.shape(each)} are "
                "not seen: in the block of the tape, begin with "
                "x = ops.convert_to_tensor(x)"
            )


def value_and_grad(
    function: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Return a function that returns the value and the gradients of another.

    Parameters
    ----------
    function : callable
        Takes tensors or arrays, and returns a scalar.
    argnums : int or sequence of int, default 0
        The positions of the arguments to differentiate with respect to. Each may be a
        nested list, tuple or dict of tensors and weights.
    has_aux : bool, default False
        Whether `function` returns a pair of a scalar and other results.

    Returns
    -------
    callable
        Takes the arguments of `function`, and returns ``(value, gradients)``, where the
        value is what `function` returns. For an int in `argnums` the gradients are
        those of that argument, else a tuple.

    Raises
    ------
    TypeError
        If the function does not return a scalar, or an argument in `argnums` has
        anything else than float32 tensors and weights.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> square = mc.value_and_grad(lambda x: x * x)
    >>> [each.item() for each in square(np.float32(3))]
    [9.0, 6.0]
    """
    single = not isinstance(argnums, list | tuple)
    places = [
        integer(each, "value_and_grad: a position in argnums", 0)
        for each in ([argnums] if single else argnums)  # type: ignore[union-attr]
    ]

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        what = f"value_and_grad of {getattr(function, '__name__', function)!r}"
        if current() is None:
            return at_once(*args, **options)
        if any(place >= len(args) for place in places):
            raise TypeError(
                f"{what}: argnums is {argnums}, but there are {len(args)} arguments"
            )
        value = function(*args, **options)
        target = value[0] if has_aux else value
        if not is_whole(target) or target.shape:
            raise TypeError(f"{what}: the value must be a scalar, got {target!r}")
        several: list[Any] = []
        shapes = [
            pattern(args[place], several, (SymbolicTensor, Variable))
            for place in places
        ]
        made = derivatives(target, several, what, zeros=True)
        slopes = tuple(filled_in(shape, made) for shape in shapes)
        return value, slopes[0] if single else slopes

    at_once = Function(call)
    return call


def grad(
    function: Callable[..., Any], argnums: int | Sequence[int] = 0
) -> Callable[..., Any]:
    """Return a function that returns the gradients of another.

    Parameters
    ----------
    function : callable
        Takes tensors or arrays, and returns a scalar.
    argnums : int or sequence of int, default 0
        As of `value_and_grad`.

    Returns
    -------
    callable
        Takes the arguments of `function`, and returns the gradients of
        `value_and_grad`.

    Raises
    ------
    TypeError
        As of `value_and_grad`.

    Examples
    --------
    >>> import memcfg as mc
    >>> import numpy as np
    >>> mc.grad(lambda x: mc.nn.ops.sum(x * x))(np.ones(2, np.float32))
    array([2., 2.], dtype=float32)
    """
    both = value_and_grad(function, argnums)

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        return both(*args, **options)[1]

    return call
