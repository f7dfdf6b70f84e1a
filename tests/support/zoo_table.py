"""The zoo's parameter counts with their sources, and networks small enough for tests.

A source is where the number was published: torchvision's are ``num_params`` of the
weights' ``meta`` in its documentation, which count what is trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import memcfg as mc

models = mc.models
TORCHVISION = "torchvision 0.28, 2026"


class Published(NamedTuple):
    """What is known of a network: trained parameters, and a sample's output."""

    name: str
    options: dict[str, Any]
    parameters: int
    output_shape: Any
    source: str


def _classifier(name, parameters, source=TORCHVISION, classes=1000, **options):
    return Published(name, options, parameters, (None, classes), source)


PUBLISHED = [
    _classifier("lenet_300_100", 266_610, "266K: Han et al., NeurIPS 2015", 10),
    _classifier("lenet5", 61_706, "60K and all of C3's maps: LeCun et al., 1998", 10),
    _classifier("alexnet", 61_100_840),
    _classifier("vgg16", 138_357_544),
    _classifier("vgg19", 143_667_240),
    _classifier("nin", 7_595_176, "7.6M: Caffe's model zoo, 2014"),
    _classifier("googlenet", 6_624_904),
    Published(
        "googlenet",
        {"aux_logits": True},
        13_004_888,
        [(None, 1000)] * 3,
        "torchvision 0.28's googlenet(), 2026",
    ),
    _classifier("inception_v3", 23_834_568, "23.83M: Keras Applications, 2.x"),
    Published(
        "inception_v3",
        {"aux_logits": True},
        27_161_264,
        [(None, 1000)] * 2,
        TORCHVISION,
    ),
    _classifier("resnet18", 11_689_512),
    _classifier("resnet34", 21_797_672),
    _classifier("resnet50", 25_557_032),
    _classifier("resnet101", 44_549_160),
    _classifier("resnet152", 60_192_808),
    _classifier("mobilenet_v2", 3_504_872),
    _classifier("densenet121", 7_978_856),
]

# Every network, for inputs that a step takes milliseconds for.
IMAGE = (32, 32, 3)
SMALL = {
    "lenet_300_100": lambda: models.lenet_300_100((8, 8, 1)),
    "lenet5": lambda: models.lenet5((20, 20, 1)),
    "alexnet": lambda: models.alexnet((63, 63, 3), 5),
    "vgg16": lambda: models.vgg16(IMAGE, 5),
    "vgg19": lambda: models.vgg19(IMAGE, 5),
    "nin": lambda: models.nin((51, 51, 3), 5),
    "googlenet": lambda: models.googlenet(IMAGE, 5, aux_logits=True),
    "inception_v3": lambda: models.inception_v3((75, 75, 3), 5),
    "resnet18": lambda: models.resnet18(IMAGE, 5),
    "resnet34": lambda: models.resnet34(IMAGE, 5),
    "resnet50": lambda: models.resnet50(IMAGE, 5),
    "resnet101": lambda: models.resnet101(IMAGE, 5),
    "resnet152": lambda: models.resnet152(IMAGE, 5),
    "mobilenet_v2": lambda: models.mobilenet_v2(IMAGE, 5),
    "densenet121": lambda: models.densenet121(IMAGE, 5),
}
