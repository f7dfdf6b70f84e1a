"""Several devices, each under its own limit: ranks, and the models that they share."""

from __future__ import annotations

from memcfg.ops import Communicator
from memcfg.parallel._in_process import in_process_group

__all__ = ["Communicator", "in_process_group"]
