"""Inception v3, for images of ImageNet."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.applications._application import Application
from memcfg.nn.applications._constructor import classifier, constructor
from memcfg.nn.applications._inception_blocks import (
    AVERAGE,
    LARGEST,
    Fork,
    branched,
    stem,
)
from memcfg.nn.applications._pixels import tf_pixels as preprocess_input
from memcfg.nn.applications._remote_file import kernels
from memcfg.nn.applications._shared_layers import head
from memcfg.nn.applications.imagenet_utils import decode_predictions

if TYPE_CHECKING:
    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["InceptionV3", "decode_predictions", "preprocess_input"]

_ROW, _COLUMN = (1, 7), (7, 1)


def _small(pooled: int) -> Any:
    """Return a block with kernels of 5 x 5."""
    return (
        ((64, 1),),
        ((48, 1), (64, 5)),
        ((64, 1), (96, 3), (96, 3)),
        (AVERAGE, (pooled, 1)),
    )


def _medium(width: int) -> Any:
    """Return a block with kernels of 7 x 1 and 1 x 7."""
    twice = ((width, _COLUMN), (width, _ROW), (width, _COLUMN), (192, _ROW))
    return (
        ((192, 1),),
        ((width, 1), (width, _ROW), (192, _COLUMN)),
        ((width, 1), *twice),
        (AVERAGE, (192, 1)),
    )


def _large(name: str) -> Any:
    """Return a block whose branches fork."""
    fork = ((384, (1, 3)), (384, (3, 1)))
    return (
        ((320, 1),),
        ((384, 1), Fork(fork, name)),
        ((448, 1), (384, 3), Fork(fork)),
        (AVERAGE, (192, 1)),
    )


_BLOCKS: tuple[Any, ...] = (
    *(_small(32), _small(64), _small(64)),
    (((384, 3, 2),), ((64, 1), (96, 3), (96, 3, 2)), (LARGEST,)),
    *(_medium(128), _medium(160), _medium(160), _medium(192)),
    (
        ((192, 1), (320, 3, 2)),
        ((192, 1), (192, _ROW), (192, _COLUMN), (192, 3, 2)),
        (LARGEST,),
    ),
    *(_large("mixed9_0"), _large("mixed9_1")),
)


def _body(x: SymbolicTensor, given: Arguments) -> SymbolicTensor:
    del given
    x = stem(x)
    for i, branches in enumerate(_BLOCKS):
        x = branched(x, branches, f"mixed{i}")
    return x


InceptionV3 = constructor(
    __name__,
    classifier,
    Application(
        function="InceptionV3",
        about="Inception v3, of blocks of parallel convolutions",
        reference=(
            'Szegedy, Vanhoucke, Ioffe, Shlens and Wojna, "Rethinking the Inception '
            'architecture for computer vision", CVPR 2016.'
        ),
        name="inception_v3",
        size=299,
        least=75,
        body=_body,
        head=head,
        files=kernels(
            "inception_v3",
            "inception_v3",
            ("9a0d58056eeedaa3f26cb7ebd46da564", "bcbd6486424b2319ff4ef7d526e38f63"),
        ),
    ),
)
