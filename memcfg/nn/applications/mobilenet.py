"""MobileNet, for images of ImageNet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import integer, real, unit_interval
from memcfg.nn.applications._application import (
    IMAGENET,
    Application,
    Arguments,
    build,
)
from memcfg.nn.applications._constructor import constructor
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, RemoteFile
from memcfg.nn.applications._shared_layers import normalized, pooled
from memcfg.nn.applications._side import DEFAULT, side_of
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import (
    Activation,
    Conv2D,
    DepthwiseConv2D,
    Dropout,
    GlobalAveragePooling2D,
    ReLU,
    Reshape,
    ZeroPadding2D,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["MobileNet", "decode_predictions", "preprocess_input"]

_BLOCKS = (  # channels and strides
    *((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)),
    *((512, 1),) * 5,
    *((1024, 2), (1024, 1)),
)
_SIDES = (128, 160, 192, 224)
_ALPHAS = {1.0: "1_0", 0.75: "7_5", 0.5: "5_0", 0.25: "2_5"}  # in names of files


def _activated(x: SymbolicTensor, name: str) -> SymbolicTensor:
    x = normalized(x, f"{name}_bn")
    result: SymbolicTensor = ReLU(6.0, name=f"{name}_relu")(x)
    return result


def _body(
    alpha: float, multiplier: int, x: SymbolicTensor, given: Arguments
) -> SymbolicTensor:
    del given
    x = Conv2D(int(32 * alpha), 3, 2, "same", use_bias=False, name="conv1")(x)
    x = _activated(x, "conv1")
    for i, (channels, strides) in enumerate(_BLOCKS, 1):
        padding = "same"
        if strides > 1:
            x = ZeroPadding2D(((0, 1), (0, 1)), name=f"conv_pad_{i}")(x)
            padding = "valid"
        name = f"conv_dw_{i}"
        x = DepthwiseConv2D(3, strides, padding, multiplier, use_bias=False, name=name)(
            x
        )
        x = _activated(x, name)
        name = f"conv_pw_{i}"
        x = Conv2D(int(channels * alpha), 1, padding="same", use_bias=False, name=name)(
            x
        )
        x = _activated(x, name)
    return x


def _head(dropout: float, x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    if not given.include_top:
        return pooled(x, given.pooling, (None, None))
    x = GlobalAveragePooling2D(keepdims=True)(x)
    x = Dropout(dropout, name="dropout")(x)
    x = Conv2D(given.classes, 1, padding="same", name="conv_preds")(x)
    x = Reshape((given.classes,), name="reshape_2")(x)
    result: SymbolicTensor = Activation(
        given.classifier_activation, name="predictions"
    )(x)
    return result


def _mobilenet(
    application: Application,
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
    depth_multiplier: int = 1,
    dropout: float = 0.001,
    include_top: bool = True,
    weights: str | os.PathLike[str] | None = "imagenet",
    input_tensor: SymbolicTensor | None = None,
    pooling: str | None = None,
    classes: int = 1000,
    classifier_activation: Any = "softmax",
    name: str | None = None,
) -> Model:
    function = application.function
    given = Arguments(
        include_top,
        weights,
        input_tensor,
        input_shape,
        pooling,
        classes,
        classifier_activation,
        name,
    )
    width = real(alpha, f"{function}: alpha")
    multiplier = integer(depth_multiplier, f"{function}: depth_multiplier")
    rate = unit_interval(dropout, f"{function}: dropout")
    side = side_of(function, given, _SIDES)
    files = None
    if weights == IMAGENET:
        if multiplier != 1 or width not in _ALPHAS:
            raise ValueError(
                f"{function}: the weights 'imagenet' are of alpha 0.25, 0.5, 0.75 or 1 "
                f"and depth_multiplier 1, not of {alpha} and {depth_multiplier}"
            )
        start = f"{APPLICATIONS}mobilenet/mobilenet_{_ALPHAS[width]}_{side}_tf"
        files = RemoteFile(f"{start}.h5"), RemoteFile(f"{start}_no_top.h5")
    application = replace(
        application,
        name=f"mobilenet_{width:0.2f}_{side}",
        size=side or DEFAULT,
        body=partial(_body, width, multiplier),
        head=partial(_head, rate),
        files=files,
    )
    return build(application, given)


MobileNet = constructor(
    __name__,
    _mobilenet,
    Application(
        function="MobileNet",
        about="MobileNet, of depthwise separable convolutions",
        reference=(
            'Howard et al., "MobileNets: efficient convolutional neural networks for '
            'mobile vision applications", arXiv:1704.04861, 2017.'
        ),
        name=None,
        body=partial(_body, 1.0, 1),
        head=partial(_head, 0.001),
    ),
)
