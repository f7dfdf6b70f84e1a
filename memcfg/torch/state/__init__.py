"""Tensors that lie in files for good: weights, gradients, the optimizer's state."""

from __future__ import annotations

__all__: list[str] = []
