"""PyTorch under a limit: ``import memcfg.torch as mt``.

Needs PyTorch 2.8 or later, which `pip install memcfg[torch]` brings; the build for CPUs
is enough. Nothing else of memcfg imports PyTorch, and importing memcfg does not import
this. The page `docs/torch.md` is where PyTorch's users start.
"""

from __future__ import annotations

import memcfg.torch._required  # noqa: F401 - says what is missing, before others fail
from memcfg.torch._saved_report import SavedCodingEntry, SavedTensorsReport
from memcfg.torch._saved_tensors import SavedTensors, saved_tensors

__all__ = [
    "SavedCodingEntry",
    "SavedTensors",
    "SavedTensorsReport",
    "saved_tensors",
]
