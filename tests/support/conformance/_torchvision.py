"""Networks of torchvision that are not among those of timm."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torchvision_ops import torchvision

from conformance._case import Case

__all__ = ["TORCHVISION"]

_models = torchvision().models
_VIT = {
    "image_size": 64,
    "patch_size": 16,
    "num_layers": 3,
    "num_heads": 4,
    "hidden_dim": 64,
    "mlp_dim": 128,
}
# By name: the shape of a sample, and what the configuration changes.
_MODELS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "resnet18": ((3, 64, 64), {}),
    "squeezenet1_1": ((3, 64, 64), {}),
    "mobilenet_v2": ((3, 64, 64), {"width_mult": 0.35}),
    "mobilenet_v3_small": ((3, 64, 64), {"width_mult": 0.5}),
    "shufflenet_v2_x0_5": ((3, 64, 64), {}),
    "mnasnet0_5": ((3, 64, 64), {}),
    "googlenet": ((3, 64, 64), {"aux_logits": False, "init_weights": False}),
}


def _made(name: str, options: dict[str, Any]) -> torch.nn.Module:
    return getattr(_models, name)(num_classes=10, **options)


def _inputs(shape: tuple[int, ...], batch: int = 4):
    return (torch.randn(batch, *shape),), {}


def _segmented(name: str, **options: Any) -> torch.nn.Module:
    return getattr(_models.segmentation, name)(
        weights=None, weights_backbone=None, num_classes=4, **options
    )


def _video() -> torch.nn.Module:
    from torchvision.models.video.resnet import (
        BasicBlock,
        BasicStem,
        Conv3DSimple,
        VideoResNet,
    )

    return VideoResNet(BasicBlock, [Conv3DSimple] * 4, [1] * 4, BasicStem, 10)


TORCHVISION = {
    f"torchvision/{name}": Case(
        "torchvision", partial(_made, name, options), partial(_inputs, shape)
    )
    for name, (shape, options) in _MODELS.items()
} | {
    "torchvision/vit": Case(
        "torchvision",
        lambda: _models.VisionTransformer(num_classes=10, **_VIT),
        partial(_inputs, (3, 64, 64)),
    ),
    "torchvision/lraspp_mobilenet_v3_large": Case(
        "torchvision",
        partial(_segmented, "lraspp_mobilenet_v3_large"),
        partial(_inputs, (3, 64, 64)),
    ),
    "torchvision/video_resnet": Case(
        "torchvision", _video, partial(_inputs, (3, 4, 32, 32), 2)
    ),
}
