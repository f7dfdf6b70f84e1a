"""MobileNet v2, for images of ImageNet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from memcfg.nn._argument_checks import real
from memcfg.nn.applications._application import (
    IMAGENET,
    Application,
    Arguments,
    build,
)
from memcfg.nn.applications._constructor import constructor
from memcfg.nn.applications._inverted_residual import Style, inverted_residual
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import APPLICATIONS, RemoteFile
from memcfg.nn.applications._shared_layers import divisible, head, normalized
from memcfg.nn.applications._side import DEFAULT, side_of
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Conv2D, ReLU

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from memcfg.nn._model import Model
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["MobileNetV2", "decode_predictions", "preprocess_input"]

_BLOCKS = (  # expansion, channels, number of blocks, stride of the first
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_SIDES = (96, 128, 160, 192, 224)
_ALPHAS = (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)
_NORMALIZATION: dict[str, Any] = {"epsilon": 1e-3, "momentum": 0.999}


def _activated(x: SymbolicTensor, name: str | None) -> SymbolicTensor:
    result: SymbolicTensor = ReLU(6.0, name=name)(x)
    return result


_STYLE = Style(
    ("expand", "expand_BN", "expand_relu"),
    ("depthwise", "depthwise_BN", "depthwise_relu"),
    ("project", "project_BN"),
    "pad",
    _activated,
    _NORMALIZATION,
)


def _convolved(
    x: SymbolicTensor, filters: int, size: int, strides: int, names: Sequence[str]
) -> SymbolicTensor:
    x = Conv2D(filters, size, strides, "same", use_bias=False, name=names[0])(x)
    return _activated(normalized(x, names[1], **_NORMALIZATION), names[2])


def _body(alpha: float, x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    names = "Conv1", "bn_Conv1", "Conv1_relu"
    x = _convolved(x, divisible(32 * alpha), 3, 2, names)
    number = 0
    for expansion, channels, count, first in _BLOCKS:
        for i in range(count):
            x = inverted_residual(
                _STYLE,
                x,
                f"block_{number}_" if number else "expanded_conv_",
                width=expansion * x.sample_shape[-1] if number else None,
                filters=divisible(int(channels * alpha)),
                kernel_size=3,
                strides=first if i == 0 else 1,
            )
            number += 1
    last = divisible(1280 * alpha) if alpha > 1 else 1280
    return _convolved(x, last, 1, 1, ("Conv_1", "Conv_1_bn", "out_relu"))


def _mobilenet_v2(
    application: Application,
    input_shape: Sequence[int | None] | None = None,
    alpha: float = 1.0,
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
    side = side_of(function, given, _SIDES)
    files = None
    if weights == IMAGENET:
        if width not in _ALPHAS:
            raise ValueError(
                f"{function}: the weights 'imagenet' are of alpha "
                f"{', '.join(map(str, _ALPHAS))}, not {alpha}"
            )
        start = (
            f"{APPLICATIONS}mobilenet_v2/mobilenet_v2_weights_tf_dim_ordering_tf_kernels"
            f"_{width}_{side}"
        )
        files = RemoteFile(f"{start}.h5"), RemoteFile(f"{start}_no_top.h5")
    application = replace(
        application,
        name=f"mobilenetv2_{width:0.2f}_{side}",
        size=side or DEFAULT,
        body=partial(_body, width),
        files=files,
    )
    return build(application, given)


MobileNetV2 = constructor(
    __name__,
    _mobilenet_v2,
    Application(
        function="MobileNetV2",
        about="MobileNet v2, of inverted residual blocks",
        reference=(
            'Sandler, Howard, Zhu, Zhmoginov and Chen, "MobileNetV2: inverted '
            'residuals and linear bottlenecks", CVPR 2018.'
        ),
        name=None,
        body=partial(_body, 1.0),
        head=partial(head, top=None),
    ),
)
