"""Layers that several networks share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.layers import (
    BatchNormalization,
    Dense,
    Dropout,
    GlobalAveragePooling2D,
    GlobalMaxPooling2D,
    ZeroPadding2D,
)

if TYPE_CHECKING:
    from memcfg.nn.applications._application import Arguments
    from memcfg.nn.layers import SymbolicTensor

__all__ = ["divisible", "head", "normalized", "padded", "pooled"]

_STEP = 8  # channels


def divisible(channels: float, most_less: float = 0.1) -> int:
    """Return the nearest multiple of 8, at least 8 and at most a share less."""
    result = max(_STEP, int(channels + _STEP / 2) // _STEP * _STEP)
    return result + _STEP * (result < (1 - most_less) * channels)


def normalized(x: SymbolicTensor, name: str | None, **options: Any) -> SymbolicTensor:
    """Append batch normalisation."""
    result: SymbolicTensor = BatchNormalization(name=name, **options)(x)
    return result


def padded(x: SymbolicTensor, kernel_size: int, name: str) -> SymbolicTensor:
    """Pad images as PyTorch does for a stride of 2, so that "valid" follows."""
    after = kernel_size // 2
    sides = [1 if n is None else 1 - n % 2 for n in x.shape[1:3]]
    around = tuple((after - less, after) for less in sides)
    result: SymbolicTensor = ZeroPadding2D(around, name=name)(x)
    return result


def pooled(
    x: SymbolicTensor, pooling: str | None, names: tuple[str | None, str | None]
) -> SymbolicTensor:
    """Append pooling of whole images, or nothing; names are of "avg" and "max"."""
    if pooling is None:
        return x
    kind: Any = GlobalAveragePooling2D if pooling == "avg" else GlobalMaxPooling2D
    result: SymbolicTensor = kind(name=names[pooling == "max"])(x)
    return result


def head(
    x: SymbolicTensor,
    given: Arguments,
    *,
    top: str | None = "avg_pool",
    names: tuple[str | None, str | None] = (None, None),
    dropout: float = 0.0,
    kernel_initializer: Any = "glorot_uniform",
) -> SymbolicTensor:
    """Append a classifier of pooled features, or the pooling alone."""
    if not given.include_top:
        return pooled(x, given.pooling, names)
    x = GlobalAveragePooling2D(name=top)(x)
    if dropout:
        x = Dropout(dropout, name="top_dropout")(x)
    result: SymbolicTensor = Dense(
        given.classes,
        given.classifier_activation,
        kernel_initializer=kernel_initializer,
        name="predictions",
    )(x)
    return result
