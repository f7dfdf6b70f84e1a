"""Keras's networks for images of ImageNet, with its arguments, names and weights.

`memcfg.models` has more networks, with the weights of torchvision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg.nn._keras_names import absent
from memcfg.nn.applications import (
    convnext,
    densenet,
    efficientnet,
    efficientnet_v2,
    imagenet_utils,
    inception_resnet_v2,
    inception_v3,
    mobilenet,
    mobilenet_v2,
    mobilenet_v3,
    nasnet,
    resnet,
    resnet50,
    resnet_v2,
    vgg16,
    vgg19,
    xception,
)
from memcfg.nn.applications.convnext import (
    ConvNeXtBase,
    ConvNeXtLarge,
    ConvNeXtSmall,
    ConvNeXtTiny,
    ConvNeXtXLarge,
)
from memcfg.nn.applications.densenet import DenseNet121, DenseNet169, DenseNet201
from memcfg.nn.applications.efficientnet import (
    EfficientNetB0,
    EfficientNetB1,
    EfficientNetB2,
    EfficientNetB3,
    EfficientNetB4,
    EfficientNetB5,
    EfficientNetB6,
    EfficientNetB7,
)
from memcfg.nn.applications.efficientnet_v2 import (
    EfficientNetV2B0,
    EfficientNetV2B1,
    EfficientNetV2B2,
    EfficientNetV2B3,
    EfficientNetV2L,
    EfficientNetV2M,
    EfficientNetV2S,
)
from memcfg.nn.applications.inception_resnet_v2 import InceptionResNetV2
from memcfg.nn.applications.inception_v3 import InceptionV3
from memcfg.nn.applications.mobilenet import MobileNet
from memcfg.nn.applications.mobilenet_v2 import MobileNetV2
from memcfg.nn.applications.mobilenet_v3 import MobileNetV3Large, MobileNetV3Small
from memcfg.nn.applications.nasnet import NASNetLarge, NASNetMobile
from memcfg.nn.applications.resnet import ResNet50, ResNet101, ResNet152
from memcfg.nn.applications.resnet_v2 import ResNet50V2, ResNet101V2, ResNet152V2
from memcfg.nn.applications.vgg16 import VGG16
from memcfg.nn.applications.vgg19 import VGG19
from memcfg.nn.applications.xception import Xception

__all__ = [
    "VGG16",
    "VGG19",
    "ConvNeXtBase",
    "ConvNeXtLarge",
    "ConvNeXtSmall",
    "ConvNeXtTiny",
    "ConvNeXtXLarge",
    "DenseNet121",
    "DenseNet169",
    "DenseNet201",
    "EfficientNetB0",
    "EfficientNetB1",
    "EfficientNetB2",
    "EfficientNetB3",
    "EfficientNetB4",
    "EfficientNetB5",
    "EfficientNetB6",
    "EfficientNetB7",
    "EfficientNetV2B0",
    "EfficientNetV2B1",
    "EfficientNetV2B2",
    "EfficientNetV2B3",
    "EfficientNetV2L",
    "EfficientNetV2M",
    "EfficientNetV2S",
    "InceptionResNetV2",
    "InceptionV3",
    "MobileNet",
    "MobileNetV2",
    "MobileNetV3Large",
    "MobileNetV3Small",
    "NASNetLarge",
    "NASNetMobile",
    "ResNet50",
    "ResNet50V2",
    "ResNet101",
    "ResNet101V2",
    "ResNet152",
    "ResNet152V2",
    "Xception",
    "convnext",
    "densenet",
    "efficientnet",
    "efficientnet_v2",
    "imagenet_utils",
    "inception_resnet_v2",
    "inception_v3",
    "mobilenet",
    "mobilenet_v2",
    "mobilenet_v3",
    "nasnet",
    "resnet",
    "resnet50",
    "resnet_v2",
    "vgg16",
    "vgg19",
    "xception",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)
