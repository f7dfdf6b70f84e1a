"""The base class of layers, symbolic tensors and weights.

Calling a layer on symbolic tensors returns symbolic tensors. The values of weights live
in the layer's model, whose arena they are trained in.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import weakref
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import KW_ONLY, dataclass, field, replace
from math import prod
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, NoReturn

import numpy as np

from memcfg._cached import cached_property
from memcfg._caller import line_outside
from memcfg._traceback_filter import shorten
from memcfg.config._dtype_policy import as_policy, dtype_policy
from memcfg.errors import GraphError
from memcfg.graph import Builder
from memcfg.nn._argument_checks import integer
from memcfg.nn._attributes import (
    FixedAttributes,
    automatic_name,
    check_name,
    is_set,
    snake_case,
)
from memcfg.nn._keras_arguments import refusal, taken, takes_arguments
from memcfg.nn._keras_names import METHODS
from memcfg.nn._random import derive_seed, next_seed, same_seeds
from memcfg.nn.constraints import get_constraint
from memcfg.nn.exchange._configs import (
    Configured,
    own_arguments,
    serialize_keras_object,
)
from memcfg.nn.initializers import get_initializer
from memcfg.nn.layers._batch_size import BatchSize
from memcfg.nn.layers._input_spec import check_inputs
from memcfg.nn.layers._integers import of_integers
from memcfg.nn.layers._name_scope import current_scope, end_scope, outermost_scope
from memcfg.nn.regularizers import get_regularizer
from memcfg.ops import op_type

if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
    )

    from memcfg.config import DTypePolicy
    from memcfg.graph import Integers
    from memcfg.nn.constraints import Constraint
    from memcfg.nn.initializers import Initializer
    from memcfg.nn.layers._parametrization import Parametrization
    from memcfg.nn.regularizers import Regularizer

__all__ = [
    "Input",
    "InputLayer",
    "Layer",
    "Node",
    "Place",
    "Scope",
    "Shape",
    "SymbolicTensor",
    "Variable",
    "WeightSpec",
    "WeightTensor",
    "add_loss",
    "array_of",
    "as_weight",
    "call_mode",
    "calling",
    "calls_to",
    "change_policy",
    "check_ends",
    "current_call",
    "filled_in",
    "first_value",
    "inner_layers",
    "is_whole",
    "labels_of",
    "may_measure",
    "means_samples",
    "members",
    "mix_samples",
    "next_order",
    "of_any_length",
    "pattern",
    "sample_shape",
    "settled",
    "show_shape",
    "start_of",
    "sums_of_call",
    "trace_call",
    "trace_function",
    "trace_in_training",
    "trace_whole",
    "weights_read",
    "with_mask",
]

Shape = tuple[int, ...]  # of one sample, without the batch
OpenShape = tuple[int | None, ...]  # the same; None is an axis of any length
# What stands for any length: calls are tried with both, and axes that differ are those
# of any length. Both divide by powers of two, for networks that halve and double. A
# call that fails for them is tried with others, that tables of few steps take and that
# other numbers divide; the calls that lead to it are then repeated: see `at_lengths`.
LENGTHS = (96, 160)
OTHER_LENGTHS = ((32, 48), (420, 840), (12, 20), (6, 10), (3, 5))
_PAIRS = (LENGTHS, *OTHER_LENGTHS)
_INNER = 256  # traces of `call` that a layer keeps
# Ops whose results are floats in Keras, of integers too, or of integers and floats.
_OF_FLOATS = frozenset(
    {
        *("softmax", "log_softmax", "reduce_mean", "interpolate", "fourier"),
        *("average_pool2d", "global_average_pool2d", "layer_normalization"),
        *("max_pool2d", "max_pool2d_inference"),
    }
)
_OF_NO_INTEGERS = frozenset({"dense", "conv2d", "conv3d"})
_BY_INTEGERS = frozenset({"dense", "conv2d"})  # for which 8-bit kernels have an op
_PRODUCTS = frozenset(
    {
        *("matmul", "dense", "conv2d", "conv3d", "lstm", "gru", "simple_rnn", "bias"),
        "concatenate",
    }
)
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_OPERATORS = ("add", "subtract", "multiply", "divide", "power", "matmul", *COMPARISONS)

# mode of the current `call`
call_mode: ContextVar[Any] = ContextVar("training", default=None)
in_loss: ContextVar[bool] = ContextVar("in_loss", default=False)
_in_operation: ContextVar[bool] = ContextVar("in_operation", default=False)
_call: ContextVar[_Call | None] = ContextVar("call", default=None)
_order: Iterator[int] = itertools.count()  # numbers calls in order of time


def next_order() -> int:
    """Return a number between those of earlier and of later calls."""
    return next(_order)


def operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function that calls layers so that, like an operator, it drops masks.

    With arrays and no symbolic tensors it computes at once. With tensors that have
    axes of any length it is one layer, which calls it again for each length.
    """
    name = getattr(function, "__name__", "")

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        args, options = _without_variables(args, options, sized=name in _OF_LENGTHS)
        if are_arrays(args, options) and not has_batch_size((args, options)):
            return Variable.functions.at_once(call, args, options)
        token = _in_operation.set(True)
        try:
            if OPERATIONS.get(name) is call and _are_open(args, options):
                label = args[0] if name == "binary" else name
                one_layer = SymbolicTensor.operators.Operation(name, label)
                return one_layer(*args, **options)
            return function(*args, **options)
        finally:
            _in_operation.reset(token)

    return call


OPERATIONS: dict[str, Callable[..., Any]] = {}  # by name
# Functions of which a length may be that of the batch; for others it is a tensor.
_OF_LENGTHS = frozenset(
    {
        *("reshape", "broadcast_to", "tile", "repeat"),
        *("expand_dims", "concatenate", "stack"),
    }
)


def has_batch_size(value: Any) -> bool:
    """Return whether a nested value has the size of the batch as a length."""
    leaves: list[Any] = []
    pattern(value, leaves, BatchSize)
    return bool(leaves)


