"""Denoisers and autoencoders of diffusers."""

from __future__ import annotations

from functools import partial

import diffusers
import torch

from conformance._case import Case

__all__ = ["DIFFUSERS"]

_UNET = {
    "sample_size": 16,
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
}


def _unet():
    return diffusers.UNet2DModel(
        in_channels=3,
        out_channels=3,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        attention_head_dim=8,
        **_UNET,
    )


def _conditional():
    return diffusers.UNet2DConditionModel(
        in_channels=4,
        out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=32,
        attention_head_dim=8,
        **_UNET,
    )


def _autoencoder():
    return diffusers.AutoencoderKL(
        in_channels=3,
        out_channels=3,
        latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        **_UNET,
    )


def _quantised():
    return diffusers.VQModel(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(16, 32),
        num_vq_embeddings=32,
        norm_num_groups=8,
    )


def _transformer():
    return diffusers.DiTTransformer2DModel(
        num_attention_heads=2,
        attention_head_dim=16,
        in_channels=4,
        num_layers=1,
        sample_size=16,
        norm_num_groups=8,
        num_embeds_ada_norm=10,
    )


def _stable():
    return diffusers.SD3Transformer2DModel(
        sample_size=16,
        in_channels=4,
        num_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        caption_projection_dim=32,
        pooled_projection_dim=16,
        out_channels=4,
    )


def _noisy(batch, *shape, **more):
    return (torch.randn(batch, *shape), torch.randint(1000, (batch,))), more


def _conditioned():
    return _noisy(2, 4, 16, 16, encoder_hidden_states=torch.randn(2, 5, 32))


def _labelled():
    return _noisy(2, 4, 16, 16, class_labels=torch.randint(10, (2,)))


def _prompted():
    return (
        (torch.randn(2, 4, 16, 16), torch.randn(2, 5, 32), torch.randn(2, 16)),
        {"timestep": torch.randint(1000, (2,))},
    )


def _images():
    return (torch.randn(2, 3, 16, 16),), {}


_MODELS = {
    "unet_2d": (_unet, partial(_noisy, 2, 3, 16, 16)),
    "unet_2d_condition": (_conditional, _conditioned),
    "autoencoder_kl": (_autoencoder, _images),
    "vq_model": (_quantised, _images),
    "dit": (_transformer, _labelled),
    "sd3": (_stable, _prompted),
}
DIFFUSERS = {
    f"diffusers/{name}": Case("diffusers", *parts) for name, parts in _MODELS.items()
}
