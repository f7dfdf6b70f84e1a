"""Libraries whose compiled ops may be those of another build of PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["torchvision"]


def torchvision() -> ModuleType:
    """Import torchvision; without its ops for detection, if they do not load."""
    try:
        import torchvision
    except RuntimeError:  # it registers shapes of ops that are not loaded
        import torch

        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor dets, Tensor scores, float threshold) -> Tensor")
        import torchvision

        torchvision.library = library  # which lives as long as its ops do
    return torchvision
