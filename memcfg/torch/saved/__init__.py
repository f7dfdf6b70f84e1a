"""Limits on the tensors that autograd saves, for models that cannot be traced."""

from __future__ import annotations

__all__: list[str] = []
