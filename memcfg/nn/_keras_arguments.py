"""Keras arguments that memcfg does not support, and what to do instead.

One table maps names to reasons. Every call raises TypeError with the reason for an
argument of such a name, unless its value requests what memcfg does anyway.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

from memcfg._missing import nearest
from memcfg._traceback_filter import shorten
from memcfg.nn._argument_checks import limit_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

__all__ = ["ARGUMENTS", "Reason", "argument", "refusal", "taken", "takes_arguments"]

P = ParamSpec("P")
R = TypeVar("R")


class Reason(NamedTuple):
    """Why an argument is not supported; None and the values in `same` are accepted."""

    words: str
    same: tuple[Any, ...] = ()


_FLAGS = (False, True)
_STEP = Reason("a step is one planned program: leave it out", ("auto", False))
_RENORM = Reason("renorm is not implemented: for small batches use GroupNormalization")
_DRAWN = Reason("use model.summary() and model.graph()", (False,))
_SCALES = Reason("use VarianceScaling with your own scale, or a subclass of it")
_SAVED = Reason("a model is one file, which is replaced atomically", (True,))
_PARALLEL = Reason("use Dataset.map(f, num_parallel_calls), which works in parallel")
_RATE = Reason("use learning_rate, with a schedule of optimizers.schedules if needed")
_LINES = Reason(
    "summary fits the terminal; see model.layers and model.weights for more"
)

# Arguments by which one may look for the limit of a model's memory.
_LIMITS = {"budget", "limit", "limit_bytes", "max_memory", "memory_limit"}

ARGUMENTS: dict[str, Reason] = {
    # compile and fit
    "run_eagerly": Reason(
        "a step is one planned program; to see the output of a layer, use "
        "Model(inputs, tensor).predict(x)",
        (False,),
    ),
    "steps_per_execution": Reason("a step is a program of its own", (1,)),
    "jit_compile": _STEP,
    "auto_scale_loss": Reason("gradients are float32 and need no scaling", _FLAGS),
    "sample_weight_mode": Reason(
        "pass sample_weight of shape (n,) for samples, or (n, t) for their steps"
    ),
    "target_tensors": Reason("pass y to fit"),
    "nb_epoch": Reason("use epochs"),
    "max_queue_size": Reason("use Dataset.prefetch(buffer_size)"),
    "workers": _PARALLEL._replace(same=(0, 1)),
    "use_multiprocessing": _PARALLEL._replace(same=(False,)),
    # layers
    "autocast": Reason(
        "inputs of ops are cast; dtype='float32' keeps a layer in float32", (True,)
    ),
    "renorm": _RENORM._replace(same=(False,)),
    "renorm_clipping": _RENORM,
    "renorm_momentum": _RENORM._replace(same=(0.99,)),
    "synchronized": Reason("a model is on one device", (False,)),
    "quantization_config": Reason("weights are float32"),
    "gptq_unpacked_column_size": Reason("weights are float32"),
    "implementation": Reason("Keras 3 has no such argument", (0, 1, 2)),
    "time_major": Reason("the batch is the first axis", (False,)),
    "unroll": Reason("the steps of a sequence are one op", (False,)),
    "zero_output_for_mask": Reason(
        "use RNN(LSTMCell(units), zero_output_for_mask=True), with the cell of the "
        "layer",
        (False,),
    ),
    "rms_scaling": Reason("use RMSNormalization", (False,)),
    "batch_input_shape": Reason("use Input(shape, batch_size)"),
    "weights": Reason("use layer.set_weights once shapes are known"),
    # calls of layers
    "mask": Reason(
        "masks come with the sequences, from Masking or Embedding(mask_zero=True)"
    ),
    # Input and add_weight
    "sparse": Reason("arrays are dense", (False,)),
    "ragged": Reason("arrays are dense: pad_sequences and Masking", (False,)),
    "tensor": Reason("call the model on the tensor"),
    "input_tensor": Reason("call the model on the tensor"),
    "optional": Reason("all inputs are required", (False,)),
    "aggregation": Reason("a weight is on one device", ("none",)),
    "overwrite_with_gradient": Reason("weights are float32", (False,)),
    # optimizers
    "lr": _RATE,
    "decay": _RATE,
    # callbacks
    "histogram_freq": Reason("only scalars are written", (0,)),
    "write_graph": _DRAWN,
    "write_images": Reason("only scalars are written", (False,)),
    "write_steps_per_second": Reason("use PerformanceListener", (False,)),
    "profile_batch": Reason("use model.memory_report(), which measures a step", (0,)),
    "embeddings_freq": Reason("only scalars are written", (0,)),
    "embeddings_metadata": Reason("only scalars are written"),
    # initializers
    "input_axes": _SCALES,
    "output_axes": _SCALES,
    # datasets of folders and arrays
    "format": Reason("datasets are those of memcfg.data", ("tf",)),
    "preferred_backend": Reason("datasets are those of memcfg.data"),
    # files and summaries
    "zipped": _SAVED,
    "max_shard_size": _SAVED._replace(same=()),
    "overwrite": _SAVED,
    "safe_mode": Reason("nothing in a file is executed", _FLAGS),
    "line_length": _LINES,
    "positions": _LINES,
}


def argument(name: str) -> Reason | None:
    """Return why an argument is not supported; None if the table has no entry."""
    return ARGUMENTS.get(name)


def refusal(what: str, name: str) -> str:
    """Return the message for an argument that is not supported."""
    reason = argument(name)
    if reason is None:
        return f"{what} takes no argument {name!r}"
    return f"{what} does not support the Keras argument {name!r}: {reason.words}"


def taken(what: str, known: Container[str], options: dict[str, Any]) -> dict[str, Any]:
    """Drop Keras arguments with accepted values; TypeError for other values."""
    left = {}
    for name, value in options.items():
        reason = None if name in known else argument(name)
        if reason is None:
            left[name] = value
        elif value is not None and not (
            isinstance(value, bool | int | float | str) and value in reason.same
        ):
            same = " or ".join(map(repr, (*reason.same, None)))
            must = f". It must be {same}" if reason.same else ""
            raise TypeError(refusal(what, name) + must)
    return left


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the argument probably meant: a similar one, or one with this prefix."""
    return nearest(name, [each for each in known if each != "self"])


def _checked(
    signature: inspect.Signature, what: str, args: Any, options: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments by name that a call takes; TypeError for others."""
    known = signature.parameters
    if known.keys() >= options.keys():
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{what}(): {error}") from None
        return options
    left = taken(what, known, options)
    for name in left:
        if name not in known:
            near = _nearest(name, known)
            hint = f": did you mean {near!r}?" if near else ""
            if name in _LIMITS and what.startswith("Model."):
                hint = f": {limit_elsewhere(left[name])}"
            raise TypeError(
                f"{what}() got an unexpected keyword argument {name!r}{hint}"
            )
    return left


def takes_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function or constructor explain unsupported arguments of Keras."""
    signature = inspect.signature(function)
    parameters = signature.parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return function
    known = frozenset(parameters)
    owner = function.__qualname__.removesuffix(".__init__")
    is_private = owner.startswith("_")  # a base: messages name the constructed class

    @wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        try:
            if is_private or not known.issuperset(options):
                what = type(args[0]).__name__ if is_private else owner
                return function(*args, **_checked(signature, what, args, options))
            return function(*args, **options)
        except Exception as error:
            shorten(error)
            raise

    return call
