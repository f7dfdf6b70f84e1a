"""Which of cuDNN's plans come first, and what workspace they may have.

Without tensor cores cuDNN's first plan takes 1.34 times as long as its best, and up to
3.7 times, over the 3x3 windows that an H100 was timed on (cuDNN 9.19, 64 and 512
images, bench/results/cudnn-*.json; turning images to channels first and back is
counted). This order takes 1.02 times, without a clock: a plan is the same in every run.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.devices.cuda._convolution_spec import ConvolutionSpec

__all__ = ["ranked", "workspace_limit"]

_MEASURED_ON = 90  # compute capability
_MANY = 64  # channels, on both sides: of fewer nothing was measured but 3
_LEAST, _MOST = 64 << 20, 256 << 20  # bytes of workspace
_TILE, _TILES = (
    128 * 256,
    64,
)  # results of a block of eng70_k2=4, and how many keep busy


def workspace_limit(spec: ConvolutionSpec) -> int:
    """Return the bytes that a plan of a convolution may have; of all policies alike.

    Most engines turn images around in it, so it grows with them, by half of them more;
    Winograd's, which take several times as much, have parts of the batch.
    """
    images = 4 * sum(prod(shape) for shape in spec.places_of_images.values())
    return min(max(images + images // 2, _LEAST), _MOST)


def ranked(
    names: Iterable[str], spec: ConvolutionSpec, capability: int, *, tf32: bool
) -> list[str]:
    """Return plans in the order in which they are tried, by their names.

    Parameters
    ----------
    names : iterable of str
        cuDNN's, in its order.
    spec : ConvolutionSpec
        What they compute.
    capability : int
        The GPU's: 90 is compute capability 9.0.
    tf32 : bool
        Whether tensor cores may be used.
    """
    known = _known(spec) if capability == _MEASURED_ON and not tf32 else ()

    def place(name: str) -> int:
        return next(
            (i for i, each in enumerate(known) if f"{name}_".startswith(f"{each}_")),
            len(known),
        )

    return sorted(names, key=place)


def _known(spec: ConvolutionSpec) -> tuple[str, ...]:
    """Return names, or what they begin with, the fastest first."""
    plain = (
        spec.kernel[:2] == (3, 3)
        and spec.strides == spec.dilation == (1, 1)
        and spec.groups == 1
        and not spec.lopsided
        and min(spec.x[3], spec.y[3]) >= _MANY
    )
    if not plain:
        return ()
    match spec.op_type:
        case "conv2d":
            busy = prod(spec.y) >= _TILES * _TILE
            best = ("eng70_k2=4", "eng70_k2=2") if busy else ("eng70_k2=2",)
            return (*best, "eng70_k2=12_k18=0")
        case "conv2d_gradient_input":
            side = min(spec.x[1:3])
            if side >= 16:
                return ("eng50", "eng74")
            return ("eng2_k2=2", "eng74") if side >= 8 else ("eng74",)
        case "conv2d_gradient_kernel":
            return ("eng17",)
    return ()
