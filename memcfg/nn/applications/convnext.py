"""ConvNeXt, for images of ImageNet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg.nn._sequential import Sequential
from memcfg.nn.applications._application import Application, Arguments, build
from memcfg.nn.applications._constructor import constructor
from memcfg.nn.applications._pixels import same_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, models
from memcfg.nn.applications._shared_layers import pooled
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import (
    Activation,
    Conv2D,
    Dense,
    GlobalAveragePooling2D,
    Layer,
    LayerNormalization,
    Normalization,
)
from memcfg.nn.layers._scales import LayerScale

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "ConvNeXtBase",
    "ConvNeXtLarge",
    "ConvNeXtSmall",
    "ConvNeXtTiny",
    "ConvNeXtXLarge",
    "decode_predictions",
    "preprocess_input",
]

_EPSILON = 1e-6  # of normalisation
_SCALE = 1e-6  # the first factor of a block's result
_MEAN, _DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _block(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Append a residual block: a convolution of each channel, and two dense layers."""
    width = x.sample_shape[-1]
    y = Conv2D(width, 7, padding="same", groups=width, name=f"{name}_depthwise_conv")(x)
    y = LayerNormalization(epsilon=_EPSILON, name=f"{name}_layernorm")(y)
    y = Dense(4 * width, name=f"{name}_pointwise_conv_1")(y)
    y = Activation("gelu", name=f"{name}_gelu")(y)
    y = Dense(width, name=f"{name}_pointwise_conv_2")(y)
    y = LayerScale(_SCALE, width, name=f"{name}_layer_scale")(y)
    y = Activation("linear", name=f"{name}_identity")(y)
    result: SymbolicTensor = x + y
    return result


def _scaled(x: SymbolicTensor, name: str) -> SymbolicTensor:
    """Append the scaling of pixels from 0 to 255."""
    result: SymbolicTensor = Normalization(
        mean=[255 * each for each in _MEAN],
        variance=[(255 * each) ** 2 for each in _DEVIATION],
        name=f"{name}_prestem_normalization",
    )(x)
    return result


def _body(
    counts: Sequence[int],
    width: int,
    start: str,
    x: SymbolicTensor,
    given: Arguments,
    *,
    include_preprocessing: bool = True,
) -> SymbolicTensor:
    name = start if given.name is None else given.name
    if include_preprocessing and x.sample_shape[-1] == 3:
        x = _scaled(x, name)
    for stage, count in enumerate(counts):
        channels = width << stage
        if stage == 0:
            inner = [
                Conv2D(channels, 4, 4, name=f"{name}_stem_conv"),
                LayerNormalization(epsilon=_EPSILON, name=f"{name}_stem_layernorm"),
            ]
            x = Sequential(inner, name=f"{name}_stem")(x)
        else:
            place = f"{name}_downsampling"
            norm = f"{place}_layernorm_{stage - 1}"
            inner = [
                LayerNormalization(epsilon=_EPSILON, name=norm),
                Conv2D(channels, 2, 2, name=f"{place}_conv_{stage - 1}"),
            ]
            x = Sequential(inner, name=f"{place}_block_{stage - 1}")(x)
        for i in range(count):
            x = _block(x, f"{name}_stage_{stage}_block_{i}")
    return x


def _head(start: str, x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    name = start if given.name is None else given.name
    if not given.include_top:
        x = pooled(x, given.pooling, (None, None))
        last: Layer = LayerNormalization(epsilon=_EPSILON)
    else:
        x = GlobalAveragePooling2D(name=f"{name}_head_gap")(x)
        x = LayerNormalization(epsilon=_EPSILON, name=f"{name}_head_layernorm")(x)
        activation = given.classifier_activation
        last = Dense(given.classes, activation, name=f"{name}_head_dense")
    result: SymbolicTensor = last(x)
    return result


def _convnext(
    application: Application,
    include_top: bool = True,
    include_preprocessing: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    input_shape: Sequence[int | None] | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
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


# Blocks of each stage, channels of the first, and the SHA-256s of the files.
_ROWS = {
    "Tiny": (
        (3, 3, 9, 3),
        96,
        (
            "8ae6e78ce2933352b1ef4008e6dd2f17bc40771563877d156bc6426c7cf503ff",
            "d547c096cabd03329d7be5562c5e14798aa39ed24b474157cef5e85ab9e49ef1",
        ),
    ),
    "Small": (
        (3, 3, 27, 3),
        96,
        (
            "ce1277d8f1ee5a0ef0e171469089c18f5233860ceaf9b168049cb9263fd7483c",
            "6fc8009faa2f00c1c1dfce59feea9b0745eb260a7dd11bee65c8e20843da6eab",
        ),
    ),
    "Base": (
        (3, 3, 27, 3),
        128,
        (
            "52cbb006d3dadd03f6e095a8ca1aca47aecdd75acb4bc74bce1f5c695d0086e6",
            "40a20c5548a5e9202f69735ecc06c990e6b7c9d2de39f0361e27baeb24cb7c45",
        ),
    ),
    "Large": (
        (3, 3, 27, 3),
        192,
        (
            "070c5ed9ed289581e477741d3b34beffa920db8cf590899d6d2c67fba2a198a6",
            "96f02b6f0753d4f543261bc9d09bed650f24dd6bc02ddde3066135b63d23a1cd",
        ),
    ),
    "XLarge": (
        (3, 3, 27, 3),
        256,
        (
            "c1f5ccab661354fc3a79a10fa99af82f0fbf10ec65cb894a3ae0815f17a889ee",
            "de3f8a54174130e0cecdc71583354753d557fcf1f4487331558e2a16ba0cfe05",
        ),
    ),
}

ConvNeXtTiny, ConvNeXtSmall, ConvNeXtBase, ConvNeXtLarge, ConvNeXtXLarge = (
    constructor(
        __name__,
        _convnext,
        Application(
            function=f"ConvNeXt{word}",
            about=f"ConvNeXt-{word}, of convolutions in the design of a transformer",
            reference=(
                'Liu, Mao, Wu, Feichtenhofer, Darrell and Xie, "A ConvNet for the '
                '2020s", CVPR 2022.'
            ),
            name=f"convnext_{word.lower()}",
            body=partial(_body, counts, width, f"convnext_{word.lower()}"),
            head=partial(_head, f"convnext_{word.lower()}"),
            files=models(
                f"{APPLICATIONS}convnext/", f"convnext_{word.lower()}", hashes
            ),
        ),
    )
    for word, (counts, width, hashes) in _ROWS.items()
)
