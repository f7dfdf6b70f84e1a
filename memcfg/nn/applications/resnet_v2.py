"""Residual networks of the second version, for images of ImageNet."""

from __future__ import annotations

from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._residual_stacks import residual_network
from memcfg.nn.applications.imagenet_utils import decode_predictions

__all__ = [
    "ResNet50V2",
    "ResNet101V2",
    "ResNet152V2",
    "decode_predictions",
    "preprocess_input",
]

# Layers, blocks in each stack, and the MD5s of the files.
_ROWS = (
    (
        50,
        (3, 4, 6, 3),
        ("3ef43a0b657b3be2300d5770ece849e0", "fac2f116257151a9d068a22e544a4917"),
    ),
    (
        101,
        (3, 4, 23, 3),
        ("6343647c601c52e1368623803854d971", "c0ed64b8031c3730f411d2eb4eea35b5"),
    ),
    (
        152,
        (3, 8, 36, 3),
        ("a49b44d1979771252814e80f8ec446f9", "ed17cf2e0169df9d443503ef94b23b33"),
    ),
)

ResNet50V2, ResNet101V2, ResNet152V2 = (
    constructor(__name__, classifier, residual_network(depth, "V2", counts, hashes))
    for depth, counts, hashes in _ROWS
)
