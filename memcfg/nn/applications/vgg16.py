"""VGG-16, for images of ImageNet."""

from __future__ import annotations

from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import caffe_pixels as preprocess_input
from memcfg.nn.applications._plain_stack import plain_stack
from memcfg.nn.applications.imagenet_utils import decode_predictions

__all__ = ["VGG16", "decode_predictions", "preprocess_input"]

VGG16 = constructor(
    __name__,
    classifier,
    plain_stack(
        16,
        (2, 2, 3, 3, 3),
        (
            "64373286793e3c8b2b4e3219cbf3544b",
            "6d6bbae143d832006294945121d1f1fc",
        ),
    ),
)
