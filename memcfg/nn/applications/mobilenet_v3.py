"""MobileNet v3, for images of ImageNet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn._argument_checks import real, unit_interval
from memcfg.nn.applications._application import (
    IMAGENET,
    Application,
    Arguments,
    build,
)
from memcfg.nn.applications._constructor import constructor
from memcfg.nn.applications._inverted_residual import Style, inverted_residual
from memcfg.nn.applications._pixels import same_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, RemoteFile
from memcfg.nn.applications._shared_layers import divisible, normalized, pooled
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import (
    Activation,
    Conv2D,
    Dropout,
    Flatten,
    GlobalAveragePooling2D,
    Multiply,
    ReLU,
    Rescaling,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.applications._inverted_residual import Activated
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "MobileNetV3Large",
    "MobileNetV3Small",
    "decode_predictions",
    "preprocess_input",
]

# Expansion, channels, kernel size, stride, gate, and whether the activation is ReLU.
_SMALL = (
    (1, 16, 3, 2, True, True),
    (72 / 16, 24, 3, 2, False, True),
    (88 / 24, 24, 3, 1, False, True),
    (4, 40, 5, 2, True, False),
    *((6, 40, 5, 1, True, False),) * 2,
    *((3, 48, 5, 1, True, False),) * 2,
    (6, 96, 5, 2, True, False),
    *((6, 96, 5, 1, True, False),) * 2,
)
_LARGE = (
    (1, 16, 3, 1, False, True),
    (4, 24, 3, 2, False, True),
    (3, 24, 3, 1, False, True),
    (3, 40, 5, 2, True, True),
    *((3, 40, 5, 1, True, True),) * 2,
    (6, 80, 3, 2, False, False),
    (2.5, 80, 3, 1, False, False),
    *((2.3, 80, 3, 1, False, False),) * 2,
    *((6, 112, 3, 1, True, False),) * 2,
    (6, 160, 5, 2, True, False),
    *((6, 160, 5, 1, True, False),) * 2,
)
_HASHES = {  # of the files with the classifier, and without
    "large_224_0.75": (
        "765b44a33ad4005b3ac83185abf1d0eb",
        "40af19a13ebea4e2ee0c676887f69a2e",
    ),
    "large_224_1.0": (
        "59e551e166be033d707958cf9e29a6a7",
        "07fb09a5933dd0c8eaafa16978110389",
    ),
    "large_minimalistic_224_1.0": (
        "675e7b876c45c57e9e63e6d90a36599c",
        "ec5221f64a2f6d1ef965a614bdae7973",
    ),
    "small_224_0.75": (
        "cb65d4e5be93758266aa0a7f2c6708b7",
        "ebdb5cc8e0b497cd13a7c275d475c819",
    ),
    "small_224_1.0": (
        "8768d4c2e7dee89b9d02b2d03d65d862",
        "d3e8ec802a04aa4fc771ee12a9a9b836",
    ),
    "small_minimalistic_224_1.0": (
        "99cd97fb2fcdad2bf028eb838de69e37",
        "cde8136e733e811080d9fcd8a252f7e4",
    ),
}


class _Size(NamedTuple):
    """One of the two networks."""

    word: str  # in the names of files
    blocks: tuple[Any, ...]
    units: int  # channels before the classifier


def _rectified(x: SymbolicTensor, name: str | None) -> SymbolicTensor:
    result: SymbolicTensor = ReLU(name=name)(x)
    return result


def _hard_swish(x: SymbolicTensor, name: str | None) -> SymbolicTensor:
    result: SymbolicTensor = Activation("hard_swish", name=name)(x)
    return result


_NORMALIZATION: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.999}
_STYLE = Style(
    ("expand", "expand_bn", None),
    ("depthwise", "depthwise_bn", None),
    ("project", "project_bn"),
    "depthwise_pad",
    _rectified,
    _NORMALIZATION,
)


def _gated(name: str, x: SymbolicTensor) -> SymbolicTensor:
    """Append factors of channels, which depend on the means of all."""
    width = x.sample_shape[-1]
    name = f"{name}squeeze_excite_"
    y = GlobalAveragePooling2D(keepdims=True, name=f"{name}avg_pool")(x)
    narrow = divisible(width * 0.25)
    y = Conv2D(narrow, 1, padding="same", name=f"{name}conv")(y)
    y = ReLU(name=f"{name}relu")(y)
    y = Conv2D(width, 1, padding="same", name=f"{name}conv_1")(y)
    y = ReLU(6.0)(y + 3.0) * (1 / 6)
    result: SymbolicTensor = Multiply(name=f"{name}mul")([x, y])
    return result


def _body(
    size: _Size,
    alpha: float,
    minimalistic: bool,
    include_preprocessing: bool,
    x: SymbolicTensor,
    given: Arguments,
) -> SymbolicTensor:
    del given
    activate = _rectified if minimalistic else _hard_swish
    if include_preprocessing:
        x = Rescaling(1 / 127.5, -1.0)(x)
    x = _convolved(x, 16, 3, 2, "conv", activate)
    for i, (expansion, channels, kernel, strides, gate, relu) in enumerate(size.blocks):
        name = f"expanded_conv_{i}_" if i else "expanded_conv_"
        x = inverted_residual(
            _STYLE._replace(activate=_rectified if relu else activate),
            x,
            name,
            width=divisible(x.sample_shape[-1] * expansion) if i else None,
            filters=divisible(channels * alpha),
            kernel_size=3 if minimalistic else kernel,
            strides=strides,
            gate=partial(_gated, name) if gate and not minimalistic else None,
        )
    return _convolved(x, divisible(x.sample_shape[-1] * 6), 1, 1, "conv_1", activate)


def _convolved(
    x: SymbolicTensor,
    filters: int,
    kernel_size: int,
    strides: int,
    name: str,
    activate: Activated,
) -> SymbolicTensor:
    x = Conv2D(filters, kernel_size, strides, "same", use_bias=False, name=name)(x)
    return activate(normalized(x, f"{name}_bn", **_NORMALIZATION), None)


def _head(
    units: int, activate: Activated, rate: float, x: SymbolicTensor, given: Arguments
) -> SymbolicTensor:
    if not given.include_top:
        return pooled(x, given.pooling, ("avg_pool", "max_pool"))
    x = GlobalAveragePooling2D(keepdims=True)(x)
    x = activate(Conv2D(units, 1, padding="same", name="conv_2")(x), None)
    if rate:
        x = Dropout(rate)(x)
    x = Conv2D(given.classes, 1, padding="same", name="logits")(x)
    x = Flatten()(x)
    result: SymbolicTensor = Activation(
        given.classifier_activation, name="predictions"
    )(x)
    return result


def _mobilenet_v3(
    application: Application,
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    minimalistic: bool = False,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    classes: int = 1000,
    pooling: str | None = None,
    dropout_rate: float = 0.2,
    classifier_activation: Any = "softmax",
    include_preprocessing: bool = True,
    name: str | None = None,
) -> Model:
    function = application.function
    size = _SIZES[function]
    width = real(alpha, f"{function}: alpha")
    rate = unit_interval(dropout_rate, f"{function}: dropout_rate")
    files = None
    if weights == IMAGENET:
        kind = f"{size.word}{'_minimalistic' * bool(minimalistic)}_224_{width}"
        if kind not in _HASHES:
            raise ValueError(
                f"{function}: the weights 'imagenet' are of alpha 0.75 and 1, or with "
                f"minimalistic=True of alpha 1, not of {alpha}"
            )
        start = f"{APPLICATIONS}mobilenet_v3/weights_mobilenet_v3_{kind}_float"
        whole, part = _HASHES[kind]
        files = (
            RemoteFile(f"{start}.h5", whole),
            RemoteFile(f"{start}_no_top_v2.h5", part),
        )
    units = divisible(size.units * width) if width > 1 else size.units
    activate = _rectified if minimalistic else _hard_swish
    application = replace(
        application,
        body=partial(_body, size, width, minimalistic, include_preprocessing),
        head=partial(_head, units, activate, rate),
        files=files,
    )
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


_SIZES = {
    "MobileNetV3Small": _Size("small", _SMALL, 1024),
    "MobileNetV3Large": _Size("large", _LARGE, 1280),
}

MobileNetV3Small, MobileNetV3Large = (
    constructor(
        __name__,
        _mobilenet_v3,
        Application(
            function=function,
            about=f"the {size.word} MobileNet v3, of gated inverted residual blocks",
            reference='Howard et al., "Searching for MobileNetV3", ICCV 2019.',
            name=function,
            any_size=True,
            body=partial(_body, size, 1.0, False, True),
            head=partial(_head, size.units, _hard_swish, 0.2),
        ),
    )
    for function, size in _SIZES.items()
)
