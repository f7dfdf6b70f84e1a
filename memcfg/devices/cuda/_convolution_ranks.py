"""The order of cuDNN's plans, and the limit of their workspace.

Without tensor cores, cuDNN's first plan takes 1.34 times (at most 3.7 times) the time
of its best one, over the 3x3 convolutions timed on an H100 (cuDNN 9.19, 64 and 512
images, bench/results/cudnn-*.json, including layout conversions). With this order it is
1.02 times. The order is fixed instead of timed, so that every run takes the same plan.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.devices.cuda._convolution_spec import ConvolutionSpec

__all__ = ["ranked", "workspace_limit"]

_MEASURED_ON = 90  # compute capability
_MANY = 64  # input and output channels from which on the order was measured
_LEAST, _MOST = 64 << 20, 256 << 20  # bytes of workspace
_TILE, _TILES = (
    128 * 256,
    64,
)  # outputs of a block of eng70_k2=4, and the blocks that keep a GPU busy


def workspace_limit(spec: ConvolutionSpec) -> int:
    """Return the max. workspace of a plan in bytes, the same for all policies.

    Most engines convert the layout of images in it: it is 1.5 times their size, from 64
    to 256 MiB. Winograd engines, which need several times as much, process parts of the
    batch.
    """
    images = 4 * sum(prod(shape) for shape in spec.places_of_images.values())
    return min(max(images + images // 2, _LEAST), _MOST)


def ranked(
    names: Iterable[str], spec: ConvolutionSpec, capability: int, *, tf32: bool
) -> list[str]:
    """Return the names of plans in the order in which to try them.

    Parameters
    ----------
    names : iterable of str
        The names, in cuDNN's order.
    spec : ConvolutionSpec
        The convolution.
    capability : int
        The GPU's compute capability: 90 is 9.0.
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
    """Return prefixes of the names of plans, the fastest first."""
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
