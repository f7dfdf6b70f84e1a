"""CUDA: the sources of its kernels. Nothing of CUDA is imported or loaded here."""

from __future__ import annotations

__all__: list[str] = []
