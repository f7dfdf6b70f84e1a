"""What computes functions that take arrays as well as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from memcfg.nn import ops
from memcfg.nn.layers import SymbolicTensor
from memcfg.nn.layers._layer import Variable

__all__ = ["computing"]


def computing(*values: Any) -> Any:
    """Return the ops, for tensors and under a tape, or NumPy for arrays and numbers."""
    tensors = any(isinstance(each, SymbolicTensor) for each in values)
    return ops if tensors or Variable.functions.is_taped() else np
