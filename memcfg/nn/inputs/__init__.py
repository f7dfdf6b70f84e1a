"""Model inputs: arrays, datasets and iterables as batches."""

from __future__ import annotations

__all__: list[str] = []
