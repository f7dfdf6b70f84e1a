"""EfficientNet v2, for images of ImageNet."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg.nn.applications._application import Application, Arguments, build
from memcfg.nn.applications._constructor import constructor
from memcfg.nn.applications._gates import (
    CLASSIFIER_START,
    KERNEL_START,
    convolved,
    gated,
    swish,
)
from memcfg.nn.applications._inverted_residual import (
    Style,
    dropped,
    inverted_residual,
)
from memcfg.nn.applications._pixels import same_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, models
from memcfg.nn.applications._shared_layers import divisible, head, normalized
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Conv2D, Layer, Normalization, Rescaling

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "EfficientNetV2B0",
    "EfficientNetV2B1",
    "EfficientNetV2B2",
    "EfficientNetV2B3",
    "EfficientNetV2L",
    "EfficientNetV2M",
    "EfficientNetV2S",
    "decode_predictions",
    "preprocess_input",
]

_DROPPED = 0.2  # the rate after the last block, to which rates rise
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_NORMALIZATION: dict[str, Any] = {"momentum": 0.9}
_STYLE = Style(
    ("expand_conv", "expand_bn", "expand_activation"),
    ("dwconv2", "bn", "activation"),
    ("project_conv", "project_bn"),
    None,
    swish,
    _NORMALIZATION,
    KERNEL_START,
)
_FUSED, _GATED = True, False  # one convolution in the place of two, or gates

# Kind, expansion, channels, number of blocks, and stride of the first.
_BASE = (
    (_FUSED, 1, 16, 1, 1),
    (_FUSED, 4, 32, 2, 2),
    (_FUSED, 4, 48, 2, 2),
    (_GATED, 4, 96, 3, 2),
    (_GATED, 6, 112, 5, 1),
    (_GATED, 6, 192, 8, 2),
)
_SMALL = (
    (_FUSED, 1, 24, 2, 1),
    (_FUSED, 4, 48, 4, 2),
    (_FUSED, 4, 64, 4, 2),
    (_GATED, 4, 128, 6, 2),
    (_GATED, 6, 160, 9, 1),
    (_GATED, 6, 256, 15, 2),
)
_MEDIUM = (
    (_FUSED, 1, 24, 3, 1),
    (_FUSED, 4, 48, 5, 2),
    (_FUSED, 4, 80, 5, 2),
    (_GATED, 4, 160, 7, 2),
    (_GATED, 6, 176, 14, 1),
    (_GATED, 6, 304, 18, 2),
    (_GATED, 6, 512, 5, 1),
)
_LARGE = (
    (_FUSED, 1, 32, 4, 1),
    (_FUSED, 4, 64, 7, 2),
    (_FUSED, 4, 96, 7, 2),
    (_GATED, 4, 192, 10, 2),
    (_GATED, 6, 224, 19, 1),
    (_GATED, 6, 384, 25, 2),
    (_GATED, 6, 640, 7, 1),
)


class _Variant(NamedTuple):
    """One of the networks."""

    word: str  # in names
    size: int  # the height and width of images
    stem: int  # channels of the first convolution
    blocks: tuple[tuple[bool, int, int, int, int], ...]
    hashes: tuple[str, str]  # MD5s of the files
    width: float = 1.0  # the factor of the numbers of channels
    depth: float = 1.0  # the factor of the numbers of blocks


_VARIANTS = (
    _Variant(
        *("B0", 224, 32, _BASE),
        ("21ecbf6da12460d5c40bb2f29ceb2188", "893217f2bb855e2983157299931e43ff"),
    ),
    _Variant(
        *("B1", 240, 32, _BASE),
        ("069f0534ff22adf035c89e2d9547a9dc", "0e80663031ca32d657f9caa404b6ec37"),
        depth=1.1,
    ),
    _Variant(
        *("B2", 260, 32, _BASE),
        ("424e49f28180edbde1e94797771950a7", "1dfe2e7a5d45b6632553a8961ea609eb"),
        *(1.1, 1.2),
    ),
    _Variant(
        *("B3", 300, 32, _BASE),
        ("1f1fc43bd98a6e4fd8fdfd551e02c7a0", "f6abf7b5849ac99a89b50dd3fd532856"),
        *(1.2, 1.4),
    ),
    _Variant(
        *("S", 384, 24, _SMALL),
        ("e1d88a8495beba45748fedd0cecbe016", "af0682fb74e8c54910f2d4393339c070"),
    ),
    _Variant(
        *("M", 480, 24, _MEDIUM),
        ("a3bf6aa3276309f4fc6a34aa114c95cd", "1b8dc055df72dde80d614482840fe342"),
    ),
    _Variant(
        *("L", 480, 32, _LARGE),
        ("27e6d408b53c7ebc868fefa357689935", "b0b66b5c863aef5b46e8608fe1711615"),
    ),
)


def _scaled(word: str, x: SymbolicTensor) -> SymbolicTensor:
    """Append the scaling of pixels from 0 to 255."""
    if word.startswith("B") and x.sample_shape[-1] == 3:
        x = Rescaling(1 / 255)(x)
        variance = [each**2 for each in _DEVIATION]
        layer: Layer = Normalization(axis=3, mean=[*_MEAN], variance=variance)
    else:
        layer = Rescaling(1 / 128, -1)
    result: SymbolicTensor = layer(x)
    return result


def _fused(
    x: SymbolicTensor,
    block: str,
    expansion: int,
    filters: int,
    strides: int,
    rate: float,
) -> SymbolicTensor:
    """Append a residual block of one or two convolutions."""
    around, width = x, x.sample_shape[-1]
    last: dict[str, Any] = {
        "name": f"{block}project_conv",
        "use_bias": False,
        "padding": "same",
    }
    last["kernel_initializer"] = KERNEL_START
    if expansion == 1:
        x = Conv2D(filters, 3, strides, **last)(x)
        x = normalized(x, f"{block}project_bn", **_NORMALIZATION)
        x = swish(x, f"{block}project_activation")
    else:
        name = f"{block}expand"
        x = convolved(x, expansion * width, 3, strides, name, **_NORMALIZATION)
        x = Conv2D(filters, 1, **last)(x)
        x = normalized(x, f"{block}project_bn", **_NORMALIZATION)
    return dropped(x, around, block, strides, rate)


def _body(
    variant: _Variant,
    x: SymbolicTensor,
    given: Arguments,
    *,
    include_preprocessing: bool = True,
) -> SymbolicTensor:
    del given
    if include_preprocessing:
        x = _scaled(variant.word, x)

    def channels(number: int) -> int:
        return divisible(number * variant.width, most_less=1)

    x = convolved(x, channels(variant.stem), 3, 2, "stem", **_NORMALIZATION)
    total = sum(row[3] for row in variant.blocks)
    done = 0
    for stage, (fused, expansion, out, repeats, first) in enumerate(variant.blocks, 1):
        filters = channels(out)
        for i in range(math.ceil(variant.depth * repeats)):
            name = f"block{stage}{chr(ord('a') + i)}_"
            rate = _DROPPED * done / total
            strides, width = first if i == 0 else 1, x.sample_shape[-1]
            if fused:
                x = _fused(x, name, expansion, filters, strides, rate)
            else:
                x = inverted_residual(
                    _STYLE,
                    x,
                    name,
                    width=expansion * width,
                    filters=filters,
                    kernel_size=3,
                    strides=strides,
                    gate=partial(gated, name, max(1, width // 4)),
                    rate=rate,
                )
            done += 1
    return convolved(x, channels(1280), 1, 1, "top", **_NORMALIZATION)


def _application(variant: _Variant) -> Application:
    name = f"efficientnetv2-{variant.word.lower()}"
    return Application(
        function=f"EfficientNetV2{variant.word}",
        about=f"EfficientNet v2-{variant.word}, of fused and gated residual blocks",
        reference=(
            'Tan and Le, "EfficientNetV2: smaller models and faster training", ICML '
            "2021."
        ),
        name=name,
        size=variant.size,
        body=partial(_body, variant),
        head=partial(
            head,
            names=("avg_pool", "max_pool"),
            dropout=0.2,
            kernel_initializer=CLASSIFIER_START,
        ),
        files=models(f"{APPLICATIONS}efficientnet_v2/", name, variant.hashes),
    )


def _efficientnet_v2(
    application: Application,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    include_preprocessing: bool = True,
    name: str | None = None,
) -> Model:
    body = partial(application.body, include_preprocessing=include_preprocessing)
    return build(
        replace(application, body=body),
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


(
    EfficientNetV2B0,
    EfficientNetV2B1,
    EfficientNetV2B2,
    EfficientNetV2B3,
    EfficientNetV2S,
    EfficientNetV2M,
    EfficientNetV2L,
) = (constructor(__name__, _efficientnet_v2, _application(each)) for each in _VARIANTS)
