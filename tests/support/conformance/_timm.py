"""Image models of timm, most of them with fewer or narrower blocks."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import timm
import torch
from timm.layers import GatedMlp
from timm.models import mlp_mixer

from conformance._case import Case

__all__ = ["TIMM"]

_ONE = (1, 1, 1, 1)
_NARROW = (24, 32, 48, 64)
_MIXED = {"img_size": 64, "patch_size": 16, "num_blocks": 2, "embed_dim": 64}

# By name: the side of the images, and what the configuration changes.
_MODELS: dict[str, tuple[int, dict[str, Any]]] = {
    "resnet18": (64, {"layers": _ONE}),
    "resnet50": (64, {"layers": _ONE, "channels": _NARROW}),
    "resnet50d": (64, {"layers": _ONE, "channels": _NARROW}),
    "seresnet50": (64, {"layers": _ONE, "channels": _NARROW}),
    "ecaresnet50t": (64, {"layers": _ONE, "channels": _NARROW}),
    "skresnet18": (64, {"layers": _ONE}),
    "res2net50_26w_4s": (64, {"layers": _ONE}),
    "resnetv2_50": (64, {"layers": _ONE, "channels": (64, 96, 128, 160)}),
    "densenet121": (64, {"block_config": (2, 2, 2)}),
    "dla46_c": (64, {"levels": (1, 1, 1, 1, 1, 1)}),
    "regnetx_002": (64, {}),
    "repvgg_a0": (64, {}),
    "mobilenetv2_035": (64, {}),
    "mobilenetv3_small_050": (64, {}),
    "efficientnet_b0": (64, {}),
    "mnasnet_small": (64, {}),
    "lcnet_035": (64, {}),
    "tinynet_e": (64, {}),
    "test_byobnet": (64, {}),
    "test_efficientnet": (64, {}),
    "test_nfnet": (64, {}),
    "test_mambaout": (64, {}),
    "test_coatnet": (64, {"img_size": 64}),
    "ese_vovnet19b_slim": (64, {}),
    "convnext_atto": (64, {"depths": _ONE, "dims": _NARROW}),
    "convnextv2_atto": (64, {"depths": _ONE, "dims": _NARROW}),
    "inception_next_atto": (64, {"depths": _ONE}),
    "edgenext_xx_small": (64, {"depths": _ONE}),
    "vit_tiny_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "vit_relpos_small_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "deit_tiny_distilled_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "beit_base_patch16_224": (64, {"img_size": 64, "depth": 2, "embed_dim": 96}),
    "eva02_tiny_patch14_224": (56, {"img_size": 56, "depth": 2}),
    "cait_xxs24_224": (64, {"img_size": 64, "depth": 1}),
    "convit_tiny": (64, {"img_size": 64, "depth": 3}),
    "xcit_nano_12_p16_224": (64, {"img_size": 64, "depth": 1}),
    "swin_tiny_patch4_window7_224": (
        56,
        {"img_size": 56, "depths": (2, 2), "embed_dim": 48, "num_heads": (3, 6)},
    ),
    "swinv2_tiny_window8_256": (
        64,
        {"img_size": 64, "depths": (1, 1), "embed_dim": 48, "num_heads": (3, 6)},
    ),
    "pit_ti_224": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "pvt_v2_b0": (64, {"depths": _ONE}),
    "levit_128s": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "efficientvit_b0": (64, {}),
    "tnt_s_patch16_224": (64, {"img_size": 64, "depth": 2}),
    "twins_svt_small": (64, {"img_size": 64, "depths": _ONE}),
    "visformer_tiny": (64, {"img_size": 64, "depth": (1, 1, 1)}),
    "sequencer2d_s": (56, {"img_size": 56, "layers": _ONE}),
    "starnet_s1": (64, {"depths": _ONE}),
}
# By name: the module and class, the side of the images, and the configuration.
_CLASSES: dict[str, tuple[str, str, int, dict[str, Any]]] = {
    "convmixer": ("convmixer", "ConvMixer", 64, {"dim": 96, "depth": 3}),
    "focalnet": ("focalnet", "FocalNet", 64, {"depths": _ONE, "embed_dim": 24}),
    "poolformer": ("metaformer", "MetaFormer", 64, {"depths": _ONE, "dims": _NARROW}),
    "mixer": ("mlp_mixer", "MlpMixer", 64, _MIXED),
    "gmlp": (
        "mlp_mixer",
        "MlpMixer",
        64,
        _MIXED
        | {"block_layer": mlp_mixer.SpatialGatingBlock, "mlp_layer": GatedMlp}
        | {"mlp_ratio": 2},
    ),
    "resmlp": (
        "mlp_mixer",
        "MlpMixer",
        64,
        _MIXED | {"block_layer": mlp_mixer.ResBlock, "mlp_ratio": 4},
    ),
    "gcvit": (
        "gcvit",
        "GlobalContextVit",
        64,
        {"img_size": 64, "depths": _ONE, "window_size": (4, 4, 4, 2), "embed_dim": 24},
    ),
    "nest": (
        "nest",
        "Nest",
        64,
        {"img_size": 64, "depths": (1, 1, 1), "embed_dims": (24, 48, 96)}
        | {"num_heads": (1, 2, 4)},
    ),
}


def _made(name: str, options: dict[str, Any]) -> torch.nn.Module:
    return timm.create_model(name, pretrained=False, **{"num_classes": 10} | options)


def _of_class(module: str, name: str, options: dict[str, Any]) -> torch.nn.Module:
    return getattr(import_module(f"timm.models.{module}"), name)(
        num_classes=10, **options
    )


def _images(side: int):
    return (torch.randn(4, 3, side, side),), {}


TIMM = {
    f"timm/{name}": Case("timm", partial(_made, name, options), partial(_images, side))
    for name, (side, options) in _MODELS.items()
} | {
    f"timm/{name}": Case(
        "timm", partial(_of_class, module, kind, options), partial(_images, side)
    )
    for name, (module, kind, side, options) in _CLASSES.items()
}
