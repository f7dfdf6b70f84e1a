"""PyTorch under a limit: ``import memcfg.torch as mt``.

Needs PyTorch 2.8 or later, which `pip install memcfg[torch]` brings; the build for CPUs
is enough. Nothing else of memcfg imports PyTorch, and importing memcfg does not import
this. The page `docs/torch.md` is where PyTorch's users start.
"""

from __future__ import annotations

import memcfg.torch._required  # noqa: F401 - says what is missing, before others fail
from memcfg.torch._backend import backend
from memcfg.torch._budget import budget
from memcfg.torch._estimate import estimate, export

__all__ = ["backend", "budget", "estimate", "export"]
