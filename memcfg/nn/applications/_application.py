"""A network of Keras's applications: what it is made of, and a model of it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._caller import outside
from memcfg._checks import unknown
from memcfg.nn._argument_checks import activation_name, integer
from memcfg.nn._batch_parts import get_source_inputs
from memcfg.nn._model import Model
from memcfg.nn.layers import Input, SymbolicTensor
from memcfg.nn.layers._layer import sample_shape

if TYPE_CHECKING:
    from memcfg.nn.applications._remote_file import RemoteFile

__all__ = ["IMAGENET", "Application", "Arguments", "build"]

IMAGENET = "imagenet"
_CLASSES = 1000  # of ImageNet
_CHANNELS = (1, 3)  # of grey and of coloured images

OpenShape = tuple[int | None, ...]


class Arguments(NamedTuple):
    """What all constructors take, in the order of most of them."""

    include_top: bool = True
    weights: str | os.PathLike[str] | None = IMAGENET
    input_tensor: SymbolicTensor | None = None
    input_shape: Sequence[int | None] | None = None
    pooling: str | None = None
    classes: int = _CLASSES
    classifier_activation: Any = "softmax"
    name: str | None = None


Layers = Callable[..., SymbolicTensor]  # of a tensor and the arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """A network, before its arguments are known."""

    function: str  # the name of its constructor
    about: str  # what it is, after "Return"
    reference: str  # the paper
    name: str | None  # of the model, by default
    size: int = 224  # the height and width of images, by default
    least: int = 32  # the least height and width
    body: Layers  # appends the features
    head: Layers  # appends the classifier, or the pooling in its place
    any_size: bool = False  # whether the classifier takes images of any size
    known_size: bool = False  # whether the features, too, take those of one size
    files: tuple[RemoteFile, RemoteFile] | None = None  # with the classifier, without


def build(application: Application, given: Arguments) -> Model:
    """Return a model of a network, with random weights or those of a file."""
    function = application.function
    pretrained = given.weights == IMAGENET
    _check(function, given)
    if given.input_tensor is None:
        x = Input(_shape(application, given))
        inputs = [x]
    else:
        x = given.input_tensor
        inputs = _sources(function, given)
        given = given._replace(input_shape=x.shape[1:])
        _shape(application, given)
    x = application.body(x, given)
    x = application.head(x, given)
    name = application.name if given.name is None else given.name
    model = Model(inputs[0] if len(inputs) == 1 else inputs, x, name=name)
    path = given.weights
    if pretrained:
        if application.files is None:
            raise ValueError(
                f"{function}: Keras has no weights for these arguments: pass the path "
                "of a file as weights, or None"
            )
        path = application.files[not given.include_top].fetched(function)
    if path is not None:
        model.load_weights(path)
    return model


def _check(function: str, given: Arguments) -> None:
    """Raise ValueError or TypeError for arguments that make no model."""
    weights = given.weights
    is_known = weights is None
    if isinstance(weights, str | os.PathLike):
        is_known = weights == IMAGENET or os.path.isfile(weights)
    if not is_known:
        raise ValueError(
            f"{function}: weights must be None, 'imagenet' or the path of a file, got "
            f"{weights!r}"
        )
    if given.pooling not in (None, "avg", "max"):
        raise unknown("pooling", str(given.pooling), ("avg", "max"), f"{function}: ")
    if not given.include_top:
        return
    classes = integer(given.classes, f"{function}: classes")
    if weights == IMAGENET and classes != _CLASSES:
        raise ValueError(
            f"{function}: the weights 'imagenet' are of {_CLASSES} classes, not "
            f"{classes}: pass include_top=False, and append a layer of your own"
        )
    activation = activation_name(given.classifier_activation, function)
    if weights is not None and activation not in (None, "softmax"):
        raise ValueError(
            f"{function}: classifier_activation must be 'softmax' or None for weights "
            f"of a file, got {given.classifier_activation!r}"
        )


def _sources(function: str, given: Arguments) -> list[SymbolicTensor]:
    """Return the inputs that `input_tensor` is computed from."""
    tensor = given.input_tensor
    if not isinstance(tensor, SymbolicTensor):
        raise TypeError(
            f"{function}: input_tensor must be a symbolic tensor, which starts from "
            f"Input(shape), got {tensor!r}"
        )
    shape = given.input_shape
    if shape is not None and tuple(shape) != tensor.shape[1:]:
        raise ValueError(
            f"{function}: input_shape is {tuple(shape)}, but input_tensor has samples "
            f"of shape {tensor.shape[1:]}"
        )
    return get_source_inputs(tensor)


def _shape(application: Application, given: Arguments) -> OpenShape:
    """Return the shape of images; ValueError for one that the network cannot take."""
    function, least = application.function, application.least
    default: OpenShape = (application.size, application.size, 3)
    fixed = given.include_top and not application.any_size
    known = fixed or application.known_size
    if given.input_shape is None:
        return default if known else (None, None, 3)
    shape = sample_shape(given.input_shape)
    if len(shape) != 3 or shape[2] is None:
        raise ValueError(
            f"{function}: input_shape must be a height, a width and a number of "
            f"channels, got {shape}"
        )
    *sides, channels = shape
    if given.weights == IMAGENET and (channels != 3 or (fixed and shape != default)):
        raise ValueError(
            f"{function}: the weights 'imagenet' are of images of shape "
            f"{default if fixed else (None, None, 3)}, not {shape}"
            + ": pass include_top=False for other sizes"
            * (channels == 3)
        )
    if any(side is not None and side < least for side in sides):
        raise ValueError(
            f"{function} needs images of at least {least} x {least}, not {sides[0]} x "
            f"{sides[1]}"
        )
    if known and None in sides:
        other = " or pass include_top=False" * (not application.known_size)
        raise ValueError(
            f"{function}: input_shape must have known lengths, got {shape}: fill them "
            f"in{other}"
        )
    if channels not in _CHANNELS:
        warnings.warn(
            f"{function}: input_shape {shape} is of images with {channels} channels; "
            "most have 1 or 3",
            UserWarning,
            stacklevel=outside(),
        )
    return shape
