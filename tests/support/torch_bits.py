"""The bits of PyTorch's tensors, and memory that is all back."""

from __future__ import annotations

import gc
import random

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

import memcfg.torch as mt


def bits(tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
    """Dtype, shape and bytes, in rows."""
    there = tensor.detach()
    if there.layout != torch.strided:
        there = there.to_dense()
    if there.is_quantized:
        there = there.int_repr()
    rows = there.clone(memory_format=torch.contiguous_format)
    rows = rows.resolve_conj().resolve_neg().reshape(-1)
    data = rows.view(torch.uint8).numpy().tobytes() if rows.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), data


def tensors_in(tree) -> list[torch.Tensor]:
    return [each for each in tree_leaves(tree) if isinstance(each, torch.Tensor)]


def seed(number: int = 7) -> None:
    torch.default_generator.manual_seed(number)  # not a GPU's, which notes the stack
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002 - what PyTorch's samples use


def bytes_left() -> int:
    """What is in the pool when all garbage is gone."""
    if mt.get_memory_info()["current"]:
        gc.collect()
    return mt.get_memory_info()["current"]


def inside(function, limit="2GiB"):
    """Call a function with the tensors that it makes in the pool."""
    mt.limit_cpu(limit)
    try:
        return function()
    finally:
        mt.limit_cpu(None)
