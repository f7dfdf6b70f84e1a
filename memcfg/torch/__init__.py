"""PyTorch under a limit: ``import memcfg.torch as mt``.

Needs PyTorch 2.8 or later, which `pip install torch` brings; the build for CPUs
is enough. Nothing else of memcfg imports PyTorch, and importing memcfg does not import
this. The page `docs/torch.md` is where PyTorch's users start.

`limit_cpu` takes all CPU tensors of the process from a pool under a hard limit;
`limit_process` measures what lies beside them, so that budgets are planned around it.
`budget` and `backend` plan a model's step within a limit. `saved_tensors` keeps what
autograd saves within one, where a model cannot be traced.
"""

from __future__ import annotations

import memcfg.torch._required  # noqa: F401 - says what is missing, before others fail
from memcfg.torch.budget._backend import backend
from memcfg.torch.budget._budgeted import (
    ModelBudget,
    auto_checkpoint,
    budget,
    get_budget,
)
from memcfg.torch.estimate._estimate import estimate, export
from memcfg.torch.estimate._fitting_batch import largest_batch
from memcfg.torch.limit._cpu_limit import (
    cpu_pool,
    get_memory_info,
    limit_cpu,
    reset_memory_stats,
    trim,
)
from memcfg.torch.limit._module_tags import tag
from memcfg.torch.limit._out_of_memory import OutOfMemoryError
from memcfg.torch.limit._process_limit import ProcessLimit, limit_process
from memcfg.torch.saved._saved_report import SavedCodingEntry, SavedTensorsReport
from memcfg.torch.saved._saved_tensors import SavedTensors, saved_tensors
from memcfg.torch.state._map_weights import map_weights
from memcfg.torch.trace._infeasible import InfeasibleStepError

__all__ = [
    "InfeasibleStepError",
    "ModelBudget",
    "OutOfMemoryError",
    "ProcessLimit",
    "SavedCodingEntry",
    "SavedTensors",
    "SavedTensorsReport",
    "auto_checkpoint",
    "backend",
    "budget",
    "cpu_pool",
    "estimate",
    "export",
    "get_budget",
    "get_memory_info",
    "largest_batch",
    "limit_cpu",
    "limit_process",
    "map_weights",
    "reset_memory_stats",
    "saved_tensors",
    "tag",
    "trim",
]
