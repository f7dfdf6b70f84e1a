"""The same model of smaller images, which `compile(on_oom="resize")` trains instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.errors import GraphError
from memcfg.nn._nested import Nested
from memcfg.nn.exchange._architecture import again
from memcfg.nn.exchange._configs import remade
from memcfg.nn.layers import Resizing
from memcfg.nn.layers._layer import Input, InputLayer, SymbolicTensor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["EIGHTHS", "ImagesError", "largest", "of_smaller_images", "size_of"]

EIGHTHS = range(2, 8)  # of each side that images may keep, in steps of one
_SIDES = 3  # axes of an image: height, width, channels


class ImagesError(ValueError):
    """A model cannot take smaller images."""


def of_smaller_images(model: Any, make: Callable[..., Any], eighths: int) -> Any:
    """Return the same model with new weights, which makes its images smaller first.

    It takes the same inputs. Raises `ImagesError` if there are no images, they get too
    small for the layers, or weights depend on their size.
    """
    network = model._built_network()
    if not any(map(_is_image, network.inputs)):
        raise ImagesError("no input has a height, a width and channels")
    given = [_start(tensor) for tensor in network.inputs]
    try:
        starts = [
            _resizing(tensor, eighths)(start) if _is_image(tensor) else start
            for tensor, start in zip(network.inputs, given, strict=True)
        ]
        _, outputs, losses, _ = again(network, _copy, starts, _call)
        other = make(network.takes.pack(given), outputs, name=model.name)
    except (ValueError, GraphError) as error:
        raise ImagesError(str(error)) from None
    for loss in losses:
        other.add_loss(loss)
    for mine, new in zip(model.weights, other.weights, strict=True):
        if tuple(mine.shape) != tuple(new.shape):
            raise ImagesError(f"the weight {mine.name!r} is for images of one size")
    return other


def size_of(model: Any, eighths: int) -> str:
    """Return the size of the images that the model gets, such as ``"112 x 112"``."""
    images = filter(_is_image, model._built_network().inputs)
    return ", ".join("{} x {}".format(*_sides(each, eighths)) for each in images)


def largest(sizes: Sequence[int], fits: Callable[[int], bool]) -> int | None:
    """Return the largest of rising sizes that fits; None if there is none.

    Larger images are taken to need no less.
    """
    low, high = -1, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        if fits(sizes[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else sizes[low]


def _is_image(tensor: SymbolicTensor) -> bool:
    return len(tensor.sample_shape) == _SIDES


def _start(tensor: SymbolicTensor) -> SymbolicTensor:
    layer = tensor.node.layer
    assert isinstance(layer, InputLayer)
    return Input(tensor.sample_shape, dtype=tensor.sample_dtype, name=layer.name)


def _sides(tensor: SymbolicTensor, eighths: int) -> tuple[int, int]:
    height, width, _ = tensor.sample_shape
    return max(height * eighths // 8, 1), max(width * eighths // 8, 1)


def _resizing(tensor: SymbolicTensor, eighths: int) -> Resizing:
    return Resizing(*_sides(tensor, eighths), antialias=True)


def _copy(layer: Any) -> Any:
    inner = getattr(layer, "model", None) if isinstance(layer, Nested) else None
    return remade(layer if inner is None else inner)


def _call(layer: Any, *args: Any, **options: Any) -> Any:
    return layer(*args, **options)
