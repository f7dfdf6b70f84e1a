"""The description of a convolution: type, shapes and window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.devices._contract import OperandSpec

_Shape: TypeAlias = tuple[int, ...]
_Pair: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ConvolutionSpec:
    """A convolution of x by a kernel to y, or one of its two gradients.

    Parameters
    ----------
    op_type : str
        ``"conv2d"``, ``"conv2d_bias"``, ``"conv2d_gradient_input"`` or
        ``"conv2d_gradient_kernel"``.
    x, y : tuple of int
        [N, H, W, C].
    kernel : tuple of int
        [KH, KW, C / groups, O].
    strides, dilation : tuple of int
        Along height and width.
    padding : tuple of tuple of int
        Padding before and after, along height and width.
    """

    op_type: str
    x: _Shape
    kernel: _Shape
    y: _Shape
    strides: _Pair
    dilation: _Pair
    padding: tuple[_Pair, _Pair]

    @property
    def kernel_place(self) -> int:
        """Index of the operand that is the kernel, or its gradient."""
        places = {"conv2d_gradient_input": 0, "conv2d_gradient_kernel": 2}
        return places.get(self.op_type, 1)

    @property
    def images(self) -> int:
        """Number of images, N."""
        return self.x[0]

    @property
    def places_of_images(self) -> dict[int, _Shape]:
        """Shapes of the operands that are images, by index."""
        match self.op_type:
            case "conv2d":
                return {0: self.x, 2: self.y}
            case "conv2d_bias":
                return {0: self.x, 3: self.y}
            case "conv2d_gradient_input":
                return {1: self.y, 2: self.x}
        return {0: self.x, 1: self.y}

    @property
    def groups(self) -> int:
        """Number of groups of channels."""
        return self.x[3] // self.kernel[2]

    @property
    def lopsided(self) -> bool:
        """Whether padding before and after differ."""
        return any(before != behind for before, behind in self.padding)

    def of(self, images: int) -> ConvolutionSpec:
        """Return the same convolution of another number of images."""
        return replace(self, x=(images, *self.x[1:]), y=(images, *self.y[1:]))

    @property
    def pixelwise(self) -> bool:
        """Whether it is a matrix product of each pixel (1 x 1, without groups)."""
        return (
            self.kernel[:2] == (1, 1)
            and self.strides == (1, 1)
            and self.padding == ((0, 0), (0, 0))
            and self.kernel[2] == self.x[3]
        )


def describe_convolution(
    op_type: str,
    attributes: Mapping[str, Any],
    inputs: Sequence[OperandSpec],
    outputs: Sequence[OperandSpec],
) -> ConvolutionSpec | None:
    """Describe the convolution of a valid op; None if it is none, or is empty."""
    shapes = [tuple(spec.shape) for spec in (*inputs, *outputs)]
    match op_type:
        case "conv2d":
            x, kernel, y = shapes
        case "conv2d_bias":
            x, kernel, _, y = shapes
        case "conv2d_gradient_kernel":
            x, y, kernel = shapes
        case "conv2d_gradient_input":
            kernel, y, x = shapes
        case _:
            return None
    if not all(spec.size for spec in (*inputs, *outputs)):
        return None
    strides, dilation, *padding = (
        (int(first), int(second))
        for first, second in (
            attributes["strides"],
            attributes["dilation"],
            *attributes["padding"],
        )
    )
    window = (strides, dilation, (padding[0], padding[1]))
    return ConvolutionSpec(op_type, x, kernel, y, *window)