def named_operation(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function an operation that models may save by its name."""
    made = operation(function)
    OPERATIONS.setdefault(function.__name__, made)
    return made


def _are_open(*values: Any) -> bool:
    """Return whether a tensor among arguments has an axis of any length."""
    leaves: list[SymbolicTensor] = []
    pattern(values, leaves)
    return any(each.twin is not None for each in leaves)


def of_any_length(connect: Callable[..., Any]) -> Callable[..., Any]:
    """Have a call of a layer repeated with other lengths where it fails for `LENGTHS`.

    The tensors of a call stand for axes of any length by the same lengths.
    """

    @functools.wraps(connect)
    def call(self: Layer, *args: Any, **options: Any) -> Any:
        leaves: list[SymbolicTensor] = []
        pattern((args, options), leaves)
        lengths = {each.node.lengths for each in leaves} - {None}
        if not lengths:
            return connect(self, *args, **options)
        is_open = any(each.twin is not None for each in leaves)
        first = max(map(_PAIRS.index, lengths))
        refused: ValueError | None = None
        for pair in _PAIRS[first:] if is_open else _PAIRS[first : first + 1]:
            try:
                if lengths == {pair}:
                    return connect(self, *args, **options)
                moved = [at_lengths(each, pair) for each in leaves]
                operands: list[SymbolicTensor] = []
                form = pattern((args, options), operands)
                again, named = filled_in(form, moved)
                return connect(self, *again, **named)
            except OtherWeightsError:  # of any lengths
                raise
            except ValueError as error:
                refused = refused or error
        assert refused is not None
        raise refused

    return call


def at_lengths(tensor: SymbolicTensor, pair: tuple[int, int]) -> SymbolicTensor:
    """Return a tensor whose axes of any length are stood for by a pair of lengths."""
    node = tensor.node
    if node.lengths in (None, pair):
        return tensor
    place = next(i for i, each in enumerate(node.outputs) if each is tensor)
    return _node_at(node, pair).outputs[place]


def _node_at(node: Node, pair: tuple[int, int]) -> Node:
    """Return the same call of the same calls, with other lengths; each is kept."""
    left = [node]
    needed: dict[Node, None] = {}
    while left:
        each = left.pop()
        if each not in needed and pair not in each.alike:
            needed[each] = None
            left += [x.node for x in each.inputs if x.node.lengths is not None]
    for each in sorted(needed, key=lambda each: each.order):
        results: Any = [(x.open_shape, x.sample_dtype) for x in each.outputs]
        inputs = [at_lengths(x, pair) for x in each.inputs]
        repeated(each, inputs, () if inputs else results, pair)
    return node.alike[pair]


def settled(*groups: Sequence[SymbolicTensor]) -> list[list[SymbolicTensor]]:
    """Return tensors whose axes of any length are all stood for by the same lengths."""
    lengths = {each.node.lengths for group in groups for each in group} - {None}
    if len(lengths) < 2:
        return [list(group) for group in groups]
    pair = _PAIRS[max(map(_PAIRS.index, lengths))]
    return [[at_lengths(each, pair) for each in group] for group in groups]


def _without_variables(args: Any, options: Any, *, sized: bool = True) -> Any:
    """Return arguments with weights as tensors of a function, or as arrays.

    Unless `sized`, the size of the batch becomes a tensor, too.
    """
    leaves: list[Any] = []
    kinds = Variable if sized else (Variable, BatchSize)
    given = pattern((args, options), leaves, kinds)
    if not leaves:
        return args, options
    symbols: list[tuple[Any, Any]] = [
        (each, each.tensor())
        if isinstance(each, BatchSize)
        else (each, each.functions.symbol(each))
        for each in leaves
    ]
    tensors: list[Any] = []
    pattern((args, options), tensors)
    for weight, symbol in symbols:
        if symbol is None and tensors:
            raise TypeError(
                f"the weight {weight.path!r} would be a constant of the model here, "
                "which training leaves as it is: read it in the `call` of a layer that "
                "has its layer as an attribute"
            )
    return filled_in(given, [_value_of(w) if s is None else s for w, s in symbols])


def is_whole(value: Any) -> bool:
    """Return whether a value is a tensor without a batch of any size."""
    return isinstance(value, SymbolicTensor) and value._whole is not None


def are_arrays(*values: Any) -> bool:
    """Return whether there are arrays, and no symbolic tensors, among arguments."""
    leaves: list[Any] = []
    pattern(values, leaves, (SymbolicTensor, np.ndarray, np.generic))
    return bool(leaves) and not any(isinstance(x, SymbolicTensor) for x in leaves)


def array_of(value: Any) -> np.ndarray:
    """Return an array as it is, which a tape may have seen, or a new one."""
    return value if isinstance(value, np.ndarray) else np.asarray(value)


class SymbolicTensor(FixedAttributes):
    """The result of calling a layer on other symbolic tensors.

    Parameters
    ----------
    sample_shape : tuple of int
        The shape without the batch.
    node : Node
        The call that made the tensor.
    sample_dtype : str, default "float32"
        The dtype if all layers computed in float32.
    whole : tuple of int, optional
        The whole shape of a tensor of a function or of a weight, whose axis 0 need not
        be a batch. Layers take it for one.
    twin : SymbolicTensor, optional
        The result of the same call with another length of the axes of any length, if
        its shape differs.
    """

    __slots__ = ("_whole", "node", "sample_dtype", "sample_shape", "twin")

    def __init__(
        self,
        sample_shape: Shape,
        node: Node,
        sample_dtype: str = "float32",
        whole: Shape | None = None,
        twin: SymbolicTensor | None = None,
    ) -> None:
        self.sample_shape = sample_shape
        self._whole = whole
        self.twin = twin
        self.node = node
        self.sample_dtype = sample_dtype

    @property
    def dtype(self) -> str:
        """The dtype; for floats, the layer's compute dtype, or float32 in a loss."""
        if self.sample_dtype != "float32" or in_loss.get():
            return self.sample_dtype
        return self.node.layer._float_dtype(self)

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape; None stands for a batch of any size, or an axis of any length."""
        if self._whole is not None:
            return self._whole
        size = self.node.batch_size
        return (None if size is None else size * self.node.rows, *self.open_shape)

    @property
    def open_shape(self) -> OpenShape:
        """The shape without the batch, with None for axes of any length."""
        if self.twin is None:
            return self.sample_shape
        pairs = zip(self.sample_shape, self.twin.sample_shape, strict=True)
        return tuple(one if one == other else None for one, other in pairs)

    @property
    def whole(self) -> bool:
        """Whether it has no batch: a weight, a constant, or made from such alone."""
        return self._whole is not None

    @property
    def whole_shape(self) -> Shape:
        """The shape of a tensor without a batch of any size."""
        assert self._whole is not None
        return self._whole

    @property
    def name(self) -> str:
        """The name of the layer that made the tensor."""
        return self.node.layer.name

    def __repr__(self) -> str:
        return f"<SymbolicTensor shape={self.shape} of layer {self.name!r}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be copied: copy the model, or call the layers again"
        )

    def __array__(self, *_args: object, **_options: object) -> None:
        raise TypeError(f"{self!r} has no values: it is a placeholder for data")

    # The module `_operators`, which imports this one and sets this attribute.
    operators: ClassVar[Any]

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Apply the ufunc of an operator; TypeError for all other ufuncs."""
        kind = {"true_divide": "divide"}.get(ufunc.__name__, ufunc.__name__)
        if method == "__call__" and kind in _OPERATORS and len(inputs) == 2:
            return self.operators.binary(kind, *inputs)
        raise TypeError(
            f"numpy.{ufunc.__name__} cannot be applied to {self!r}, which has no "
            "values: use operators, layers or the functions of memcfg.nn.ops"
        )

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} has no truth value, since it is a placeholder for data: choose "
            "elements with memcfg.nn.ops.where(condition, a, b), or a branch with "
            "ops.cond"
        )

    def _refuse_python(self, what: str, instead: str) -> NoReturn:
        raise TypeError(f"{self!r} has no {what} while it is traced: {instead}")

    def __float__(self) -> NoReturn:
        self._refuse_python("number", "use operators, or ops.cast(x, 'float32')")

    def __int__(self) -> NoReturn:
        self._refuse_python("number", "use operators, or ops.cast(x, 'int32')")

    def __len__(self) -> NoReturn:
        self._refuse_python("len()", "use x.shape[0], or ops.shape(x)")

    def __iter__(self) -> NoReturn:
        self._refuse_python("elements", "use ops.unstack(x), ops.scan or ops.map")

    if not TYPE_CHECKING:  # otherwise type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            why = METHODS.get(name)
            why = "" if why is None else f": {why.format(name=name)}"
            raise AttributeError(
                f"a symbolic tensor has no {name!r}{why}", name=name, obj=self
            )

    def __eq__(self, other: object) -> Any:
        return self.operators.binary("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self.operators.binary("not_equal", self, other)

    def __lt__(self, other: Any) -> Any:
        return self.operators.binary("less", self, other)

    def __le__(self, other: Any) -> Any:
        return self.operators.binary("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return self.operators.binary("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return self.operators.binary("greater_equal", self, other)

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

    def __rpow__(self, other: Any) -> Any:
        return self.operators.binary("power", other, self)

    def __mod__(self, other: Any) -> Any:
        return self.operators.binary("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self.operators.binary("remainder", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self.operators.binary("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self.operators.binary("floor_divide", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self.operators.binary("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self.operators.binary("matmul", other, self)

    def __and__(self, other: Any) -> Any:
        return self.operators.binary("logical_and", self, other)

    def __rand__(self, other: Any) -> Any:
        return self.operators.binary("logical_and", other, self)

    def __or__(self, other: Any) -> Any:
        return self.operators.binary("logical_or", self, other)

    def __ror__(self, other: Any) -> Any:
        return self.operators.binary("logical_or", other, self)

    def __xor__(self, other: Any) -> Any:
        return self.operators.binary("logical_xor", self, other)

    def __rxor__(self, other: Any) -> Any:
        return self.operators.binary("logical_xor", other, self)

    def __invert__(self) -> Any:
        return OPERATIONS["logical_not"](self)

    def __neg__(self) -> Any:
        return self.operators.negative(self)

    def __abs__(self) -> Any:
        return self.operators.absolute(self)

    def __getitem__(self, key: Any) -> Any:
        return self.operators.get_item(self, key)


class Node(FixedAttributes):
    """A call of a layer; `results` are the shapes and dtypes of its outputs.

    The shapes are those of samples, unless the results are `whole`. None in the shape
    of an input is an axis of any length. A call that is not `listed` is not one that
    the layer knows.
    """

    __slots__ = (
        "alike",
        "batch_size",
        "details",
        "in_operation",
        "inputs",
        "layer",
        "lengths",
        "order",
        "outputs",
        "rows",
        "scope",
    )

    alike: dict[tuple[int, int], Node]  # the same call with other lengths
    batch_size: int | None
    lengths: tuple[int, int] | None  # that stand for axes of any length, if there are
    outputs: tuple[SymbolicTensor, ...]

    def __init__(
        self,
        layer: Layer,
        inputs: tuple[SymbolicTensor, ...],
        results: Sequence[tuple[OpenShape, str]],
        details: Any = None,
        in_operation: bool | None = None,
        *,
        whole: bool = False,
        listed: bool = True,
        lengths: tuple[int, int] = LENGTHS,
        alike: dict[tuple[int, int], Node] | None = None,
    ) -> None:
        self.details = (
            details  # arguments of the call other than tensors: args, options
        )
        self.layer = layer
        self.inputs = inputs
        self.order = next(_order)
        self.scope = current_scope()  # what precedes its name
        # Whether an operator or op made the call; such calls drop masks.
        self.in_operation = (
            _in_operation.get() if in_operation is None else in_operation
        )
        sizes = {tensor.node.batch_size for tensor in inputs} - {None}
        own: int | None = getattr(layer, "batch_size", None)
        self.batch_size = None if whole else sizes.pop() if sizes else own
        # The length of the first axis of the results, for one sample.
        self.rows = layer._rows_of(inputs)
        known = [x.node.lengths for x in inputs if x.node.lengths is not None]
        if not inputs and any(None in shape for shape, _ in results):
            known = [lengths]
        self.lengths = known[0] if known else None
        self.alike = {} if alike is None else alike
        made, other = _tried(layer, inputs, results, details, lengths)
        twins: Sequence[SymbolicTensor | None] = [None] * len(made)
        if other is not None:
            others = tuple(x if x.twin is None else x.twin for x in inputs)
            again = self.details, self.in_operation
            twins = Node(layer, others, other, *again, listed=False).outputs
        self.outputs = tuple(
            SymbolicTensor(shape[1:], self, dtype, shape)
            if whole
            else SymbolicTensor(
                shape, self, dtype, None, _if_unlike(shape, twin, layer)
            )
            for (shape, dtype), twin in zip(made, twins, strict=True)
        )
        if self.lengths is not None:
            self.alike.setdefault(self.lengths, self)
        if results and listed:  # the node of a weight has none
            layer._calls.append(weakref.ref(self))
            if whole and inputs:
                Variable.functions.note_call(self)

    @property
    def training(self) -> bool | None:
        """The mode of the call, or None for the mode of the model."""
        options: dict[str, Any] = {} if self.details is None else self.details[1]
        return options.get("training")


_Results = list[tuple[Shape, str]]


def repeated(
    node: Node,
    inputs: Sequence[SymbolicTensor],
    results: Sequence[tuple[OpenShape, str]] = (),
    lengths: tuple[int, int] | None = None,
) -> Node:
    """Return the same call of other tensors; only that of an input has `results`.

    With `lengths`, it is the call in which those stand for axes of any length.
    """
    layer, whole = node.layer, bool(node.inputs) and all(x.whole for x in inputs)
    made: Any = results or layer._again(inputs, node.details)
    return Node(
        layer,
        tuple(inputs),
        made,
        node.details,
        node.in_operation,
        whole=whole,
        listed=False,
        lengths=lengths or LENGTHS,
        alike=None if lengths is None else node.alike,
    )


def _tried(
    layer: Layer,
    inputs: Sequence[SymbolicTensor],
    results: Sequence[tuple[OpenShape, str]],
    details: Any,
    lengths: tuple[int, int],
) -> tuple[_Results, _Results | None]:
    """Return the results of a call with both lengths; None if it has no such axis."""
    if not inputs and any(None in shape for shape, _ in results):
        one, other = (
            [
                (tuple(length if n is None else n for n in shape), dtype)
                for shape, dtype in results
            ]
            for length in lengths
        )
        return one, other
    made: _Results = list(results)  # type: ignore[arg-type]  # those of calls are known
    if all(each.twin is None for each in inputs):
        return made, None
    others = [x if x.twin is None else x.twin for x in inputs]
    shown = " and ".join(str(x.shape) for x in inputs if x.twin is not None)
    try:
        again = layer._again(others, details)
    except OtherWeightsError:
        raise OtherWeightsError(_depends(layer, shown)) from None
    except ValueError as error:
        raise ValueError(
            f"layer {layer.name!r} ({type(layer).__name__}) takes one length, and not "
            f"any of an axis that is None, as in {shown}: {error}"
        ) from error
    if len(again) != len(made):
        raise ValueError(
            f"layer {layer.name!r} returns as many tensors as an axis of {shown} is "
            "long, and it has any length: give Input its length"
        )
    return made, again


def tried_with(*values: Any) -> str:
    """Say which length stands in an error for axes of any length; empty if for none."""
    leaves: list[SymbolicTensor] = []
    pattern(values, leaves)
    open_ = [x for x in leaves if x.twin is not None and x.node.lengths is not None]
    if not open_:
        return ""
    return f" ({open_[0].node.lengths[0]} stands for an axis of None)"  # type: ignore[index]


def _depends(layer: Layer, shown: str) -> str:
    """Say that weights depend on an axis of any length."""
    return (
        f"the weights of layer {layer.name!r} ({type(layer).__name__}) depend on the "
        f"length of an axis that is None: its input has shape {shown}. Reduce the axis "
        "before, as GlobalAveragePooling1D or h[:, -1] do, or give Input its length"
    )


def _if_unlike(
    shape: Shape, twin: SymbolicTensor | None, layer: Layer
) -> SymbolicTensor | None:
    """Return the twin of a result, if its shape differs."""
    if twin is None or twin.sample_shape == shape:
        return None
    if len(twin.sample_shape) != len(shape):
        raise ValueError(
            f"layer {layer.name!r}: the rank of its result depends on the length of an "
            "axis that is None: give Input the length"
        )
    return twin


class OtherWeightsError(ValueError):
    """Raised for inputs that would need weights of other shapes."""


def show_shape(sample_shape: OpenShape) -> str:
    """Return a shape as text with None for the batch, as in Keras."""
    return str((None, *sample_shape))


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """A weight of a layer, without its value."""

    name: str
    shape: tuple[int, ...]
    initializer: Initializer
    trainable: bool = True
    dtype: str = "float32"
    hidden: bool = False  # state, not listed among a model's weights
    regularizer: Any = None
    constraint: Any = None


@dataclass(eq=False)
class Scope:
    """The context of a layer's call while its model is traced."""

    builder: Builder
    name: str
    weights: Mapping[str, int]
    _: KW_ONLY
    training: bool  # the mode; `builder.training` says if gradients follow
    call: int = 0
    sequence: int | None = None  # the call of an `RNN` of which this is a step
    step: Callable[[], int] | None = None
    trainable: bool = True  # whether the layer is not frozen
    details: Any = None  # arguments of the call
    masks: Sequence[int | None] = ()  # of the inputs, [batch, steps] or None
    mask: Any = None  # of the result; a list for several results
    # names of the inner layers of the layer, as `labels_of` returns them
    labels: Mapping[Layer, str] = field(default_factory=dict)
    # number of calls of each layer so far
    calls: dict[Layer, int] = field(default_factory=dict)
    # Activities with their regularizers, and losses of `add_loss` with None.
    penalties: list[tuple[Any, int]] = field(default_factory=list)
    # Spans of penalties, by the call and, of its last call, by the layer.
    spans: dict[Node | Layer, slice] = field(default_factory=dict)
    # Metrics with the numbers that calls of layers add to them, in order.
    sums: list[tuple[Any, tuple[int, ...]]] = field(default_factory=list)
    summed: dict[Node, slice] = field(default_factory=dict)  # of sums, by call
    # weights by name that layers replace in training; None: they cannot
    rewritten: dict[str, int] | None = None
    # values to move by a momentum or, with None, to assign at the end of the step
    moving: list[tuple[str, int, float | None]] = field(
        default_factory=list, init=False
    )
    # the last values that calls assign to weights, by their whole names
    newest: dict[str, int] = field(default_factory=dict)

    def apply(
        self, kind: str, inputs: Sequence[int], attributes: Any = None, /
    ) -> tuple[int, ...]:
        """Append an op named after the layer."""
        label = "bias_add" if kind == "bias" else kind  # "bias" names the weight
        whole = of_integers(self.builder, kind, inputs, attributes, self.name)
        if whole is not None:
            return whole
        operands = self._promoted(kind, inputs)
        name, integers = f"{self.name}/{label}", self.builder.integers
        if kind in _BY_INTEGERS and operands[1] in integers:
            parts = integers[operands[1]]
            return self._by_integers(kind, operands[0], parts, attributes, name)
        made = self.builder.apply(kind, operands, attributes, name=name)
        if kind == "reshape" and len(integers.get(operands[0], ())) == 1:
            (own,), last = integers[operands[0]], self.builder.shape(made[0])[-1:]
            if own.group is None and last == self.builder.shape(own.scales):
                alike = self.builder.apply(kind, (own.codes,), attributes, name=name)
                integers[made[0]] = [own._replace(codes=alike[0])]
        return made

    def _by_integers(
        self, kind: str, x: int, parts: Sequence[Integers], attributes: Any, name: str
    ) -> tuple[int, ...]:
        """Append the products with parts of a weight, and put them together."""
        made: list[int] = []
        for number, own in enumerate(parts):
            if own.group is None:
                op, how = f"{kind}_int8", attributes
            else:
                rows = self.builder.shape(x)[-1]
                op, how = "dense_int4", {"inputs": rows, "group": own.group}
            label = name if len(parts) == 1 else f"{name}/part{number}"
            operands = x, own.codes, own.scales
            made += self.builder.apply(op, operands, how, name=label)
        if len(made) == 1:
            return (made[0],)
        axis = {"axis": len(self.builder.shape(made[0])) - 1}
        return self.builder.apply("concatenate", made, axis, name=name)

    def _promoted(self, kind: str, inputs: Sequence[int]) -> Sequence[int]:
        """Return the operands, with integers as float32 where Keras's result is float.

        A product of integers stays refused: float32 would not hold it.
        """
        dtypes = [self.builder.dtype(each) for each in inputs]
        if "int32" not in dtypes:
            return inputs
        mixed = kind in _PRODUCTS and len({*dtypes}) > 1
        if kind in _OF_NO_INTEGERS and not mixed:
            raise TypeError(
                f"{self.name}: {kind} of integers is not computed: convert them by "
                "ops.cast(x, 'float32'), which holds integers of up to 2**24"
            )
        if not mixed and kind not in _OF_FLOATS and op_type(kind).formula is None:
            return inputs
        return [
            self.builder.apply(
                "cast", (each,), {"dtype": "float32"}, name=f"{self.name}/cast"
            )[0]
            if dtype == "int32"
            else each
            for each, dtype in zip(inputs, dtypes, strict=True)
        ]

    def dtype(self, tensor: int) -> str:
        """Return a tensor's dtype as layers see it, with float32 for bfloat16."""
        result = self.builder.dtype(tensor)
        return "float32" if result == "bfloat16" else result

    def mask_of(self, place: int) -> int | None:
        """Return the mask of an input in float32, or None."""
        mask = self.masks[place] if place < len(self.masks) else None
        return None if mask is None else self.builder.cast(mask, "float32")

    def move(self, weight: str, value: int, momentum: float) -> None:
        """Request the update of a moving average at the end of the step."""
        self.moving.append((weight, value, momentum))

    def assign(self, weight: str, value: int) -> None:
        """Request a new value of a weight, which later calls of its layer read."""
        self.moving.append((weight, value, None))
        self.newest[f"{self.name}/{weight}"] = value

    def sums_of(self, node: Node) -> Sequence[tuple[Any, tuple[int, ...]]]:
        """Return the metrics that a call before updates, with the numbers to add."""
        return self.sums[self.summed.get(node, slice(0))]

    def read(self, weight: str) -> int:
        """Return a weight, or what an earlier call of its layer assigns to it."""
        return self.newest.get(f"{self.name}/{weight}", self.weights[weight])

    def trace(
        self,
        nodes: Sequence[Node],
        values: dict[SymbolicTensor, int],
        masks: dict[SymbolicTensor, int | None],
    ) -> None:
        """Append the ops of inner calls, adding results to `values` and `masks`."""
        for node in nodes:
            if node.outputs[0] not in values:
                inner = self._inner(node)
                # Operators and ops see no masks and drop them, as in Keras 3.
                passed = () if node.in_operation else node.inputs
                inner.masks = [masks.get(tensor) for tensor in passed]
                begin, first = len(self.penalties), len(self.sums)
                made = inner.run(node.layer, [values[each] for each in node.inputs])
                if len(self.penalties) > begin:
                    span = slice(begin, len(self.penalties))
                    self.spans |= {node: span, node.layer: span}
                if len(self.sums) > first:
                    self.summed[node] = slice(first, len(self.sums))
                several = [made] if isinstance(made, int) else made
                values |= zip(node.outputs, several, strict=True)
                if isinstance(node.layer, Assignment):  # what later calls read
                    values[node.layer.weight] = several[0]
                ends = inner.mask if isinstance(inner.mask, list) else [inner.mask]
                masks |= zip(node.outputs, ends, strict=False)

    def run(self, layer: Layer, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append a layer's ops and set the mask of its result."""
        builder, self.labels = self.builder, labels_of(layer._sublayers())
        group, builder.group = builder.group, self.name
        dtype = builder.compute_dtype
        if dtype is not None:
            builder.compute_dtype, layer._policy_used = layer.compute_dtype, True
        passes = layer.supports_masking and not layer._makes_mask
        self.mask = self.masks[0] if self.masks and passes else None
        made = layer._traced(self, inputs)
        layer._settle_mask(self, inputs, made)
        builder.group, builder.compute_dtype = group, dtype
        if layer.activity_regularizer is not None:
            several = [made] if isinstance(made, int) else made
            self.penalties += [(layer.activity_regularizer, each) for each in several]
        if self._outer is not None:
            label = self.name.rpartition("/")[2]
            self._outer.moving += [(f"{label}/{w}", v, m) for w, v, m in self.moving]
        return made

    def _inner(self, node: Node) -> Scope:
        layer = node.layer
        call, label = self.calls.get(layer, 0), self.labels.get(layer, layer.name)
        self.calls[layer] = call + 1
        weights = self._grouped.get(label, {})
        before = "" if weights else node.scope  # files know weights by names
        scope = replace(
            self,
            name="/".join(filter(None, (self.name, before, label))),
            weights=weights,
            labels={},
            trainable=self.trainable and layer.trainable,
            training=self.training if node.training is None else node.training,
            call=call,
            details=node.details,
        )
        scope._outer = self
        return scope

    @cached_property
    def _grouped(self) -> dict[str, dict[str, int]]:
        """The weights by layer."""
        result: dict[str, dict[str, int]] = {}
        for name, tensor in self.weights.items():
            layer, _, rest = name.partition("/")
            result.setdefault(layer, {})[rest] = tensor
        return result

    _outer: Scope | None = field(default=None, init=False)


_OF_WEIGHTS = ("_regularizer", "_constraint")  # suffixes of arguments of all layers
_PASSED = ("trainable", "dtype")  # arguments of all layers


def _with_passed(init: Callable[..., None]) -> Callable[..., None]:
    """Let the constructor of a class take the arguments of all layers, for subclasses.

    The metaclass takes those of calls of the class itself.
    """

    @functools.wraps(init)
    def call(self: Layer, *args: Any, **options: Any) -> None:
        given = {name: options.pop(name) for name in _PASSED if name in options}
        init(self, *args, **options)
        for name, value in given.items():
            self._take(name, value)

    return call


class _LayerType(type):
    """Metaclass that handles the arguments common to all layers."""

    @property
    def __signature__(cls) -> inspect.Signature:
        """The signature of the constructor without the arguments of every `Layer`."""
        result = inspect.signature(getattr(cls, "__init__"))  # noqa: B009
        _, *own = result.parameters.values()
        common = ("trainable", "dtype", "activity_regularizer")
        if cls.__mro__[1] is not FixedAttributes:
            own = [
                each
                for each in own
                if each.name not in common[: 2 + (each.kind is each.KEYWORD_ONLY)]
            ]
        return result.replace(parameters=own)

    def __call__(cls, *args: Any, **options: Any) -> Any:
        try:
            return cls._made(args, options)
        except Exception as error:
            shorten(error)
            raise

    def _made(cls, args: Any, options: dict[str, Any]) -> Any:
        """Return a layer; what all layers take is set after it was initialised."""
        accepted = inspect.signature(cls).parameters
        args, first = cls._without_format(args, options, list(accepted))
        common = ("input_shape", "input_dim", "trainable", "dtype")
        own = {
            name: options.pop(name)
            for name in list(options)
            if name not in accepted
            if name in common or name.endswith(_OF_WEIGHTS)
            if not cls._passes(name)
        }
        for name in own:
            if name.endswith(_OF_WEIGHTS) and not cls._has_weight(name):
                raise TypeError(refusal(cls.__name__, name))
        layer = super().__call__(*args, **options)
        if first:
            layer._channels_first = True
        for name, value in own.items():
            layer._take(name, value)
        return layer

    def _passes(cls, name: str) -> bool:
        """Return whether a user's constructor gets an argument of all layers.

        It passes it to that of its base class, and may change inner layers afterwards.
        """
        owner: Any = next(each for each in cls.__mro__ if "__init__" in vars(each))
        if owner.__module__.startswith("memcfg.") or name not in _PASSED:
            return False
        known = inspect.signature(owner.__init__).parameters
        rest = any(each.kind is each.VAR_KEYWORD for each in known.values())
        return name in known or rest

    def _without_format(
        cls, args: Any, options: dict[str, Any], accepted: list[str]
    ) -> tuple[Any, bool]:
        """Return positional arguments, and whether channels are to come first.

        Constructors see the format that they compute in.
        """
        if "data_format" not in accepted or not cls.takes_channels_first:
            return args, False
        if options.get("data_format") == "channels_first":
            options["data_format"] = None
            return args, True
        place = accepted.index("data_format")
        if args[place : place + 1] == ("channels_first",):
            return (*args[:place], None, *args[place + 1 :]), True
        return args, False

    takes_channels_first = True  # in layers that have a `data_format`

    def _has_weight(cls, argument: str) -> bool:
        """Return whether a constructor has the initializer of an argument's weight."""
        wanted = argument.rpartition("_")[0] + "_initializer"
        return argument == "activity_regularizer" or any(
            wanted in inspect.signature(vars(each)["__init__"]).parameters
            for each in cls.__mro__
            if "__init__" in vars(each) and each is not object
        )


def _once(build: Callable[..., None]) -> Callable[..., None]:
    """Make a layer whose `build` was called not build itself when it is called."""

    @functools.wraps(build)
    def call(self: Layer, *args: Any, **options: Any) -> None:
        self._is_built = True
        build(self, *args, **options)

    return call


class Layer(FixedAttributes, Configured, metaclass=_LayerType):
    """Base class of all layers.

    Calling a layer on the result of another connects them. A layer called in two
    places has one set of weights, and the gradients of both calls are added.

    A subclass overrides `call`, which computes on symbolic tensors with operators,
    other layers, stored as attributes, and weights, made with `add_weight` in `build`.

    Parameters
    ----------
    name : str, optional
        A name unique within a model. By default a name such as ``"conv2d_1"``, as in
        Keras.
    trainable : bool, default True
        Whether training changes the weights.
    dtype : {"float32", "mixed_bfloat16"} or DTypePolicy, optional
        The dtype policy. By default that of the model, or the one set by
        `memcfg.config.set_dtype_policy` when the layer is made.
    activity_regularizer : Regularizer or str, optional
        A penalty on the result, added to the loss. All layers take these three
        arguments by keyword, and ``NAME_regularizer`` and ``NAME_constraint`` for a
        weight, such as ``kernel_constraint``; the first layer of a `Sequential` takes
        ``input_shape``.

    Raises
    ------
    TypeError
        If `name` is not a string.
    ValueError
        If `name` is empty or contains ``/``, or `dtype` is not supported.
    RuntimeError
        If `dtype_policy` is set after the layer's model was compiled or has run.

    Examples
    --------
    >>> import memcfg as mc
    >>> class Scaled(mc.nn.Layer):
    ...     def build(self, input_shape):
    ...         self.scale = self.add_weight((input_shape[-1],), "ones", name="scale")
    ...
    ...     def call(self, x):
    ...         return x * self.scale
    >>> Scaled()(mc.nn.Input((3,))).shape
    (None, 3)
    """

    __slots__ = (
        "_activity",
        "_calls",
        "_channels_first",
        "_constraints",
        "_drawn",
        "_first_shape",
        "_inner",
        "_is_built",
        "_kind",
        "_line",
        "_named",
        "_own",
        "_owner",
        "_parametrized",
        "_policy",
        "_policy_said",
        "_policy_used",
        "_regularizers",
        "_seed",
        "_trainable",
        "_users",
        "_values",
        "_weight_specs",
        "name",
    )

    arity: ClassVar[int | None] = 1  # number of inputs; None for two or more
    # Whether the first input's mask applies to the result, unless `trace` sets one.
    supports_masking: ClassVar[bool] = False
    _moving: ClassVar[tuple[str, ...]] = ()  # weights that its calls move
    # What to do where the `call` of a layer that does not hold it reads a weight.
    _not_held: ClassVar[str] = (
        "which is not an attribute: set self.layer = ... in the constructor"
    )
    takes_mask: ClassVar[bool] = False  # whether a call may be given a mask
    # Arguments of a call after its inputs, in Keras's order.
    _after_inputs: ClassVar[tuple[str, ...]] = ()
    _keeps_first_mask: ClassVar[bool] = False  # whatever the shape of the first mask
    _is_mean: ClassVar[bool] = False  # of all numbers of its operand, as one number
    _makes_mask: ClassVar[bool] = False  # `trace` sets the mask of the result, or none
    _reads_images: ClassVar[bool] = False  # accepts images only
    of_batch: ClassVar[bool] = False  # whether a result depends on other samples
    prepares: ClassVar[bool] = False  # computed on the host, before the program

    def __init__(
        self,
        name: str | None = None,
        *,
        trainable: bool = True,
        dtype: str | DTypePolicy | None = None,
        activity_regularizer: Any = None,
    ) -> None:
        self._kind = snake_case(self._called())
        self._named = name is not None
        self._line = line_outside()  # of the program that makes it
        self.name = automatic_name(self._kind) if name is None else check_name(name)
        self._seed = self._drawn = next_seed()
        self._weight_specs: tuple[WeightSpec, ...] | None = None
        self._owner: weakref.ref[Any] | None = None  # the model that holds the values
        # of weights, while no model holds them
        # Values that no model holds; None for those that were lost with their model.
        self._values: dict[str, np.ndarray | None] = {}
        self._channels_first = False
        self._trainable = bool(trainable)
        self._users = 0  # number of models that have held the values
        self._regularizers: dict[str, Regularizer] = {}  # by name of the weight
        self._constraints: dict[str, Constraint] = {}
        self._activity = get_regularizer(activity_regularizer)
        self._policy = dtype_policy()
        self._policy_said = False  # whether it was set explicitly
        self._policy_used = False  # whether a program was traced with it
        if dtype is not None:
            self._take("dtype", dtype)
        self._first_shape: OpenShape | None = None
        self._is_built = False
        self._own: list[WeightTensor] = []  # made by `add_weight`
        # how weights are computed from parts that the model holds, by name
        self._parametrized: dict[str, Parametrization] = {}
        self._inner: dict[Any, Any] = {}  # cache of traces of `call`
        self._calls: list[weakref.ref[Node]] = []  # may contain dead references

    # Have the models of a layer plan anew; the module `_model` sets both. The first is
    # called with the function that changes the layer.
    change_in_models: ClassVar[Callable[[Layer, Callable[[], None]], None]]
    rename_in_models: ClassVar[Callable[[Layer, str], None]]

    def __setattr__(self, name: str, value: Any) -> None:
        known = getattr(type(self), name, None)
        if name == "name" and isinstance(known, MemberDescriptorType):
            value = check_name(value)
            if is_set(known, self):
                Layer.rename_in_models(self, value)
                return
        if (
            isinstance(known, MemberDescriptorType)
            and name[0] != "_"
            and name != "name"
        ):
            of = inspect.signature(self._class_of_library()).parameters
            if is_set(known, self) and name in of:
                self._change(name, value)
                return
        if name.endswith(_OF_WEIGHTS) and type(self)._has_weight(name):
            self._attach(name, value)
            return
        super().__setattr__(name, value)

    @classmethod
    def _class_of_library(cls) -> Any:
        """Return the class, or the one of memcfg that a user's class extends."""
        ours = (each for each in cls.__mro__ if each.__module__.startswith("memcfg."))
        return next(ours)

    def _change(self, name: str, value: Any) -> None:
        """Set an argument of a constructor, as the constructor takes it.

        Programs that are planned later compute with it. Calls keep their shapes.
        """
        kind = self._class_of_library()
        accepted = inspect.signature(kind).parameters
        known = {each: getattr(self, each) for each in accepted if hasattr(self, each)}
        for each, start in getattr(self, "initializers", {}).items():
            known[f"{each}_initializer"] = start
        if isinstance(known.get(name), Layer) or any(
            each.default is each.empty and each.name not in known
            for each in accepted.values()
        ):
            self._refuse(f"{name!r} of {kind.__name__} is fixed when it is made", name)
        with same_seeds():
            fresh = kind(**known | {"name": self.name, name: value})
        fresh._channels_first = self._channels_first
        kept = getattr(kind, "_kept_as", {}).values()
        new = {
            each: held
            for each, held in FixedAttributes.__getstate__(fresh).items()
            if (each[0] != "_" and each != "name") or each in kept
        }
        own = FixedAttributes.__getstate__(self)
        old = {each: own[each] for each in new if each in own}
        Layer.change_in_models(self, lambda: self._update(name, value, new, old))

    def _update(
        self, name: str, value: Any, new: dict[str, Any], old: dict[str, Any]
    ) -> None:
        """Set attributes, unless calls of the layer would have other results."""
        Layer.__setstate__(self, new)
        try:
            for each in self._calls:
                node = each()
                if node is None or not node.inputs:
                    continue
                known = [
                    x.whole_shape if x.whole else x.sample_shape for x in node.outputs
                ]
                made = self._again(node.inputs, node.details)
                if [tuple(shape) for shape, _ in made] != known:
                    raise ValueError("its result would have another shape")
        except ValueError as error:
            Layer.__setstate__(self, old)
            raise ValueError(
                f"{name!r} of layer {self.name!r}, which has been called, cannot be "
                f"{new.get(name, value)!r}: {error}"
            ) from None
        self.forget_traces()

    def forget_traces(self) -> None:
        """Drop what was traced with other settings."""
        for key, each in list(self._inner.items()):
            if hasattr(each, "forget_traces"):
                each.forget_traces()
            else:
                del self._inner[key]

    def _take(self, name: str, value: Any) -> None:
        """Set an argument common to all layers."""
        if name == "dtype" and value is not None:
            try:
                self._policy, self._policy_said = as_policy(value), True
            except ValueError as error:
                raise ValueError(f"{type(self).__name__}: {error}") from None
        elif name == "trainable":
            self.trainable = value
        elif name == "input_shape":
            self._first_shape = sample_shape(value)
        elif name == "input_dim":
            self._first_shape = sample_shape((value,))
        elif name == "activity_regularizer":
            self._activity = get_regularizer(value)
        elif value is not None:
            self._attach(name, value)

    def _attach(self, argument: str, value: Any) -> None:
        """Set a regularizer or a constraint of a weight."""
        weight, _, what = argument.rpartition("_")
        if what == "regularizer":
            self._regularizers[weight] = get_regularizer(value)  # type: ignore[assignment]
        elif what == "constraint":
            self._constraints[weight] = get_constraint(value)  # type: ignore[assignment]

    def _called(self) -> str:
        """Return the base of automatic names."""
        return type(self).__name__

    @property
    def dtype_policy(self) -> DTypePolicy:
        """The dtype policy; setting it also sets it on inner layers."""
        return self._policy

    @dtype_policy.setter
    def dtype_policy(self, value: str | DTypePolicy) -> None:
        change_policy([self], as_policy(value), said=True)()

    @property
    def compute_dtype(self) -> str:
        """The dtype that the layer computes in, ``"float32"`` or ``"bfloat16"``."""
        return self._policy.compute_dtype

    def _float_dtype(self, tensor: SymbolicTensor) -> str:
        """Return the dtype of a floating-point result of the layer."""
        del tensor
        return self.compute_dtype

    @property
    def variable_dtype(self) -> str:
        """The dtype of the layer's weights, ``"float32"``."""
        return self._policy.variable_dtype

    _has_format: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Note what a class has: a `build` of its own, the argument `data_format`."""
        super().__init_subclass__(**options)
        if "build" in vars(cls):
            cls.build = _once(vars(cls)["build"])  # type: ignore[method-assign]
        if not (cls.__module__.startswith("memcfg.nn.") and "__init__" in vars(cls)):
            return
        names = inspect.signature(vars(cls)["__init__"]).parameters
        cls._has_format = cls._has_format or "data_format" in names
        if not {*_PASSED} & names.keys():
            cls.__init__ = _with_passed(vars(cls)["__init__"])  # type: ignore[method-assign]

    @property
    def activity_regularizer(self) -> Any:
        """The penalty on the result, or None."""
        return self._activity

    @property
    def seed(self) -> int:
        """The seed of everything that the layer draws."""
        own: int = getattr(self, "__dict__", {}).get("seed", self._seed)
        return own

    @seed.setter
    def seed(self, value: Any) -> None:
        if not hasattr(self, "__dict__"):
            self._refuse(f"'seed' of {type(self).__name__} cannot be set", "seed")
        self.__dict__["seed"] = value  # of a user's class, which may be None
        if isinstance(value, int) and value >= 0:
            self._seed = value

    @property
    def weight_specs(self) -> tuple[WeightSpec, ...] | None:
        """The specifications of the weights; None until the layer is called."""
        return self._weight_specs

    @property
    def trainable(self) -> bool:
        """Whether training changes the weights, as read by `compile`.

        Setting it also sets it on inner layers. Frozen weights have no gradients and no
        optimizer state, and a frozen BatchNormalization normalises by its moving
        averages.
        """
        return self._trainable

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self._trainable = bool(value)
        for layer in self._sublayers():
            layer.trainable = value

    @property
    def weights(self) -> list[Variable]:
        """All weights, in Keras's order; empty until shapes are known."""
        return [
            Variable(layer, i, f"{self.name}/{path}{spec.name}")
            for path, layer in self._leaves()
            for i, spec in enumerate(layer._weight_specs or ())
            if not spec.hidden
        ]

    @property
    def trainable_weights(self) -> list[Variable]:
        """The weights that training changes."""
        return [each for each in self.weights if each.trainable] * self.trainable

    @property
    def non_trainable_weights(self) -> list[Variable]:
        """The weights that training does not change."""
        if not self.trainable:
            return self.weights
        return [each for each in self.weights if not each.trainable]

    variables = weights
    trainable_variables = trainable_weights
    non_trainable_variables = non_trainable_weights

    @property
    def built(self) -> bool:
        """Whether the shapes of the weights are known, or there are none."""
        return self._weight_specs is not None or self._never_has_weights()

    @built.setter
    def built(self, value: bool) -> None:
        if bool(value) != self.built:
            if not value:
                raise AttributeError(f"layer {self.name!r} has its weights already")
            self._weight_specs = ()

    def _never_has_weights(self) -> bool:
        """Return whether a layer has no weights, whatever its inputs are."""
        kind = type(self)
        own = kind.__module__.startswith("memcfg.nn.")  # defined by `call`, or `trace`
        return (
            (own or kind.trace is not Layer.trace)
            and kind.specs is Layer.specs
            and kind.build is Layer.build
            and not self._sublayers()
        )

    @property
    def losses(self) -> list[Any]:
        """The losses of regularizers and of `add_loss` in the layer's last call.

        What a call adds is one sum. In a function or a step they are tensors, else
        numbers.
        """
        return Variable.functions.losses_of(self)  # type: ignore[no-any-return]

    @property
    def input(self) -> Any:
        """The input of the layer's first call."""
        result = self._first_call("input").inputs
        return result[0] if len(result) == 1 else list(result)

    @property
    def output(self) -> Any:
        """The output of the layer's first call."""
        result = self._first_call("output").outputs
        return result[0] if len(result) == 1 else list(result)

    def _first_call(self, what: str) -> Node:
        for each in self._calls:
            if (node := each()) is not None:
                return node
        raise AttributeError(
            f"layer {self.name!r} has no {what}: it was not called on a symbolic "
            "tensor, or the result of the call was deleted"
        )

    if not TYPE_CHECKING:  # otherwise type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Return a weight by its name, such as ``kernel``, or `data_format`."""
            if hasattr(type(self), name):  # a property that raised
                return super().__getattr__(name)
            if name == "data_format" and self._has_format:
                return "channels_first" if self._channels_first else "channels_last"
            if name == "bias" and getattr(self, "use_bias", None) is False:
                return None
            if name.endswith(_OF_WEIGHTS) and type(self)._has_weight(name):
                weight, _, what = name.rpartition("_")
                held = self._constraints if what == "constraint" else self._regularizers
                return held.get(weight)
            specs = () if name.startswith("_") else self._weight_specs or ()
            for index, spec in enumerate(specs):
                if spec.name == name and not spec.hidden:
                    return Variable(self, index, f"{self.name}/{name}")
            return super().__getattr__(name)

    def stateless_call(
        self: Any,
        trainable_variables: Sequence[Any],
        non_trainable_variables: Sequence[Any],
        *args: Any,
        return_losses: bool = False,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Call on arrays with other values of the weights, and leave the weights alone.

        Parameters
        ----------
        trainable_variables, non_trainable_variables : sequence of array_like
            A value for each of the weights of that name.
        *args : array_like
            The arguments of the call.
        return_losses : bool, default False
            Whether to return the losses that the call adds as well.
        **kwargs : object
            The named arguments of the call, such as ``training``.

        Returns
        -------
        tuple
            The result, the values of `non_trainable_variables` after the call, and the
            losses if they are asked for.

        Raises
        ------
        ValueError
            If the shapes of the weights are not known, or the numbers or shapes of the
            values differ from theirs.
        RuntimeError
            In a function or `call` that is traced, whose weights are its state.

        Notes
        -----
        The weights have these values until the call ends, also for other threads: do
        not train or call the layer in another thread meanwhile.
        """
        if _call.get() is not None or Variable.functions.is_tracing():
            raise RuntimeError(
                f"{self.name!r}.stateless_call is for arrays: in a function or a call, "
                "the weights are its state, and reading and assigning them is traced"
            )
        held = [*self.trainable_variables, *self.non_trainable_variables]
        given = [*trainable_variables, *non_trainable_variables]
        first = len(self.trainable_variables)
        counts = first, len(held) - first
        got = len(trainable_variables), len(non_trainable_variables)
        if not self.built or counts != got:
            raise ValueError(
                f"{self.name!r} has {counts[0]} trainable weights and {counts[1]} "
                f"others, and {got[0]} and {got[1]} values were given"
                + ("" if self.built else ": build it first, or call it on data")
            )
        before = [each.numpy() for each in held]
        new = [np.array(x, own.dtype) for x, own in zip(given, held, strict=True)]
        for variable, value in zip(held, new, strict=True):
            if value.shape != variable.shape:
                raise ValueError(
                    f"weight {variable.path!r} must have shape {variable.shape}, got "
                    f"{value.shape}"
                )
        try:
            for variable, value in zip(held, new, strict=True):
                variable.assign(value)
            result = self(*args, **kwargs)
            after = [each.numpy() for each in held[first:]]
            added = (list(self.losses),) if return_losses else ()
        finally:
            for variable, value in zip(held, before, strict=True):
                variable.assign(value)
        return (result, after, *added)

    # The class of metrics; the module `metrics`, which imports this one, sets it.
    metric_type: ClassVar[Any] = ()

    @property
    def metrics(self) -> list[Any]:
        """The metrics that are attributes, also in lists and dicts, and inner layers'.

        `call` may update them. A model with such a layer resets them before each epoch
        and has their results in its logs.
        """
        result: list[Any] = []
        for _, layer in self._leaves():
            held = list(getattr(layer, "__dict__", {}).values())
            pattern(held, result, self.metric_type)
        return result

    def count_params(self) -> int:
        """Return the number of parameters.

        Returns
        -------
        int
            The number of elements of all weights.
        """
        return sum(prod(each.shape) for each in self.weights)

    def get_weights(self) -> list[np.ndarray]:
        """Return copies of all weights.

        Returns
        -------
        list of numpy.ndarray
            The values in Keras's order; empty until shapes are known.
        """
        return [each.numpy() for each in self.weights]

    def set_weights(self, weights: Sequence[Any]) -> None:
        """Replace all weights.

        Parameters
        ----------
        weights : sequence of array_like
            Values as returned by `get_weights`.

        Raises
        ------
        ValueError
            If the number or shapes differ; no weight is changed.
        """
        own = self.weights
        if len(weights) and self._weight_specs is None:
            raise ValueError(
                f"layer {self.name!r} has no weights yet: call it, or build its model"
            )
        dtypes = (each.dtype for each in own)
        try:
            arrays = [as_weight(each, next(dtypes, "float32")) for each in weights]
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"layer {self.name!r}: weights must be a list of arrays of numbers, "
                f"one for each of {[each.name for each in own]}: {error}"
            ) from None
        if [each.shape for each in own] != [array.shape for array in arrays]:
            raise ValueError(
                f"layer {self.name!r} has weights of shapes "
                f"{[each.shape for each in own]}, got arrays of shapes "
                f"{[array.shape for array in arrays]}"
            )
        for variable, array in zip(own, arrays, strict=True):
            variable.assign(array)

    def add_loss(self, loss: Any) -> None:
        """Add a loss that `call` computes to the loss of the model.

        Parameters
        ----------
        loss : SymbolicTensor
            The loss; the elements of a tensor are summed. In `call`, functions such as
            ``ops.mean(x)`` reduce the batch as well.

        Raises
        ------
        RuntimeError
            Outside of `call`.
        TypeError
            If the loss is no symbolic tensor.

        Notes
        -----
        A batch whose loss has such terms does not run in micro-batches, since whether
        they are sums or means over the samples is not known.
        """
        add_loss(loss, repr(self.name))

    @takes_arguments
    def add_weight(
        self,
        shape: Sequence[int] = (),
        initializer: Any = None,
        dtype: str | None = None,
        trainable: bool = True,
        regularizer: Any = None,
        constraint: Any = None,
        name: str | None = None,
    ) -> Variable:
        """Create a weight, in `build` or in the constructor.

        Parameters
        ----------
        shape : sequence of int, default ()
            The shape.
        initializer : str or Initializer, optional
            By default ``"glorot_uniform"``, or ``"zeros"`` with fewer than two axes.
        dtype : {"float32", "int32"}, optional
            None is ``"float32"``. Integers do not train.
        trainable : bool, default True
            Whether training changes the weight.
        regularizer : Regularizer, optional
            A penalty on the weight, added to the loss.
        constraint : Constraint, optional
            What is done to the weight after each update.
        name : str, optional
            A name unique within the layer. By default ``"weight"``, ``"weight_1"``, ...

        Returns
        -------
        Variable
            The weight: in `call` a tensor, and elsewhere its value.

        Raises
        ------
        ValueError
            If an argument cannot be honoured, or the name is taken.
        """
        kept = weight_dtype(dtype)
        if None in shape:
            what = f"such that a weight is {tuple(shape)}"
            raise OtherWeightsError(_depends(self, what))
        lengths = tuple(integer(each, "a length of a weight's shape") for each in shape)
        taken = [each.spec.name for each in self._own]
        if name is None:
            name = "weight" if not taken else f"weight_{len(taken)}"
        if check_name(name) in taken:
            raise ValueError(f"layer {self.name!r} already has a weight named {name!r}")
        usual = "glorot_uniform" if len(lengths) > 1 else "zeros"
        start = get_initializer(usual if initializer is None else initializer)
        more = get_regularizer(regularizer), get_constraint(constraint)
        trains = trainable and kept == "float32"
        spec = WeightSpec(name, lengths, start, trains, kept, False, *more)
        self._own.append(WeightTensor(spec, self))
        self._weight_specs = tuple(each.spec for each in self._own)
        return Variable(self, len(taken), f"{self.name}/{name}")

    def build(self, input_shape: Any = None, *more: Any) -> None:
        """Create the weights; overridden by subclasses.

        Parameters
        ----------
        input_shape : tuple of (int or None), or list of them
            The shapes of the layer's inputs, with the batch first. A layer whose
            weights depend on no input, such as `Embedding`, needs none.
        *more : tuple of (int or None)
            The shapes of further arguments of a call.

        Raises
        ------
        ValueError
            If the layer cannot take inputs of these shapes.
        """
        if type(self).trace is Layer.trace:
            return
        if input_shape is not None and self._sublayers():
            self(_inputs(input_shape))
            return
        inputs = [] if input_shape is None else _inputs(input_shape)
        several = [inputs] if isinstance(inputs, SymbolicTensor) else inputs
        given = self._operands([*several, *map(_inputs, more)]) if several else ()
        try:
            self._weight_specs = self._specs_for([each.sample_shape for each in given])
        except IndexError:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}): build needs the shape "
                "of the input, such as (None, 8)"
            ) from None

    def compute_output_shape(self, input_shape: Any, *more: Any) -> Any:
        """Return the shape of the result of inputs of given shapes.

        Parameters
        ----------
        input_shape : tuple of (int or None), or list of them
            The shapes of the layer's inputs, with the batch first.
        *more : tuple of (int or None)
            The shapes of further arguments of a call.

        Returns
        -------
        tuple of (int or None), or list of them
            The shape of the result, or of each result.

        Raises
        ------
        ValueError
            If the layer cannot take inputs of these shapes.
        """
        layer = self if self._weight_specs is not None else copy.deepcopy(self)
        return _shapes(layer(_inputs(input_shape), *map(_inputs, more)))

    def compute_output_spec(self, *args: Any, **options: Any) -> Any:
        """Return the result of a call on symbolic tensors, which says its shapes.

        Parameters
        ----------
        *args : SymbolicTensor or sequence of SymbolicTensor
            The arguments of a call.
        **options : object
            Further arguments of a call.

        Returns
        -------
        SymbolicTensor or sequence of SymbolicTensor
            The result. A layer without weights so far still has none.
        """
        layer = self if self._weight_specs is not None else copy.deepcopy(self)
        return layer(*args, **options)

    def call(self, inputs: Any) -> Any:
        """Compute the layer's result; overridden by subclasses.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            The layer's inputs. A subclass may take several arguments, and ``training``.

        Returns
        -------
        SymbolicTensor or sequence of SymbolicTensor
            The result.
        """
        raise NotImplementedError(
            f"{type(self).__name__} does not define what it computes: override `call`"
        )

    def __call__(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Connect the layer to symbolic tensors, or compute on arrays at once."""
        (inputs, *others), options = _without_variables((inputs, *more), options)
        more = tuple(others)
        if more and len(more) <= len(self._after_inputs):
            options = dict(zip(self._after_inputs, more, strict=False)) | options
            more = ()
        try:
            if are_arrays(inputs, more, options):
                given = (inputs, *more)
                return Variable.functions.at_once(self, given, options)
            if type(self).trace is Layer.trace:
                return self._join(inputs, *more, **options)
            return self._connect(inputs, *more, **options)
        except Exception as error:
            shorten(error)
            raise

    @of_any_length
    def _connect(self, inputs: Any, *more: Any, **options: Any) -> Any:
        """Connect a layer that is defined by its `trace`."""
        mode = self._given_mode(options)
        if self.takes_mask and options.get("mask") is not None:
            inputs = self._masked(inputs, options.pop("mask"))
        self._check_call(*more, **options)
        operands = self._operands(inputs)
        self._rows_of(operands)  # raises for those of other rows
        try:
            specs = self._specs_for([operand.sample_shape for operand in operands])
            structure, results = self._infer(specs, operands)
        except ValueError as error:
            known = tried_with(operands)
            if not known:
                raise
            raise ValueError(f"{error}{known}") from error
        before, self._weight_specs = self._weight_specs, specs
        details = ((), mode) if mode else None
        whole = self._is_whole(operands)
        try:
            outputs = Node(self, operands, results, details, whole=whole).outputs
        except ValueError:  # of an axis of any length
            self._weight_specs = before
            raise
        return outputs[0] if structure is None else structure(outputs)

    def _again(
        self, inputs: Sequence[SymbolicTensor], details: Any
    ) -> list[tuple[Shape, str]]:
        """Return the shapes and dtypes of the results of a call on other tensors."""
        if type(self).trace is not Layer.trace:
            specs = self._specs_for([each.sample_shape for each in inputs])
            return self._infer(specs, inputs)[1]
        steps = _steps_of_masks(inputs) if self._reads_masks() else ()
        training = details[1].get("training") is True
        inner = self._inner_of(inputs, details, training, steps)
        return [(each.sample_shape, each.sample_dtype) for each in inner.outputs]

    def _given_mode(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return the mode given to a call, if it differs from the outer `call`'s."""
        mode = options.pop("training", None)
        if mode is None or mode is call_mode.get():
            return {}
        return {"training": bool(mode)}

    def _masked(self, inputs: Any, mask: Any) -> Any:
        """Return inputs of which the first has a mask that is given to the call."""
        if isinstance(inputs, list | tuple):
            return [with_mask(inputs[0], mask, self.name), *inputs[1:]]
        return with_mask(inputs, mask, self.name)

    def _check_call(self, *more: Any, **options: Any) -> None:
        """Raise TypeError for arguments of a call other than tensors."""
        what = f"a call of layer {self.name!r}"
        for name in taken(what, (), options):
            raise TypeError(refusal(what, name))
        if more:
            shown = ", ".join(map(repr, more))
            raise TypeError(f"{what} accepts only tensors, got {shown}")

    @of_any_length
    def _join(self, *args: Any, **options: Any) -> Any:
        """Connect a layer that is defined by its `call`."""
        mode = self._given_mode(options)
        training = mode.get("training", call_mode.get())
        operands: list[SymbolicTensor] = []
        details = (pattern(args, operands), pattern(options, operands) | mode)
        if not operands:
            raise TypeError(
                f"layer {self.name!r} must be called on symbolic tensors, which start "
                "from Input(shape). Pass data to a model's fit, evaluate or predict"
            )
        if (specs := getattr(self, "input_spec", None)) is not None:
            check_inputs(specs, operands, self.name)
        if not self._is_built:
            given = args[0] if args else next(iter(options.values()))
            self._is_built = True
            self.build(_shapes(given))
        steps = _steps_of_masks(operands) if self._reads_masks() else ()
        try:
            inner = self._inner_of(operands, details, training is True, steps)
        except (TypeError, ValueError):  # such as of the batch in another place
            whole = self._is_whole(operands) and _call.get() is None
            if not (whole and Variable.functions.is_tracing()):
                raise
            self._weight_specs = self._weight_specs or ()
            return self._called_whole(args, options, training)
        if self._weight_specs is None:
            self._weight_specs = ()
        results = [(each.sample_shape, each.sample_dtype) for each in inner.outputs]
        node = self._node(operands, results, details)
        return filled_in(inner.structure, list(node.outputs))

    def _called_whole(self, args: Any, options: Any, training: Any) -> Any:
        """Run `call` in a function, on whole batches, whose axes are like any other."""
        takes = inspect.signature(self.call).parameters
        token = call_mode.set(training)
        try:
            if "training" in takes:
                options = {**options, "training": training is True}
            made = self.call(*args, **options)
        finally:
            call_mode.reset(token)
        weights: list[Variable] = []
        form = pattern(made, weights, Variable)
        if not weights:
            return made
        return filled_in(form, [each.functions.symbol(each) for each in weights])

    def _reads_masks(self) -> bool:
        """Return whether `call` of this or of an inner layer takes a mask."""
        return any(
            "mask" in inspect.signature(layer.call).parameters
            for _, layer in self._leaves()
            if type(layer).trace is Layer.trace
        )

    def _inner_of(
        self,
        operands: Sequence[Any],
        details: Any,
        training: bool,
        steps: Sequence[int | None],
        method: str = "call",
    ) -> _Inner:
        """Return the trace of `call` or `compute_mask` on such tensors, from the cache.

        `steps` holds the lengths of the masks; a `call` without the argument gets none.
        """
        takes = inspect.signature(self.call).parameters
        if not any(steps) or (method == "call" and not self._reads_masks()):
            steps = ()
        known = tuple(steps)  # what inner layers receive
        if method == "call" and ("mask" not in takes or "mask" in details[1]):
            steps = ()
        shapes = [(each.sample_shape, each.sample_dtype) for each in operands]
        shapes += [((each,), "float32") for each in steps if each is not None]
        key = (method, *shapes, *steps, known, repr(details), training)
        if key not in self._inner:
            starts = [
                Node(input_layer(*each), (), [each], ((), {"steps": length})).outputs[0]
                for each, length in itertools.zip_longest(shapes, known)
            ]
            sized = _resized(details, operands[0], starts[0])
            args, options = (filled_in(each, starts) for each in sized)
            options.pop("training", None)
            given = iter(starts[len(operands) :])
            masks = [None if each is None else next(given) for each in steps]
            first = details[0][0] if details[0] else next(iter(details[1].values()))
            masked = any(each is not None for each in masks)
            mask = filled_in(first, masks) if masked else None
            with calling(training, starts) as added:
                if method == "call":
                    options |= {"training": training} if "training" in takes else {}
                    options |= {"mask": mask} if mask is not None else {}
                    made = self.call(*args, **options)
                else:
                    made = self.compute_mask(filled_in(first, starts), mask)
            ends: list[SymbolicTensor] = []
            structure = pattern(made, ends)
            if method == "call" and not ends:
                raise TypeError(
                    f"layer {self.name!r}: {type(self).__name__}.call must return one "
                    f"or several symbolic tensors, got {made!r}"
                )
            check_ends(ends, starts, f"layer {self.name!r}")
            assigned, calls = added.assigned, calls_to([*ends, *added.effects])
            reads = self._read_in(calls, [*ends, *assigned])
            more = added.losses, assigned, reads, added.sums
            made_inner = _Inner(tuple(starts), calls, ends, structure, *more)
            self._check_inner(made_inner)
            self._keep_inner(key, made_inner)
        result: _Inner = self._inner[key]
        return result

    def _read_in(
        self, calls: Sequence[Node], ends: Sequence[SymbolicTensor]
    ) -> list[tuple[WeightTensor, str]]:
        """Return the weights of inner layers that `call` reads, with their names."""
        paths = {leaf: path for path, leaf in self._leaves()}
        result = []
        own = set(self._own)
        for each in dict.fromkeys([*(x for node in calls for x in node.inputs), *ends]):
            if isinstance(each, WeightTensor) and each not in own:
                if each.layer not in paths:
                    raise ValueError(
                        f"layer {self.name!r} ({type(self).__name__}) reads a weight "
                        f"of {each.layer.name!r}, {each.layer._not_held}"
                    )
                result.append((each, f"{paths[each.layer]}{each.spec.name}"))
        return result

    def _keep_inner(self, key: Any, value: Any) -> None:
        """Put a trace in the cache, in the place of the oldest if there are many."""
        while len(self._inner) >= _INNER:
            del self._inner[next(iter(self._inner))]
        self._inner[key] = value

    def _check_inner(self, inner: _Inner) -> None:
        known = {layer for _, layer in self._leaves()}
        for node in inner.nodes:
            for _, layer in node.layer._leaves():
                if layer._weight_specs and layer not in known:
                    raise ValueError(
                        f"layer {self.name!r} ({type(self).__name__}) calls the layer "
                        f"{layer.name!r}, which has weights but is not an attribute: "
                        "set self.layer = ... in the constructor"
                    )

    def _arguments_of(self, node: Node) -> tuple[Sequence[Any], dict[str, Any]]:
        """Return the arguments of a call of this layer, as its caller gives them."""
        args, options = filled_in(node.details or ((), {}), node.inputs)
        if args or options.keys() - {"training"}:
            return args, options
        one = self.arity == 1
        return (node.inputs[0] if one else list(node.inputs),), options

    def _first_input(self) -> SymbolicTensor | None:
        """Return the input of a `Sequential` that starts with this layer, or None."""
        return None if self._first_shape is None else Input(self._first_shape)

    def _sublayers(self) -> list[Layer]:
        """Return the layers held in attributes, in the order they were set."""
        if type(self).trace is not Layer.trace:
            return []
        result: dict[Layer, None] = {}
        for value in getattr(self, "__dict__", {}).values():
            for each in members(value):
                result.setdefault(each)
        return list(result)

    def _leaves(self) -> list[tuple[str, Layer]]:
        """Return this layer and all inner ones, with the prefixes of their weights."""
        result: dict[Layer, str] = {self: ""}
        for layer, label in labels_of(self._sublayers()).items():
            for path, leaf in layer._leaves():
                result.setdefault(leaf, f"{label}/{path}")
        return [(path, leaf) for leaf, path in result.items()]

    def _mixes_samples(self, training: bool) -> bool:
        """Return whether results of a call depend on other samples than their own.

        What it adds to losses and metrics may. It is known once the call is traced.
        """
        if self.of_batch:
            return True
        if type(self).trace is not Layer.trace:
            return any(each._mixes_samples(training) for each in self._sublayers())
        return any(
            mix_samples(inner.outputs, training)
            for (*_, mode), inner in self._inner.items()
            if mode == training
        )

    def _measured(self, node: Node) -> tuple[str, str] | None:
        """Return the names of a layer and of a metric that a call of it updates.

        Calls are traced in both modes. Of layers that trace others by themselves, what
        they hold counts.
        """
        if not may_measure(self):
            return None
        args, options = node.details or ((), {})
        if type(self).trace is Layer.trace:
            for training in (False, True):
                with suppress(TypeError, ValueError):  # of what such a step refuses
                    mode = {"training": training}
                    self._again(node.inputs, (args, options | mode))
        for _, leaf in self._leaves():
            if type(leaf).trace is not Layer.trace:
                found = leaf.metrics
            else:
                inner = [getattr(each, "sums", ()) for each in leaf._inner.values()]
                found = [metric for sums in inner for metric, _ in sums]
            if found:
                return leaf.name, found[0].name
        return None

    def _called_leaves(self) -> list[Layer]:
        """Return the leaves that a call uses."""
        inner = self._sublayers()
        return [self, *(leaf for each in inner for leaf in each._called_leaves())]

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append the layer's ops.

        Parameters
        ----------
        scope : Scope
            The context of the call.
        inputs : sequence of int
            The ids of the tensors that the layer reads.

        Returns
        -------
        int, or list or tuple of int
            The id of the result, or the ids of several.
        """
        self._prepare(scope)
        inner, made, masks = self._trace_method(scope, inputs, "call")
        if self.supports_masking:
            masks = [
                known if mask is None else mask
                for mask, known in itertools.zip_longest(masks, scope.masks)
            ]
        scope.mask = masks[: len(made)]
        return made[0] if isinstance(inner.structure, Place) else made

    def _traced(self, scope: Scope, inputs: Sequence[int]) -> int | Sequence[int]:
        """Append the ops, and transposes where channels come first."""
        if not self._channels_first:
            return self.trace(scope, inputs)
        made = self.trace(scope, [_with_channels(scope, x, last=True) for x in inputs])
        if isinstance(made, int):
            return _with_channels(scope, made, last=False)
        return [_with_channels(scope, each, last=False) for each in made]

    def _prepare(self, scope: Scope) -> None:
        """Append what comes before the ops of `call`."""

    def _trace_method(
        self, scope: Scope, inputs: Sequence[int], method: str
    ) -> tuple[_Inner, list[int], list[int | None]]:
        """Append the ops of `call` or `compute_mask`; return tensors and masks."""
        shape = scope.builder.shape
        operands = [_Operand(shape(each)[1:], scope.dtype(each)) for each in inputs]
        alone: Any = (tuple(map(Place, range(len(inputs)))), {})
        if len(inputs) > 1 and method == "compute_mask":
            alone = ([list(alone[0])], {})
        steps = [None if mask is None else shape(mask)[1] for mask in scope.masks]
        joined = type(self).trace is Layer.trace
        details = (scope.details if joined else None) or alone
        inner = self._inner_of(operands, details, scope.training, steps, method)
        given = [*inputs, *(mask for mask in scope.masks if mask is not None)]
        values: dict[SymbolicTensor, int] = dict(zip(inner.inputs, given, strict=False))
        masks: dict[SymbolicTensor, int | None] = {}
        if method == "call":
            masks |= zip(inner.inputs, scope.masks, strict=False)
        for tensor in self._own:
            values[tensor] = scope.read(tensor.spec.name)
        for tensor, name in inner.reads:
            values[tensor] = scope.read(name)
        scope.trace(inner.nodes, values, masks)
        if method == "call":
            scope.penalties += [(None, values[each]) for each in inner.losses]
            scope.sums += [
                (metric, tuple(values[each] for each in several))
                for metric, several in inner.sums
            ]
            names = dict(inner.reads)
            for weight, each in inner.assigned.items():
                scope.assign(names.get(weight, weight.spec.name), values[each])
        outputs = inner.outputs
        return inner, [values[e] for e in outputs], [masks.get(e) for e in outputs]

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Compute the mask of the result; by default it is that of the input.

        Parameters
        ----------
        inputs : SymbolicTensor or sequence of SymbolicTensor
            The layer's inputs.
        mask : SymbolicTensor or sequence of (SymbolicTensor or None), optional
            The masks of the inputs, of shape (batch, steps): 0.0 for steps to ignore,
            else 1.0. Both may be arrays.

        Returns
        -------
        SymbolicTensor or sequence of SymbolicTensor, optional
            The mask of the result, or None if no step is masked.
        """
        if type(self).trace is Layer.trace:
            return mask
        if self.arity != 1 and mask is not None:
            self._check_masks(inputs, mask)
        if self._keeps_first_mask and isinstance(mask, list | tuple):
            return mask[0]
        return SymbolicTensor.operators.mask_of(self, inputs, mask)

    def _check_masks(self, inputs: Any, mask: Any) -> None:
        """Raise ValueError unless inputs and masks are lists of the same length."""
        several = isinstance(inputs, list | tuple), isinstance(mask, list | tuple)
        if several == (True, True) and len(inputs) == len(mask):
            return
        if several == (True, False):
            raise ValueError(f"{self.name}: a mask must be a list, one for each input")
        if several == (False, True):
            raise ValueError(f"{self.name}: inputs must be a list, as their masks are")
        if all(several):
            raise ValueError(
                f"{self.name}: {len(mask)} masks for {len(inputs)} inputs: they must "
                "be as many"
            )

    def _settle_mask(self, scope: Scope, inputs: Sequence[int], made: Any) -> None:
        """Apply a user's `compute_mask` and check the shapes of the masks."""
        shape = scope.builder.shape
        if type(self).compute_mask is not Layer.compute_mask:
            inner, masks, _ = self._trace_method(scope, inputs, "compute_mask")
            mask = filled_in(inner.structure, masks)
            scope.mask = list(mask) if isinstance(mask, list | tuple) else [mask]
        masks = scope.mask if isinstance(scope.mask, list) else [scope.mask]
        several = [made] if isinstance(made, int) else made
        for mask, each in zip(masks, several, strict=False):
            if mask is not None and shape(mask) != shape(each)[:2]:
                raise ValueError(
                    f"layer {self.name!r} ({type(self).__name__}) returns a result of "
                    f"shape {show_shape(shape(each)[1:])} with a mask of shape "
                    f"{show_shape(shape(mask)[1:])}: override compute_mask to return "
                    "the mask of the result's steps, or None"
                )

    def specs(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        """Return the specifications of the weights for inputs of these shapes.

        Parameters
        ----------
        shapes : sequence of tuple of int
            The inputs' shapes without the batch.

        Returns
        -------
        tuple of WeightSpec
            The weights, in Keras's order.

        Raises
        ------
        ValueError
            If the layer cannot take inputs of these shapes.
        """
        self._check_shapes(shapes)
        return ()

    def _check_shapes(self, shapes: Sequence[Shape]) -> None:
        """Raise ValueError if a layer without weights cannot take such inputs."""
        if self._reads_images:
            self.require_rank(shapes[0], 3, "images (None, height, width, channels)")

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as Keras writes them.

        Returns
        -------
        dict
            The arguments by name; objects among them as configurations. Subclasses with
            arguments that are not attributes of the same name override this and add
            them, as in Keras.
        """
        result = {
            "name": self.name,
            "trainable": self.trainable,
            "dtype": serialize_keras_object(self._policy),
            **own_arguments(self),
        }
        accepted = inspect.signature(type(self)).parameters
        if "seed" in accepted:
            result["seed"] = None if self._seed == self._drawn else self._seed
        for name in accepted:
            weight, _, what = name.rpartition("_")
            if what == "initializer" and weight and not weight.startswith("moving"):
                result |= {f"{weight}_regularizer": None, f"{weight}_constraint": None}
        penalties = self._penalties()
        given = {name: each for name, each in penalties.items() if each is not None}
        return {**result, **serialize_keras_object(given)}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create a layer from the result of `get_config`.

        Parameters
        ----------
        config : mapping of str to object
            The arguments of the constructor; configurations among them are read. A
            dtype policy that is the default one is taken for one that was not given.

        Returns
        -------
        Layer
            The layer.
        """
        given = dict(config)
        dtype = given.get("dtype")
        if dtype is not None and as_policy(dtype) == dtype_policy():
            del given["dtype"]
        return super().from_config(given)

    def _penalties(self) -> dict[str, Any]:
        """Return the regularizers and constraints by name of the argument."""
        result: dict[str, Any] = {
            f"{name}_regularizer": each for name, each in self._regularizers.items()
        }
        for name, constraint in self._constraints.items():
            result[f"{name}_constraint"] = constraint
        return result | {"activity_regularizer": self.activity_regularizer}

    def _claim(self, owner: object) -> None:
        """Assign the layer to a model that already holds its weights' values."""
        if self._model is not owner:
            self._users += 1
        self._owner = weakref.ref(owner)
        self._values = {}

    def _copied_values(self) -> dict[str, np.ndarray]:
        """Return copies of the values of all weights by name, also of hidden ones."""
        specs = self._weight_specs or ()
        return {spec.name: self._read(index) for index, spec in enumerate(specs)}

    def _take_back(self, values: Mapping[str, np.ndarray]) -> None:
        """Hold the values again, when a model has let the layer go."""
        self._owner = None
        self._values = {**values}

    @property
    def _model(self) -> Any:
        """The model that holds the values, or None."""
        return None if self._owner is None else self._owner()

    def _read(self, index: int) -> np.ndarray:
        """Return a copy of the value of a weight."""
        model = self._model
        spec = (self._weight_specs or ())[index]
        if model is not None:
            held: np.ndarray = model._read_weight(self, spec.name)
            return held
        if spec.name not in self._values:
            self._values[spec.name] = first_value(
                spec.name,
                spec.initializer,
                spec.shape,
                spec.dtype,
                self._seed_of(index),
            )
        return self._held_value(spec.name).copy()

    def _held_value(self, name: str) -> np.ndarray:
        """Return a value that the layer holds; RuntimeError if its model lost it."""
        value = self._values[name]
        if value is None:
            raise RuntimeError(
                f"layer {self.name!r}: the value of {name!r} is lost, since it lay in "
                "the memory of a model that is gone: keep a reference to the model, or "
                "call model.close(), which moves values to the host"
            )
        return value

    def _write(self, index: int, value: np.ndarray) -> None:
        spec, model = (self._weight_specs or ())[index], self._model
        if model is not None:
            model._write_weight(self, spec.name, value)
        else:
            self._values[spec.name] = value

    def _seed_of(self, index: int) -> int:
        fixed = (self._weight_specs or ())[index].initializer.seed
        return derive_seed(self._seed, index) if fixed is None else fixed

    def _release(self) -> None:
        """Reset the layer to the state in which it was constructed."""
        self._owner = None
        self._weight_specs = None
        self._is_built = False
        self._own, self._inner, self._values, self._calls = [], {}, {}, []
        self._parametrized = {}
        for layer in self._sublayers():
            layer._release()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which has no model and no shapes."""
        fresh: dict[str, Any] = {
            "_owner": None,
            "_weight_specs": None,
            "_calls": [],
            "_inner": {},
            "_parametrized": {},
            "_values": {},
            "_users": 0,
            "_policy_used": False,
        }
        return super().__getstate__() | fresh

    def require_rank(self, shape: Shape, rank: int, wanted: str) -> None:
        """Raise ValueError if an input does not have the required rank.

        Parameters
        ----------
        shape : tuple of int
            The input's shape without the batch.
        rank : int
            The required rank, without the batch.
        wanted : str
            The required shape, in words.

        Raises
        ------
        ValueError
            If the rank differs.
        """
        if len(shape) != rank:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) expects {wanted}, but "
                f"its input has shape {show_shape(shape)}"
            )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} name={self.name!r}>"

    def _operands(
        self, inputs: SymbolicTensor | Sequence[SymbolicTensor]
    ) -> tuple[SymbolicTensor, ...]:
        several = isinstance(inputs, list | tuple)
        given: Any = inputs
        operands: tuple[Any, ...] = tuple(given) if several else (given,)
        functions = Variable.functions
        if any(isinstance(each, np.ndarray) for each in operands) and (
            _call.get() is not None or functions.is_tracing()
        ):
            operands = tuple(
                functions.constant(each) if isinstance(each, np.ndarray) else each
                for each in operands
            )
        for operand in operands:
            if not isinstance(operand, SymbolicTensor):
                if hasattr(operand, "refuse"):  # whose batch is another axis
                    operand.refuse(f"given to layer {self.name!r}")
                raise TypeError(
                    f"layer {self.name!r} must be called on symbolic tensors, which "
                    f"start from Input(shape); got {type(operand).__name__}. Pass data "
                    "to a model's fit, evaluate or predict"
                )
        if self.arity is None and (not several or len(operands) < 2):
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) expects a list of two or "
                f"more tensors, got {len(operands)}"
            )
        if self.arity is not None and len(operands) != self.arity:
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) expects {self.arity} "
                f"input{'s' if self.arity > 1 else ''}, got {len(operands)}"
            )
        texts = [each.name for each in operands if each.sample_dtype == "string"]
        if texts:
            raise TypeError(
                f"layer {self.name!r} ({type(self).__name__}) takes numbers, and "
                f"{texts[0]!r} gives text: StringLookup, TextVectorization and "
                "Hashing give numbers for it"
            )
        return operands

    def _specs_for(self, shapes: Sequence[Shape]) -> tuple[WeightSpec, ...]:
        if self._channels_first:
            shapes = [(*shape[1:], *shape[:1]) for shape in shapes]
        specs = self._regularized(self.specs(shapes))
        if self._weight_specs is None:
            return specs
        old = [spec.shape for spec in self._weight_specs]
        new = [spec.shape for spec in specs]
        if old != new:
            raise OtherWeightsError(
                f"layer {self.name!r} already has weights of shapes {old}; an "
                f"input of shape {show_shape(shapes[0])} would need {new}"
            )
        return self._weight_specs

    def _regularized(self, specs: Sequence[WeightSpec]) -> tuple[WeightSpec, ...]:
        """Set regularizers and constraints; the suffix "kernel" may be left out."""
        result = {spec.name: spec for spec in specs}
        for argument, value in self._penalties().items():
            name, _, what = argument.rpartition("_")
            if name == "activity":
                continue
            others = (f"{name}_kernel", "kernel") if name != "bias" else ()
            known = next((each for each in (name, *others) if each in result), None)
            if known is None:
                raise ValueError(
                    f"layer {self.name!r} ({type(self).__name__}) has no weight for "
                    f"{argument}"
                )
            changed: dict[str, Any] = {what: value}
            result[known] = replace(result[known], **changed)
        return tuple(result.values())

    def _infer(
        self, specs: Sequence[WeightSpec], operands: Sequence[SymbolicTensor]
    ) -> tuple[type | None, list[tuple[Shape, str]]]:
        """Trace the layer for one sample and return structure, shapes and dtypes."""
        builder = Builder(self.name)
        weights = {
            spec.name: builder.tensor(spec.name, spec.shape, spec.dtype, "parameter")
            for spec in specs
        }
        inputs = [
            builder.tensor(
                f"input {i}",
                each.whole_shape
                if each.whole
                else (
                    (each.node.batch_size or 1) * each.node.rows,
                    *each.sample_shape,
                ),
                each.sample_dtype,
                "input",
            )
            for i, each in enumerate(operands)
        ]
        scope = Scope(builder, self.name, weights, training=False)
        try:
            made = self._traced(scope, inputs)
        except GraphError as error:
            shown = " and ".join(
                str(each.shape) if each.whole else show_shape(each.open_shape)
                for each in operands
            )
            raise ValueError(f"{self._cannot_take(shown)}: {error}") from error
        structure = None if isinstance(made, int) else type(made)
        several = [made] if isinstance(made, int) else made
        begin = 0 if self._is_whole(operands) else 1
        return structure, [(builder.shape(i)[begin:], scope.dtype(i)) for i in several]

    def _cannot_take(self, shown: str) -> str:
        """Say that the layer takes no inputs of some shapes."""
        kind = type(self).__name__
        return f"layer {self.name!r} ({kind}) cannot take an input of shape {shown}"

    def _rows_of(self, operands: Sequence[SymbolicTensor]) -> int:
        """Return the length of the first axis of the results, for one sample.

        It is more than 1 where a `call` has joined other axes to the batch.
        """
        found = {each.node.rows for each in operands if not each.whole}
        if len(found) > 1:
            shown = " and ".join(repr(each) for each in operands if not each.whole)
            raise ValueError(
                f"layer {self.name!r} ({type(self).__name__}) cannot combine {shown}, "
                f"whose first axes have {sorted(found)} times the samples of the batch"
            )
        return found.pop() if found else 1

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        """Return whether the results of a call have no batch of any size."""
        return bool(operands) and all(x.whole for x in operands)

    def _node(
        self,
        operands: Sequence[SymbolicTensor],
        results: Sequence[tuple[Shape, str]],
        details: Any,
    ) -> Node:
        """Return a call with results of so many samples as its operands."""
        whole = self._is_whole(operands)
        if whole:
            batch = operands[0].whole_shape[:1]
            results = [((*batch, *shape), dtype) for shape, dtype in results]
        return Node(self, tuple(operands), results, details, whole=whole)


def _with_channels(scope: Scope, x: int, *, last: bool) -> int:
    """Append a transpose of channels to the last axis, or from it to the first."""
    builder, rank = scope.builder, len(scope.builder.shape(x))
    if rank < 3:
        return x
    ways = [(0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))]
    there, back = ways if last else ways[::-1]
    made = builder.maker(x)  # perhaps by the layer before
    if made and (made.type, tuple(made.attributes.get("axes", ()))) == (
        "transpose",
        back,
    ):
        return made.inputs[0]
    return scope.apply("transpose", (x,), {"axes": there})[0]


class WeightTensor(SymbolicTensor):
    """The value of a weight as a symbolic tensor, in a `call` or a function.

    Parameters
    ----------
    spec : WeightSpec
        The name, shape and initializer.
    layer : Layer
        The layer of the weight.
    """

    __slots__ = ("layer", "spec")

    def __init__(self, spec: WeightSpec, layer: Layer) -> None:
        self.spec = spec
        self.layer = layer
        super().__init__(spec.shape[1:], Node(layer, (), ()), spec.dtype, spec.shape)

    @property
    def dtype(self) -> str:
        """The dtype of the weight; ops that read it cast it to their compute dtype."""
        return self.sample_dtype

    @property
    def name(self) -> str:
        """The name within the layer."""
        return self.spec.name

    def __reduce_ex__(self, protocol: Any) -> Any:
        return WeightTensor, (self.spec, self.layer)


class Assignment(Layer):
    """The new value of a weight, as a call; it is made for one node."""

    __slots__ = ("weight",)

    def __init__(self, weight: WeightTensor) -> None:
        super().__init__()
        self.weight = weight

    def _is_whole(self, operands: Sequence[SymbolicTensor]) -> bool:
        del operands
        return True

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the value in the shape of the weight, without gradients."""
        value = scope.builder.cast(inputs[0], self.weight.dtype)
        (value,) = scope.apply("stop_gradient", (value,))
        if scope.builder.shape(value) == self.weight.shape:
            return value
        return scope.apply("reshape", (value,), {"shape": self.weight.shape})[0]


# What a weight is compared with element by element.
_COMPARED = (SymbolicTensor, np.ndarray, np.generic, int, float)


class Variable(FixedAttributes):
    """A weight of a layer or a model, and its value.

    Parameters
    ----------
    layer : Layer
        The layer of the weight.
    index : int
        The index among the layer's weights.
    path : str
        The name, after those of the enclosing layers: the names that they have when
        this object is made, as of each call of ``model.weights``.
    """

    __slots__ = ("_index", "_layer", "path")

    stands_alone: ClassVar[bool] = False  # whether its layer only holds it

    def __init__(self, layer: Layer, index: int, path: str) -> None:
        self._layer = layer
        self._index = index
        self.path = path

    def __eq__(self, other: object) -> Any:
        """Return whether another is of the same weight, or compare elements."""
        if isinstance(other, Variable):
            return self._layer is other._layer and self._index == other._index
        if isinstance(other, _COMPARED):
            return self._apply("equal", self, other)
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        """Return whether another is of another weight, or compare elements."""
        if isinstance(other, Variable):
            return not self == other
        if isinstance(other, _COMPARED):
            return self._apply("not_equal", self, other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((id(self._layer), self._index))

    @property
    def _spec(self) -> WeightSpec:
        return (self._layer.weight_specs or ())[self._index]

    @property
    def name(self) -> str:
        """The name within the layer."""
        return self._spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""
        return self._spec.shape

    @property
    def dtype(self) -> str:
        """The name of the dtype."""
        return self._spec.dtype

    @property
    def trainable(self) -> bool:
        """Whether training changes the weight."""
        return self._spec.trainable and self._layer.trainable

    @property
    def regularizer(self) -> Regularizer | None:
        """The penalty on the weight, or None."""
        made: Regularizer | None = self._spec.regularizer
        return made

    @property
    def constraint(self) -> Constraint | None:
        """What is done to the weight after each update, or None."""
        made: Constraint | None = self._spec.constraint
        return made

    @property
    def value(self) -> Any:
        """The value: an array, or in a function or a `call` a tensor."""
        symbol = self.functions.symbol(self)
        return self.functions.value(self) if symbol is None else symbol

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def numpy(self) -> np.ndarray:
        """Return a copy of the value.

        Returns
        -------
        numpy.ndarray
            The current value.
        """
        return self._layer._read(self._index)

    def assign(self, value: Any) -> None:
        """Replace the value.

        Parameters
        ----------
        value : array_like or SymbolicTensor
            The new value, of the weight's shape. In a function that `memcfg.function`
            traces, it replaces the value in each call of the function. In the `call` of
            a layer each run replaces it: what follows reads it, and ``ops.mean(x,
            axis=0)`` reduces the batch. A batch runs as a whole then, and not in
            micro-batches.

        Raises
        ------
        ValueError
            If the shape differs.
        RuntimeError
            If a symbolic tensor is given outside of such a function or `call`, in the
            `call` of a model, or if training changes the weight as well.
        """
        if (call := _call.get()) is not None:
            call.assign(call.symbol(self), value)
            return
        if isinstance(value, SymbolicTensor) or self.functions.is_tracing():
            self.functions.assign(self, value)
            return
        array = as_weight(value, str(self.dtype))
        if array.shape != self.shape:
            raise ValueError(
                f"weight {self.path!r} must have shape {self.shape}, got {array.shape}"
            )
        self._layer._write(self._index, array)

    def assign_add(self, value: Any) -> None:
        """Add to the value.

        Parameters
        ----------
        value : array_like or SymbolicTensor
            As of `assign`.

        Raises
        ------
        ValueError, RuntimeError
            As of `assign`.
        """
        self.assign(self + value)

    def assign_sub(self, value: Any) -> None:
        """Subtract from the value.

        Parameters
        ----------
        value : array_like or SymbolicTensor
            As of `assign`.

        Raises
        ------
        ValueError, RuntimeError
            As of `assign`.
        """
        self.assign(self - value)

    # The package `memcfg.nn.functions`, which imports this module, sets it.
    functions: ClassVar[Any]

    def __array_ufunc__(
        self, ufunc: Any, method: str, *inputs: Any, **options: Any
    ) -> Any:
        """Apply a ufunc to the value; in a function that is traced, an operator."""
        symbol = self.functions.symbol(self)
        if symbol is not None:
            return symbol.__array_ufunc__(ufunc, method, *inputs, **options)
        return getattr(ufunc, method)(*map(_value_of, inputs), **options)

    def _apply(self, kind: str, a: Any, b: Any) -> Any:
        """Apply an operator to tensors in a function, and to arrays outside of one."""
        if self.functions.symbol(self) is not None:
            return SymbolicTensor.operators.binary(kind, a, b)
        return getattr(np, kind)(*(array_of(_value_of(each)) for each in (a, b)))

    def __add__(self, other: Any) -> Any:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> Any:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> Any:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> Any:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._apply("divide", other, self)

    def __matmul__(self, other: Any) -> Any:
        return self._apply("matmul", self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return self._apply("matmul", other, self)

    def __pow__(self, other: Any) -> Any:
        return self._apply("power", self, other)

    def __rpow__(self, other: Any) -> Any:
        return self._apply("power", other, self)

    def __mod__(self, other: Any) -> Any:
        return self._apply("remainder", self, other)

    def __rmod__(self, other: Any) -> Any:
        return self._apply("remainder", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return self._apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._apply("floor_divide", other, self)

    def __lt__(self, other: Any) -> Any:
        return self._apply("less", self, other)

    def __le__(self, other: Any) -> Any:
        return self._apply("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return self._apply("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return self._apply("greater_equal", self, other)

    def __neg__(self) -> Any:
        return self._apply("multiply", self, -1.0)

    def __abs__(self) -> Any:
        symbol = self.functions.symbol(self)
        return abs(_value_of(self) if symbol is None else symbol)

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"the weight {self.path!r} has no truth value: compare it, as in "
            "weight.numpy() > 0, or in a call choose with ops.where or ops.cond"
        )

    def __getitem__(self, key: Any) -> Any:
        symbol = self.functions.symbol(self)
        return _value_of(self)[key] if symbol is None else symbol[key]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.numpy(), dtype)

    def __repr__(self) -> str:
        return f"<Variable path={self.path}, shape={self.shape}, dtype={self.dtype}>"


def _value_of(value: Any) -> Any:
    """Return a weight as an array, which a tape may see, and others as they are."""
    return value.functions.value(value) if isinstance(value, Variable) else value


class Place(NamedTuple):
    """The index of a tensor among the arguments of a call."""

    number: int


class _Operand(NamedTuple):
    """The properties of a tensor that `call` depends on."""

    sample_shape: Shape
    sample_dtype: str


class _Inner(NamedTuple):
    """The trace of `call` for tensors of certain shapes."""

    inputs: tuple[SymbolicTensor, ...]
    nodes: Sequence[Node]
    outputs: Sequence[SymbolicTensor]
    structure: Any
    losses: Sequence[SymbolicTensor]
    assigned: Mapping[WeightTensor, SymbolicTensor]  # the last values
    reads: Sequence[tuple[WeightTensor, str]]  # weights of inner layers, by name
    # Metrics, with the numbers that it adds to them.
    sums: Sequence[tuple[Any, Sequence[SymbolicTensor]]]


class _Call(NamedTuple):
    """A `call` that is being traced."""

    starts: Sequence[SymbolicTensor]
    losses: list[SymbolicTensor]  # that it has added so far
    assignments: list[tuple[WeightTensor, SymbolicTensor]]
    symbols: dict[Variable, WeightTensor]
    refused: str  # why it may not assign weights; empty if it may
    measured: list[SymbolicTensor] | None  # by which a model's updates metrics
    # Metrics that a layer's updates, with the numbers to add.
    sums: list[tuple[Any, Sequence[SymbolicTensor]]]

    def symbol(self, variable: Variable) -> WeightTensor:
        """Return the one tensor of a weight."""
        own = variable._layer._own
        if own:
            return own[variable._index]
        if variable not in self.symbols:
            made = WeightTensor(variable._spec, variable._layer)
            self.symbols[variable] = made
        return self.symbols[variable]

    @property
    def assigned(self) -> dict[WeightTensor, SymbolicTensor]:
        """The last value that it assigns to each weight."""
        return dict(self.assignments)

    @property
    def effects(self) -> list[SymbolicTensor]:
        """The tensors that it computes beside its results.

        An assignment that another one replaces may be what lies between reads.
        """
        sums = [each for _, several in self.sums for each in several]
        return [*self.losses, *(each for _, each in self.assignments), *sums]

    def assign(self, weight: WeightTensor, value: Any) -> None:
        """Note a new value of a weight."""
        if self.refused:
            raise RuntimeError(f"{weight.name!r} cannot be assigned {self.refused}")
        if weight.spec.trainable and weight.layer.trainable:
            raise RuntimeError(
                f"{weight.name!r} cannot be assigned in `call`, since training changes "
                "it: make it by add_weight(..., trainable=False)"
            )
        if not isinstance(value, SymbolicTensor):
            value = Variable.functions.constant(value)
        if value.node.batch_size is None and not value.whole:
            raise ValueError(
                f"{weight.name!r} cannot be assigned {value!r}, which has the batch, "
                "of any size: reduce it, as ops.mean(x, axis=0)"
            )
        shape = value.whole_shape if value.whole else (1, *value.sample_shape)
        if prod(shape) != prod(weight.spec.shape):
            raise ValueError(
                f"weight {weight.name!r} must have shape {weight.shape}, got {shape}"
            )
        self.assignments.append((weight, Assignment(weight)(value)))


@contextmanager
def calling(
    training: Any,
    starts: Sequence[SymbolicTensor],
    refused: str = "",
    *,
    measures: bool = False,
) -> Iterator[_Call]:
    """Run a `call` in a mode; yield the losses and assignments that it adds."""
    call = _Call(starts, [], [], {}, refused, [] if measures else None, [])
    mode, token = call_mode.set(training), _call.set(call)
    named = outermost_scope()
    try:
        yield call
    finally:
        end_scope(named)
        _call.reset(token)
        call_mode.reset(mode)


def current_call() -> _Call | None:
    """Return the `call` that is being traced, or None."""
    return _call.get()


def add_loss(loss: Any, what: str) -> None:
    """Note a loss of the current `call`; RuntimeError outside of one."""
    call = _call.get()
    if call is None:
        raise RuntimeError(
            f"{what}.add_loss adds a loss that `call` computes: call it there"
        )
    if not isinstance(loss, SymbolicTensor):
        raise TypeError(f"{what}.add_loss takes a symbolic tensor, got {loss!r}")
    call.losses.append(loss)


def check_ends(
    ends: Sequence[SymbolicTensor], starts: Sequence[SymbolicTensor], what: str
) -> None:
    """Raise ValueError for results that depend on a reduction over the batch."""
    for end in ends:
        if end.node.rows != 1 and not end.whole:
            raise ValueError(
                f"{what} returns a tensor whose first axis is not the batch, but has "
                f"{end.node.rows} rows for each sample: give it a shape that begins "
                "with the batch, as in ops.reshape(x, (ops.shape(inputs)[0], -1, n))"
            )
        alone = end.node.batch_size == 1 and not any(x.node.batch_size for x in starts)
        if alone or (end.whole and any(x.layer.of_batch for x in calls_to([end]))):
            raise ValueError(
                f"{what} returns a tensor that is reduced along the batch, whose size "
                "may differ: only losses of add_loss may be"
            )


def pattern(value: Any, leaves: list[Any], kinds: Any = SymbolicTensor) -> Any:
    """Move leaves of some kinds from a nested value to a list, leaving `Place`s."""
    if isinstance(value, kinds):
        leaves.append(value)
        return Place(len(leaves) - 1)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(pattern(each, leaves, kinds) for each in value))
    if isinstance(value, list | tuple):
        return type(value)([pattern(each, leaves, kinds) for each in value])
    if isinstance(value, dict):
        return {key: pattern(each, leaves, kinds) for key, each in value.items()}
    return value


def filled_in(value: Any, tensors: Sequence[Any]) -> Any:
    """Return a nested value with tensors in place of its `Place`s."""
    if isinstance(value, Place):
        return tensors[value.number]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(filled_in(each, tensors) for each in value))
    if isinstance(value, list | tuple):
        return type(value)([filled_in(each, tensors) for each in value])
    if isinstance(value, dict):
        return {key: filled_in(each, tensors) for key, each in value.items()}
    return value


def _resized(value: Any, first: Any, start: SymbolicTensor) -> Any:
    """Return arguments with the size of the batch as that of the start of a `call`."""
    if isinstance(value, BatchSize):
        own = first.node.rows if isinstance(first, SymbolicTensor) else 1
        return BatchSize(start, value.rows // own)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([_resized(each, first, start) for each in value])
    if isinstance(value, dict):
        return {key: _resized(each, first, start) for key, each in value.items()}
    return value


def _shapes(given: Any) -> Any:
    """Return the shapes of a layer's inputs in the structure that `build` expects."""
    if isinstance(given, SymbolicTensor):
        return given.shape
    if isinstance(given, dict):
        return {key: _shapes(each) for key, each in given.items()}
    return [_shapes(each) for each in given]


def _is_shape(given: Any) -> bool:
    """Return whether an argument is one shape, and not several."""
    return isinstance(given, list | tuple) and not any(
        isinstance(each, list | tuple | dict) for each in given
    )


def _inputs(given: Any) -> Any:
    """Return symbolic tensors of shapes, in their structure."""
    if _is_shape(given):
        return Input(batch_shape=given)
    if isinstance(given, dict):
        return {key: _inputs(each) for key, each in given.items()}
    return [_inputs(each) for each in given]


def members(value: Any) -> Iterator[Layer]:
    """Yield the layers in the value of an attribute."""
    as_layer = getattr(value, "_as_layer", None)
    if isinstance(value, Layer):
        yield value
    elif isinstance(value, Variable):
        if value.stands_alone:
            yield value._layer
    elif as_layer is not None:
        yield as_layer()
    elif isinstance(value, list | tuple):
        for each in value:
            yield from members(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from members(each)


def lines_of(layers: Iterable[Layer]) -> dict[str, str]:
    """Return where the program makes each layer and inner layer, by its path."""
    return {
        f"{layer.name}/{path}".rstrip("/"): leaf._line
        for layer in layers
        for path, leaf in layer._leaves()
        if leaf._line
    }


def sums_of_call(node: Node) -> list[tuple[Any, list[Shape]]]:
    """Return the metrics that a call without a batch updates, by tracing it.

    With each are the shapes of the numbers that are added to it.
    """
    layer, builder = node.layer, Builder("metrics")
    if not may_measure(layer):
        return []

    def tensor(name: str, shape: Shape, dtype: str) -> int:
        return builder.tensor(name, shape, dtype, "input")

    weights = {
        name: tensor(name, spec.shape, spec.dtype)
        for path, leaf in layer._leaves()
        for spec in leaf._weight_specs or ()
        for name in [f"{layer.name}/{path}{spec.name}"]
    }
    inputs = dict.fromkeys(node.inputs)
    values = {
        each: tensor(f"input {i}", each.whole_shape, each.sample_dtype)
        for i, each in enumerate(inputs)
    }
    steps = _steps_of_masks([*inputs]) if layer._reads_masks() else ()
    masks: dict[SymbolicTensor, int | None] = {
        each: tensor(f"mask {i}", (each.whole_shape[0], length), "float32")
        for i, (each, length) in enumerate(zip(inputs, steps, strict=False))
        if length
    }
    step = functools.cache(lambda: tensor("the number of the step", (), "int64"))
    scope = Scope(builder, "", weights, training=False, step=step)
    scope.trace([node], values, masks)
    return [(metric, [*map(builder.shape, several)]) for metric, several in scope.sums]


def may_measure(layer: Layer) -> bool:
    """Return whether a call of a layer may update metrics, which it holds or not."""
    return bool(layer.metrics) or any(
        bool(getattr(each, "sums", ()))
        for _, leaf in layer._leaves()
        for each in leaf._inner.values()
    )


def weights_read(node: Node) -> Iterator[tuple[Layer, str]]:
    """Yield the weights that a call reads, by their layers and names, as traced."""
    layer = node.layer
    reads = [(x.layer, x.spec.name) for x in node.inputs if isinstance(x, WeightTensor)]
    yield from reads
    traces = [each for each in layer._inner.values() if isinstance(each, _Inner)]
    if type(layer).trace is not Layer.trace or not traces:
        for _, leaf in layer._leaves():
            yield from ((leaf, spec.name) for spec in leaf._weight_specs or ())
        return
    for inner in traces:
        for end in (*inner.outputs, *inner.losses, *inner.assigned):
            if isinstance(end, WeightTensor):
                yield end.layer, end.spec.name
        for each in inner.nodes:
            yield from weights_read(each)


def trace_in_training(node: Node) -> None:
    """Trace the `call` of a layer in training, if it was not."""
    if type(node.layer).trace is Layer.trace and node.training is None:
        args, options = node.details or ((), {})
        node.layer._again(node.inputs, (args, options | {"training": True}))


def labels_of(layers: Sequence[Layer]) -> dict[Layer, str]:
    """Return the names of layers, with a number behind one that others have, too."""
    result: dict[Layer, str] = {}
    taken = {layer.name for layer in layers}
    used: set[str] = set()
    for layer in layers:
        label, number = layer.name, 0
        while label in used or (number and label in taken):
            number += 1
            label = f"{layer.name}_{number}"
        used.add(label)
        result[layer] = label
    return result


def inner_layers(layer: Layer) -> list[Layer]:
    """Return the direct inner layers of a layer."""
    held = layer._sublayers() or members(list(layer._settings().values()))
    return list(dict.fromkeys(held))


def change_policy(
    layers: Iterable[Layer], policy: DTypePolicy, *, said: bool
) -> Callable[[], None]:
    """Return a function that sets a policy on layers and their inner layers.

    Unless `said`, layers with an explicit policy keep it. Raises RuntimeError if a
    layer is in a model that is compiled or has run.
    """
    changed = [
        leaf
        for layer in layers
        for _, leaf in layer._leaves()
        if said or not (leaf._policy_said or leaf._policy == policy)
    ]
    for each in changed:
        if each._policy_used or getattr(each._model, "_config", None) is not None:
            raise RuntimeError(
                f"layer {each.name!r} belongs to a model that is compiled or has run: "
                "set its dtype policy before compile"
            )

    def change() -> None:
        for each in changed:
            each._policy, each._policy_said = policy, said

    return change


def calls_to(
    ends: Sequence[SymbolicTensor], known: Collection[SymbolicTensor] = ()
) -> list[Node]:
    """Return the calls from known tensors to others, in the order of time."""
    met: dict[Node, None] = {}
    stack = [end.node for end in ends if end not in known]
    while stack:
        node = stack.pop()
        if node not in met:
            met[node] = None
            stack += [each.node for each in node.inputs if each not in known]
    return sorted((node for node in met if node.outputs), key=lambda each: each.order)


def mix_samples(ends: Sequence[SymbolicTensor], training: bool) -> bool:
    """Return whether tensors depend on other samples than their own."""
    return any(
        node.layer._mixes_samples(training if node.training is None else node.training)
        for node in calls_to(ends)
    )


def _steps_of_masks(tensors: Sequence[SymbolicTensor]) -> list[int | None]:
    """Return the lengths of the tensors' masks, None without one, by tracing."""
    builder, numbers = Builder("masks"), itertools.count()

    def tensor(shape: Shape, dtype: str) -> int:
        return builder.tensor(f"tensor {next(numbers)}", shape, dtype, "input")

    nodes = calls_to(tensors)
    batch = next((node.batch_size for node in nodes if node.batch_size), 1)
    weights: dict[str, int] = {}
    values: dict[SymbolicTensor, int] = {}
    masks: dict[SymbolicTensor, int | None] = {}
    for node in nodes:
        for each in node.inputs:
            if isinstance(each, WeightTensor) and each not in values:
                values[each] = tensor(each.whole_shape, each.sample_dtype)
        if isinstance(node.layer, InputLayer):
            (start,) = node.outputs
            dtype = "int32" if start.sample_dtype == "string" else start.sample_dtype
            values[start] = tensor((batch, *start.sample_shape), dtype)
            length = node.details and node.details[1]["steps"]
            if length:
                masks[start] = tensor((batch, length), "float32")
        elif node.layer.prepares and node.outputs[0].sample_dtype != "string":
            (made,) = node.outputs
            values[made] = tensor((batch, *made.sample_shape), made.sample_dtype)
        for path, leaf in node.layer._leaves():
            for spec in leaf._weight_specs or ():
                name = f"{node.layer.name}/{path}{spec.name}"
                weights[name] = tensor(spec.shape, spec.dtype)
    Scope(builder, "", weights, training=False).trace(nodes, values, masks)
    result = [masks.get(each) for each in tensors]
    return [None if mask is None else builder.shape(mask)[1] for mask in result]


def trace_call(
    call: Callable[..., Any],
    builder: Builder,
    name: str,
    inputs: Sequence[int],
    *,
    whole: bool = False,
) -> int:
    """Append the ops of a user's function of symbolic tensors.

    With `whole` it gets the whole batch if it cannot compute samples apart. Without, it
    is refused by ValueError if it then has a value for each sample.
    """
    shapes = [builder.shape(each) for each in inputs]
    dtypes = [builder.dtype(each) for each in inputs]
    starts = []
    for shape, dtype in zip(shapes, dtypes, strict=True):
        made = input_layer(shape[1:], dtype)
        starts.append(Node(made, (), [(made.shape, made.dtype)]).outputs[0])
    before = in_loss.set(True)
    try:
        try:
            end = call(*starts)
        except ValueError:
            if not whole:
                raise
            starts = [start_of(*each) for each in zip(shapes, dtypes, strict=True)]
            end = call(*starts)
    finally:
        in_loss.reset(before)
    if not isinstance(end, SymbolicTensor):
        raise TypeError(
            f"{name!r} must return a symbolic tensor, computed from its arguments with "
            f"operators, got {end!r}"
        )
    values = dict(zip(starts, inputs, strict=True))
    scope = Scope(builder, name, {}, training=builder.training)
    # ignore the layers' policies
    before_dtype, builder.compute_dtype = builder.compute_dtype, None
    scope.trace(calls_to([end]), values, {})
    builder.compute_dtype = before_dtype
    of_each = not end.whole and end.node.batch_size is None
    if of_each and not whole and mix_samples([end], builder.training):
        raise ValueError(f"{name!r} computes with the whole batch")
    if end.whole or end.node.batch_size is None:
        if end.node.rows == 1 or end.whole:
            return values[end]
        batch, (_, *rest) = shapes[0][0], builder.shape(values[end])
        rows = {"shape": (batch, end.node.rows, *rest)}  # of each sample
        return scope.apply("reshape", (values[end],), rows)[0]
    # a scalar of the whole batch
    return scope.apply("reshape", (values[end],), {"shape": ()})[0]


def means_samples(
    call: Callable[..., Any], builder: Builder, inputs: Sequence[int]
) -> bool:
    """Return whether a user's function is the mean of what each sample has apart."""
    starts = []
    for each in inputs:
        made = input_layer(builder.shape(each)[1:], builder.dtype(each))
        starts.append(Node(made, (), [(made.shape, made.dtype)]).outputs[0])
    before = in_loss.set(True)
    try:
        end = call(*starts)
    except ValueError:  # of a function that needs the whole batch
        return False
    finally:
        in_loss.reset(before)
    if not isinstance(end, SymbolicTensor) or not end.node.layer._is_mean:
        return False
    (of,) = end.node.inputs
    of_each = not of.whole and of.node.batch_size is None
    return of_each and not mix_samples([of], builder.training)


def trace_function(function: Callable[[Any], Any], scope: Scope, x: int) -> int:
    """Append a user's function of a layer's tensor, such as an activation, in float32.

    It has no weights, and its result has the shape of the tensor.
    """
    builder = scope.builder
    name = getattr(function, "__name__", type(function).__name__)
    what = f"layer {scope.name!r}: the activation {name!r}"
    shape = builder.shape(x)[1:]
    layer = input_layer(shape, scope.dtype(x))
    start = Node(layer, (), [(shape, layer.dtype)]).outputs[0]
    with calling(scope.training, [start], "in an activation"):
        end = function(start)
    if not isinstance(end, SymbolicTensor) or end.sample_shape != shape:
        raise TypeError(
            f"{what} must return a symbolic tensor of shape {start.shape}, made from "
            f"its argument, got {end!r}"
        )
    check_ends([end], [start], what)
    calls = calls_to([end])
    if any(node.layer.of_batch for node in calls):
        raise ValueError(f"{what} reads other samples: compute it in a layer's `call`")
    if any(leaf._weight_specs for node in calls for _, leaf in node.layer._leaves()):
        raise ValueError(f"{what} has weights: call it as a layer of its own")
    inner = Scope(
        builder, f"{scope.name}/{name}", {}, training=scope.training, step=scope.step
    )
    dtype, builder.compute_dtype = builder.compute_dtype, None
    values = {start: builder.cast(x, scope.dtype(x))}
    inner.trace(calls, values, {})
    builder.compute_dtype = dtype
    return builder.cast(values[end], builder.dtype(x))


def start_of(shape: tuple[int, ...], dtype: str) -> SymbolicTensor:
    """Return a symbolic tensor, without a batch, that stands for an argument."""
    layer = input_layer(shape[1:], dtype)
    (result,) = Node(layer, (), [(shape, dtype)], whole=True).outputs
    return result


def trace_whole(
    call: Callable[[Any], Any],
    builder: Builder,
    name: str,
    tensor: int,
    result: Shape | None = None,
) -> int:
    """Append the ops of a user's function of a tensor without a batch.

    The result has its shape, unless another one is given.
    """
    shape = builder.shape(tensor)
    start = start_of(shape, builder.dtype(tensor))
    end, wanted = call(start), shape if result is None else result
    if not is_whole(end) or end.shape != wanted:
        raise TypeError(
            f"{name} must return a symbolic tensor of shape {wanted}, made from its "
            f"argument, got {end!r}"
        )
    values = {start: tensor}
    Scope(builder, name, {}, training=False).trace(calls_to([end]), values, {})
    return values[end]


def weight_dtype(dtype: Any) -> str:
    """Return the dtype of a weight by a user's; ValueError for what is not kept."""
    dtype = {"int": "int32", "float": "float32", int: "int32", float: "float32"}.get(
        dtype, dtype
    )
    try:
        kept = "float32" if dtype is None else str(np.dtype(dtype))
    except TypeError:  # of NumPy, which lacks it
        kept = ""
    if kept not in ("float32", "int32"):
        raise ValueError(f"a weight is float32 or int32, got {dtype!r}")
    return kept


def as_weight(value: Any, dtype: str) -> np.ndarray:
    """Return a copy in the dtype of a weight; ValueError for integers beyond it."""
    array = np.asarray(value)
    if dtype == "int32" and array.dtype.kind in "iuf" and array.size:
        bounds = np.iinfo(np.int32)
        if not (array >= bounds.min).all() or not (array < bounds.max + 1).all():
            raise ValueError(
                f"a weight of int32 holds integers from {bounds.min} to {bounds.max}, "
                f"got {array.min()} to {array.max()}"
            )
    return np.array(array, dtype)


def first_value(
    name: str, initializer: Initializer, shape: tuple[int, ...], dtype: str, seed: int
) -> np.ndarray:
    """Draw the initial value in float32 and convert it to the weight's dtype."""
    value = initializer.draw(shape, seed)
    if value.shape != shape or value.dtype != np.float32:
        raise ValueError(
            f"the initializer of {name!r} returned {value.dtype} of shape "
            f"{value.shape}, expected float32 of shape {shape}"
        )
    return value.astype(dtype, copy=False)


class InputLayer(Layer):
    """The layer of a model's input, made by `Input` or in first place of a model.

    Parameters
    ----------
    shape : sequence of int
        The shape of one sample, without the batch.
    batch_size : int, optional
        The size of all batches.
    dtype : str, optional
        ``"float32"``, the default, ``"int32"`` for indices, or ``"string"`` for what
        layers such as `TextVectorization` turn into numbers. ``"int64"`` is computed in
        int32, and refuses larger numbers.
    batch_shape : sequence of int, optional
        The batch size or None, followed by `shape`.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        As for `Input`.

    Examples
    --------
    >>> import memcfg as mc
    >>> start = mc.nn.layers.InputLayer(shape=(4,))
    >>> mc.nn.Sequential([start, mc.nn.Dense(2)]).output_shape
    (None, 2)
    """

    __slots__ = ("batch_size", "dtype", "shape")

    arity: ClassVar[int | None] = 0

    def __init__(
        self,
        shape: Any = None,
        batch_size: int | None = None,
        dtype: str | None = None,
        *,
        batch_shape: Any = None,
        name: str | None = None,
    ) -> None:
        sample, size = _checked_input(shape, batch_size, dtype, batch_shape)
        super().__init__(name)
        self.shape: OpenShape = sample
        self.dtype = "int32" if dtype == "int64" else dtype or "float32"
        self.batch_size = size

    @property
    def output(self) -> Any:
        """The symbolic tensor of the input."""
        known = next((node for each in self._calls if (node := each())), None)
        node = known or Node(self, (), [(self.shape, self.dtype)])
        return node.outputs[0]

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of Keras's layer of this name."""
        return {
            "batch_shape": (self.batch_size, *self.shape),
            "dtype": self.dtype,
            "sparse": False,
            "ragged": False,
            "name": self.name,
            "optional": False,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create the layer of an input from Keras's arguments."""
        given = dict(config)
        if "batch_input_shape" in given:  # as Keras 2 wrote it
            given["batch_shape"] = given.pop("batch_input_shape")
        return Input(**given).node.layer

    def _take(self, name: str, value: Any) -> None:
        """Set the dtype of the data."""
        if name == "dtype" and value in ("float32", "int32"):
            object.__setattr__(self, "dtype", value)
        else:
            super()._take(name, value)

    def _float_dtype(self, tensor: SymbolicTensor) -> str:
        """Return the dtype of the data."""
        del tensor
        return "float32"

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Return the tensor of the data."""
        return inputs[0]


class WithMask(Layer):
    """A tensor with another as the mask of its steps."""

    __slots__ = ()

    arity: ClassVar[int | None] = 2

    def trace(self, scope: Scope, inputs: Sequence[int]) -> int:
        """Set the mask, 1 where it is not 0, and return the tensor."""
        x, mask = inputs
        shape = scope.builder.shape
        if shape(mask) != shape(x)[:2]:
            raise GraphError(
                f"a mask has shape {show_shape(shape(x)[1:2])}, not "
                f"{show_shape(shape(mask)[1:])}"
            )
        if scope.builder.dtype(mask) == "int32":
            (mask,) = scope.apply("cast", (mask,), {"dtype": "float32"})
        (scope.mask,) = scope.apply("unequal", (mask,), {"to": 0.0})
        return x


def with_mask(tensor: Any, mask: Any, name: str) -> Any:
    """Return a tensor with a mask; the tensor itself without one."""
    if mask is None:
        return tensor
    if not isinstance(mask, SymbolicTensor):
        raise TypeError(
            f"layer {name!r}: a mask is a symbolic tensor of shape (None, steps), 0 "
            f"for steps to ignore, got {mask!r}"
        )
    return WithMask()([tensor, mask])


@takes_arguments
def Input(  # noqa: N802  (Keras's name)
    shape: Sequence[int | None] | None = None,
    batch_size: int | None = None,
    dtype: str | None = None,
    *,
    batch_shape: Sequence[int | None] | None = None,
    name: str | None = None,
) -> SymbolicTensor:
    """Return a symbolic tensor for the input of a model.

    Parameters
    ----------
    shape : sequence of int or None
        The shape of one sample, without the batch. An axis of None may have another
        length in each batch; each length is planned on its own.
    batch_size : int, optional
        The size of all batches; required by stateful layers.
    dtype : str, optional
        ``"float32"``, the default, ``"int32"`` for indices, or ``"string"`` for what
        layers such as `TextVectorization` turn into numbers. ``"int64"`` is computed in
        int32, and refuses larger numbers.
    batch_shape : sequence of int or None, optional
        The batch size or None, followed by `shape`.
    name : str, optional
        The name of the input layer, which is the key of its data in a dict of inputs.

    Returns
    -------
    SymbolicTensor
        A tensor to call layers on.

    Raises
    ------
    TypeError
        If `shape` is not a sequence of integers.
    ValueError
        If a length is not positive, or `dtype` is not supported.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.Input((28, 28, 1)).shape
    (None, 28, 28, 1)
    """
    layer = InputLayer(shape, batch_size, dtype, batch_shape=batch_shape, name=name)
    return Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0]


def _checked_input(
    shape: Any, batch_size: Any, dtype: str | None, batch_shape: Any
) -> tuple[OpenShape, int | None]:
    """Return a sample's shape and the size of batches; () is that of a number."""
    if dtype not in (None, "float32", "int32", "int64", "string"):
        raise ValueError(
            "Input: dtype must be 'float32', 'int32', 'int64' or 'string', got "
            f"{dtype!r}"
        )
    if batch_shape is not None:
        if shape is not None or batch_size is not None:
            raise ValueError(
                "Input: batch_shape cannot be combined with shape or batch_size"
            )
        batch_size, *rest = batch_shape
        shape = tuple(rest)
    if batch_size is not None:
        batch_size = integer(batch_size, "Input: batch_size")
    return sample_shape(shape), batch_size


def input_layer(
    shape: OpenShape,
    dtype: str = "float32",
    name: str | None = None,
    batch_size: int | None = None,
) -> InputLayer:
    """Return the layer of an input of a known shape and type."""
    layer = InputLayer((1,), batch_size, name=name)
    layer.__setstate__({"shape": shape, "dtype": dtype})
    return layer


def sample_shape(shape: Any) -> OpenShape:
    """Return a sample's shape as a tuple; None is an axis of any length."""
    if not isinstance(shape, list | tuple):
        raise TypeError(
            "a shape must be a tuple without the batch, such as (28, 28, 1); got "
            f"{shape!r}"
        )
    return tuple(
        None if length is None else integer(length, "a length of a shape")
        for length in shape
    )
