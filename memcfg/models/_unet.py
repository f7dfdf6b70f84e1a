"""U-Net."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.models._parts import Sizes
    from memcfg.nn import SymbolicTensor

__all__ = ["unet"]

_WIDTHS = (64, 128, 256, 512)


@network
def unet(
    input_shape: Sizes = (572, 572, 1),
    classes: int = 2,
    padding: str = "valid",
    name: str = "unet",
) -> nn.Model:
    """Return U-Net, an encoder and a decoder with skip connections.

    Parameters
    ----------
    input_shape : tuple of int, default (572, 572, 1)
        Shape of an image.
    classes : int, default 2
        Number of logits of a pixel.
    padding : {"valid", "same"}, default "valid"
        ``"valid"``: as published, convolutions are not padded, the encoder's maps are
        cropped before concatenation, and the output is 184 pixels smaller a side.
        ``"same"``: the output has the input's size.
    name : str, default "unet"
        The model's name.

    Returns
    -------
    Model
        A model of 31,030,658 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported. With ``"valid"``, height and width
        must be 12 plus a multiple of 16, at least 188; with ``"same"``, a multiple of
        16.

    References
    ----------
    Ronneberger, Fischer and Brox, "U-Net: convolutional networks for biomedical image
    segmentation", MICCAI 2015.
    """
    x = inputs = nn.Input(input_shape)
    _check_sizes(x.sample_shape[:2], padding)
    skips = []
    for level, width in enumerate(_WIDTHS, 1):
        x = _twice(x, width, padding, f"down{level}")
        skips.append(x)
        x = nn.MaxPooling2D()(x)
    x = nn.Dropout(0.5)(_twice(x, 1024, padding, "bottom"))
    for level, width in reversed(list(enumerate(_WIDTHS, 1))):
        x = nn.Conv2DTranspose(width, 2, 2, name=f"up{level}.conv0")(x)
        x = nn.Concatenate()([_cropped(skips.pop(), x), x])
        x = _twice(x, width, padding, f"up{level}")
    return nn.Model(inputs, nn.Conv2D(classes, 1, name="logits")(x), name=name)


def _check_sizes(sizes: Sequence[int], padding: str) -> None:
    """Raise ValueError unless height and width can be halved at each level."""
    halvings = 1 << len(_WIDTHS)
    rest, least = (12, 188) if str(padding).lower() == "valid" else (0, halvings)
    if any(size % halvings != rest or size < least for size in sizes):
        wanted = f"{halvings} n + {rest}" if rest else f"a multiple of {halvings}"
        raise ValueError(
            f"unet: maps are halved {len(_WIDTHS)} times, so with padding {padding!r} "
            f"height and width are {wanted}, {least} or more, not {tuple(sizes)}"
        )


def _twice(x: SymbolicTensor, width: int, padding: str, name: str) -> SymbolicTensor:
    for i in (1, 2):
        x = nn.Conv2D(
            width,
            3,
            padding=padding,
            activation="relu",
            kernel_initializer="he_normal",
            name=f"{name}.conv{i}",
        )(x)
    return x


def _cropped(x: SymbolicTensor, to: SymbolicTensor) -> SymbolicTensor:
    """Crop the middle of a feature map."""
    beyond = [
        a - b for a, b in zip(x.sample_shape[:2], to.sample_shape[:2], strict=True)
    ]
    if not any(beyond):
        return x
    sides = tuple((each // 2, each - each // 2) for each in beyond)
    result: SymbolicTensor = nn.Cropping2D(sides)(x)
    return result
