"""Tensors that others stand for while code of PyTorch runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch


class Replaced(TorchFunctionMode):  # type: ignore[misc]
    """Has others take the place of tensors that a function of PyTorch is given.

    Parameters
    ----------
    pairs : iterable of tuple of torch.Tensor
        Tensors, and what takes their place.
    """

    def __init__(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> None:
        super().__init__()
        self._pairs = {id(each): (each, other) for each, other in pairs}

    def __torch_function__(
        self, func: Any, _types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        given, by_name = tree_map(self._of, (tuple(args), dict(kwargs or {})))
        return func(*given, **by_name)

    def _of(self, each: Any) -> Any:
        return self._pairs[id(each)][1] if id(each) in self._pairs else each
