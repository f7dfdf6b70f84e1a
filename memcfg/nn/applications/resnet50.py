"""The residual network of 50 layers, under the name of an older module of Keras."""

from __future__ import annotations

from memcfg.nn.applications.resnet import (
    ResNet50,
    decode_predictions,
    preprocess_input,
)

__all__ = ["ResNet50", "decode_predictions", "preprocess_input"]
