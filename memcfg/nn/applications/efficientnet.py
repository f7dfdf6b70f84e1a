"""EfficientNet, for images of ImageNet."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from memcfg.nn.applications._application import IMAGENET, Application
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._gates import (
    CLASSIFIER_START,
    KERNEL_START,
    convolved,
    gated,
    swish,
)
from memcfg.nn.applications._inverted_residual import Style, inverted_residual
from memcfg.nn.applications._pixels import same_pixels as preprocess_input
from memcfg.nn.applications._remote_file import models
from memcfg.nn.applications._shared_layers import divisible, head, padded
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Normalization, Rescaling

if TYPE_CHECKING:
    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = [
    "EfficientNetB0",
    "EfficientNetB1",
    "EfficientNetB2",
    "EfficientNetB3",
    "EfficientNetB4",
    "EfficientNetB5",
    "EfficientNetB6",
    "EfficientNetB7",
    "decode_predictions",
    "preprocess_input",
]

_BLOCKS = (  # expansion, channels, kernel size, number of blocks, stride of the first
    (1, 16, 3, 1, 1),
    (6, 24, 3, 2, 2),
    (6, 40, 5, 2, 2),
    (6, 80, 3, 3, 2),
    (6, 112, 5, 3, 1),
    (6, 192, 5, 4, 2),
    (6, 320, 3, 1, 1),
)
_FOLDER = "https://storage.googleapis.com/keras-applications/"
_DROPPED = 0.2  # the rate after the last block, to which rates rise
_VARIANCES = (0.229, 0.224, 0.225)  # by which Keras's weights want pixels divided
_STYLE = Style(
    ("expand_conv", "expand_bn", "expand_activation"),
    ("dwconv", "bn", "activation"),
    ("project_conv", "project_bn"),
    "dwconv_pad",
    swish,
    {},
    KERNEL_START,
)


class _Variant(NamedTuple):
    """One of the networks."""

    width: float  # the factor of the numbers of channels
    depth: float  # the factor of the numbers of blocks
    size: int  # the height and width of images
    dropout: float  # the rate before the classifier
    hashes: tuple[str, str]  # MD5s of the files


_VARIANTS = (
    _Variant(
        *(1.0, 1.0, 224, 0.2),
        ("902e53a9f72be733fc0bcb005b3ebbac", "50bc09e76180e00e4465e1a485ddc09d"),
    ),
    _Variant(
        *(1.0, 1.1, 240, 0.2),
        ("1d254153d4ab51201f1646940f018540", "74c4e6b3e1f6a1eea24c589628592432"),
    ),
    _Variant(
        *(1.1, 1.2, 260, 0.3),
        ("b15cce36ff4dcbd00b6dd88e7857a6ad", "111f8e2ac8aa800a7a99e3239f7bfb39"),
    ),
    _Variant(
        *(1.2, 1.4, 300, 0.3),
        ("ffd1fdc53d0ce67064dc6a9c7960ede0", "af6d107764bb5b1abb91932881670226"),
    ),
    _Variant(
        *(1.4, 1.8, 380, 0.4),
        ("18c95ad55216b8f92d7e70b3a046e2fc", "ebc24e6d6c33eaebbd558eafbeedf1ba"),
    ),
    _Variant(
        *(1.6, 2.2, 456, 0.4),
        ("ace28f2a6363774853a83a0b21b9421a", "38879255a25d3c92d5e44e04ae6cec6f"),
    ),
    _Variant(
        *(1.8, 2.6, 528, 0.5),
        ("165f6e37dce68623721b423839de8be5", "9ecce42647a20130c1f39a5d4cb75743"),
    ),
    _Variant(
        *(2.0, 3.1, 600, 0.5),
        ("8c03f828fec3ef71311cd463b6759d99", "cbcfe4450ddf6f3ad90b1b398090fe4a"),
    ),
)


def _body(variant: _Variant, x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    x = Rescaling(1 / 255)(x)
    x = Normalization(axis=3)(x)
    if given.weights == IMAGENET:
        x = Rescaling([1 / math.sqrt(each) for each in _VARIANCES])(x)
    x = padded(x, 3, "stem_conv_pad")
    x = convolved(x, divisible(32 * variant.width), 3, 2, "stem", padding="valid")
    counts = [math.ceil(variant.depth * row[3]) for row in _BLOCKS]
    done = 0
    rows = zip(_BLOCKS, counts, strict=True)
    for stage, ((expansion, channels, kernel_size, _, first), count) in enumerate(
        rows, 1
    ):
        for i in range(count):
            width = x.sample_shape[-1]
            name = f"block{stage}{chr(ord('a') + i)}_"
            x = inverted_residual(
                _STYLE,
                x,
                name,
                width=None if expansion == 1 else expansion * width,
                filters=divisible(channels * variant.width),
                kernel_size=kernel_size,
                strides=first if i == 0 else 1,
                gate=partial(gated, name, max(1, width // 4)),
                rate=_DROPPED * done / sum(counts),
            )
            done += 1
    return convolved(x, divisible(1280 * variant.width), 1, 1, "top")


(
    EfficientNetB0,
    EfficientNetB1,
    EfficientNetB2,
    EfficientNetB3,
    EfficientNetB4,
    EfficientNetB5,
    EfficientNetB6,
    EfficientNetB7,
) = (
    constructor(
        __name__,
        classifier,
        Application(
            function=f"EfficientNetB{i}",
            about=f"EfficientNet-B{i}, of inverted residual blocks with gates",
            reference=(
                'Tan and Le, "EfficientNet: rethinking model scaling for convolutional '
                'neural networks", ICML 2019.'
            ),
            name=f"efficientnetb{i}",
            size=variant.size,
            body=partial(_body, variant),
            head=partial(
                head,
                names=("avg_pool", "max_pool"),
                dropout=variant.dropout,
                kernel_initializer=CLASSIFIER_START,
            ),
            files=models(_FOLDER, f"efficientnetb{i}", variant.hashes),
        ),
    )
    for i, variant in enumerate(_VARIANTS)
)
