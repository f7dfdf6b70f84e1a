"""Inception-ResNet v2, for images of ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._inception_blocks import (
    AVERAGE,
    LARGEST,
    branched,
    convolved,
    stem,
)
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._shared_layers import head
from memcfg.nn.applications.imagenet_utils import decode_predictions
from memcfg.nn.layers import Activation, Conv2D
from memcfg.nn.layers._scales import CustomScaleLayer

if TYPE_CHECKING:
    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["InceptionResNetV2", "decode_predictions", "preprocess_input"]

_35: Any = (
    ((32, 1),),
    ((32, 1), (32, 3)),
    ((32, 1), (48, 3), (64, 3)),
)
_17: Any = (
    ((192, 1),),
    ((128, 1), (160, (1, 7)), (192, (7, 1))),
)
_8: Any = (
    ((192, 1),),
    ((192, 1), (224, (1, 3)), (256, (3, 1))),
)
# The branches of the blocks without residuals, and the residual blocks after each: the
# name, the number, the branches, and the factor of what is added.
_STAGES: tuple[Any, ...] = (
    (
        "mixed_5b",
        (
            ((96, 1),),
            ((48, 1), (64, 5)),
            ((64, 1), (96, 3), (96, 3)),
            (AVERAGE, (64, 1)),
        ),
        ("block35", 10, _35, 0.17),
    ),
    (
        "mixed_6a",
        (
            ((384, 3, 2),),
            ((256, 1), (256, 3), (384, 3, 2)),
            (LARGEST,),
        ),
        ("block17", 20, _17, 0.1),
    ),
    (
        "mixed_7a",
        (
            ((256, 1), (384, 3, 2)),
            ((256, 1), (288, 3, 2)),
            ((256, 1), (288, 3), (320, 3, 2)),
            (LARGEST,),
        ),
        ("block8", 9, _8, 0.2),
    ),
)


def _residual(
    x: SymbolicTensor, name: str, branches: Any, scale: float
) -> SymbolicTensor:
    """Append branches whose scaled result is added to the input."""
    y = branched(x, branches, f"{name}_mixed")
    y = Conv2D(x.sample_shape[-1], 1, padding="same", name=f"{name}_conv")(y)
    result: SymbolicTensor = CustomScaleLayer(scale)([x, y])
    return result


def _body(x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    x = stem(x)
    for mixed, branches, (kind, count, inner, scale) in _STAGES:
        x = branched(x, branches, mixed)
        for i in range(1, count + 1):
            x = _residual(x, f"{kind}_{i}", inner, scale)
            x = Activation("relu", name=f"{kind}_{i}_ac")(x)
    x = _residual(x, "block8_10", _8, 1.0)
    return convolved(x, 1536, 1, name="conv_7b")


InceptionResNetV2 = constructor(
    __name__,
    classifier,
    Application(
        function="InceptionResNetV2",
        about="Inception-ResNet v2, of residual blocks of parallel convolutions",
        reference=(
            'Szegedy, Ioffe, Vanhoucke and Alemi, "Inception-v4, Inception-ResNet and '
            'the impact of residual connections on learning", AAAI 2017.'
        ),
        name="inception_resnet_v2",
        size=299,
        least=75,
        body=_body,
        head=head,
        files=kernels(
            "inception_resnet_v2",
            "inception_resnet_v2",
            ("e693bd0210a403b3192acc6073ad2e96", "d19885ff4a710c122648d3b5c3b684e4"),
        ),
    ),
)
