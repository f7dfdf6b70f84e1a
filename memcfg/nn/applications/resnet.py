"""Residual networks, for images of ImageNet."""

from __future__ import annotations

from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import caffe_pixels as preprocess_input
from memcfg.nn.applications._residual_stacks import residual_network
from memcfg.nn.applications.imagenet_utils import decode_predictions

__all__ = [
    "ResNet50",
    "ResNet101",
    "ResNet152",
    "decode_predictions",
    "preprocess_input",
]

# Layers, blocks in each stack, and the MD5s of the files.
_ROWS = (
    (
        50,
        (3, 4, 6, 3),
        ("2cb95161c43110f7111970584f804107", "4d473c1dd8becc155b73f8504c6f6626"),
    ),
    (
        101,
        (3, 4, 23, 3),
        ("f1aeb4b969a6efcfb50fad2f0c20cfc5", "88cf7a10940856eca736dc7b7e228a21"),
    ),
    (
        152,
        (3, 8, 36, 3),
        ("100835be76be38e30d865e96f2aaae62", "ee4c566cf9a93f14d82f913c2dc6dd0c"),
    ),
)

ResNet50, ResNet101, ResNet152 = (
    constructor(__name__, classifier, residual_network(depth, "", counts, hashes))
    for depth, counts, hashes in _ROWS
)
