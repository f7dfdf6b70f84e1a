"""VGG-19, for images of ImageNet."""

from __future__ import annotations

from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import caffe_pixels as preprocess_input
from memcfg.nn.applications._plain_stack import plain_stack
from memcfg.nn.applications.imagenet_utils import decode_predictions

__all__ = ["VGG19", "decode_predictions", "preprocess_input"]

VGG19 = constructor(
    __name__,
    classifier,
    plain_stack(
        19,
        (2, 2, 4, 4, 4),
        (
            "cbe5617147190e668d6c5d5026f83318",
            "253f8cb515780f3b799900260a226db6",
        ),
    ),
)
