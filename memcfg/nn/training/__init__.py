"""How a model is trained: compiled programs, steps, epochs."""

from __future__ import annotations

from memcfg.nn.training._history import History

__all__ = ["History"]
