"""Constructors of networks: Keras's names, arguments and defaults."""

from __future__ import annotations

import inspect
import textwrap
from typing import TYPE_CHECKING, Concatenate, ParamSpec

from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.applications._application import Application, Arguments, build

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from typing import Any

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["classifier", "constructor"]

P = ParamSpec("P")

# The docstrings of parameters, whose defaults the signatures have.
_PARAMETERS = {
    "include_top": "bool|Whether the classifier is part of the model.",
    "weights": (
        "str, path-like or None|None for random weights; the path of a file that "
        "`Model.load_weights` reads, such as Keras's; or ``\"imagenet\"`` for Keras's "
        "file, which `utils.get_file` downloads once."
    ),
    "input_tensor": (
        "SymbolicTensor, optional|The images, instead of an input of the model's own."
    ),
    "input_shape": (
        "tuple of (int or None), optional|The height, width and channels of images; "
        "lengths of None are any."
    ),
    "pooling": (
        '{"avg", "max"}, optional|How each channel becomes one number, without the '
        "classifier. None: the model returns images of features."
    ),
    "classes": "int|The number of classes, with the classifier.",
    "classifier_activation": (
        "str, callable or None|The activation of the classifier; None for logits."
    ),
    "include_preprocessing": (
        "bool|Whether the model takes pixels from 0 to 255, and scales them itself."
    ),
    "alpha": "float|The factor of the numbers of channels.",
    "depth_multiplier": "int|The number of channels that each depthwise kernel makes.",
    "dropout": "float|The rate of dropout before the classifier.",
    "dropout_rate": "float|The rate of dropout before the classifier.",
    "minimalistic": (
        "bool|Whether kernels are 3 x 3, activations ReLU, and channels not gated."
    ),
    "name": "str|The name of the model.",
}
_ENDS = """Returns
-------
Model
    The model, which is not compiled.

Raises
------
TypeError, ValueError
    If an argument is invalid, or the file has other weights than the network.
OSError
    If the file cannot be downloaded or read.

References
----------
"""


def classifier(
    application: Application,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str | None = None,
) -> Model:
    """Return a network with the arguments of most."""
    return build(
        application,
        Arguments(
            include_top,
            weights,
            input_tensor,
            input_shape,
            pooling,
            classes,
            classifier_activation,
            name,
        ),
    )


def constructor(
    module: str,
    make: Callable[Concatenate[Application, P], Model],
    application: Application,
) -> Callable[P, Model]:
    """Return the public function of a network, for a module that exports it."""
    name = application.function
    signature = inspect.signature(make)
    _, *parameters = signature.parameters.values()
    signature = signature.replace(
        parameters=[
            each.replace(default=application.name) if each.name == "name" else each
            for each in parameters
        ]
    )

    def call(*args: P.args, **options: P.kwargs) -> Model:
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(f"{name}(): {error}") from None
        return make(application, *args, **options)

    call.__name__ = call.__qualname__ = name
    call.__module__ = module
    call.__signature__ = signature  # type: ignore[attr-defined]
    call.__doc__ = _docstring(application, signature)
    return takes_arguments(call)


def _docstring(application: Application, signature: inspect.Signature) -> str:
    lines = [f"Return {application.about}.", "", "Parameters", "----------"]
    for each in signature.parameters.values():
        kind, _, words = _PARAMETERS[each.name].partition("|")
        shown = repr(each.default).replace("'", '"')
        optional = "" if each.default is None else f", default {shown}"
        if each.default is None and "optional" not in kind:
            optional = ", optional"
        lines.append(f"{each.name} : {kind}{optional}")
        lines.append(textwrap.indent(textwrap.fill(words, 84), "    "))
    return "\n".join([*lines, "", _ENDS + textwrap.fill(application.reference, 88)])
