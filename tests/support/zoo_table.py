"""The zoo's parameter counts with their sources, and networks small enough for tests.

A source is where the number was published: torchvision's are ``num_params`` of the
weights' ``meta`` in its documentation, which count what is trained.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

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
    Published(
        "resnet",
        {"depth": 20},
        269_722,
        (None, 10),
        "0.27M: He et al., CVPR 2016, table 6",
    ),
    Published("resnet", {"depth": 110}, 1_727_962, (None, 10), "1.7M: ibid."),
    Published("resnet", {"depth": 1202}, 19_421_274, (None, 10), "19.4M: ibid."),
    Published(
        "resnet",
        {"depth": 1001},
        10_327_706,
        (None, 10),
        "10.2M without normalisation: He et al., ECCV 2016, table 4; pytorchcv 0.0.67",
    ),
    _classifier("mobilenet", 4_231_976, "of 4,253,864: Keras 3.15 Applications, 2026"),
    _classifier("mobilenet_v2", 3_504_872),
    _classifier("densenet121", 7_978_856),
    Published(
        "unet",
        {},
        31_030_658,
        (None, 388, 388, 2),
        "23 convolutions of figure 1: Ronneberger et al., MICCAI 2015",
    ),
    Published(
        "fcn8",
        {},
        134_489_759,
        (None, 500, 500, 21),
        "134M: Long et al., CVPR 2015, table 1; layers of fcn8s.prototxt",
    ),
    Published(
        "segnet",
        {},
        29_449_355,
        (None, 360, 480, 11),
        "29.4M, 117 MB: Badrinarayanan et al., TPAMI 2017, table 6",
    ),
    Published(
        "lstm_lm",
        {},
        19_775_200,
        (None, 35, 10_000),
        "20M, medium: Gal and Ghahramani, NeurIPS 2016, table 1",
    ),
    Published(
        "lstm_lm", {"units": 1500}, 66_022_000, (None, 35, 10_000), "66M, large: ibid."
    ),
    Published(
        "seq2seq_attention",
        {},
        217_082_000,
        (None, 50, 50_000),
        "sizes of section 4.1: Luong et al., EMNLP 2015",
    ),
    Published(
        "seq2seq_attention",
        {"attention": "additive", "sequence_length": 5},
        # Beside keys, instead of scores', queries, the scores' vector, and words that
        # are read beside what was attended to.
        217_082_000 + 1000 * 1000 + 1000 + 4 * 1000 * 1000,
        (None, 5, 50_000),
        "the same sizes with Bahdanau et al., ICLR 2015, appendix A.1.2",
    ),
    Published(
        "bert_encoder",
        {},
        108_891_648,
        (None, 512, 768),
        "109,482,240 with the pooler: Hugging Face's bert-base-uncased, 2018",
    ),
    Published(
        "bert_encoder",
        {"classes": 2},
        109_482_240 + 2 * 769,
        (None, 2),
        "Hugging Face's BertForSequenceClassification, 2018",
    ),
    Published(
        "gpt",
        {},
        124_439_808,
        (None, 1024, 50_257),
        "Hugging Face's gpt2, 2019 (117M in the paper's first version)",
    ),
    Published(
        "gpt",
        {"layers": 24, "hidden": 1024, "heads": 16},
        354_823_168,
        (None, 1024, 50_257),
        "Hugging Face's gpt2-medium, 2019",
    ),
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
    "resnet": lambda: models.resnet(11, (16, 16, 3), 5),
    "mobilenet": lambda: models.mobilenet(IMAGE, 5, alpha=0.25),
    "mobilenet_v2": lambda: models.mobilenet_v2(IMAGE, 5),
    "densenet121": lambda: models.densenet121(IMAGE, 5),
    "unet": lambda: models.unet(IMAGE, padding="same"),
    "fcn8": lambda: models.fcn8((16, 17, 3), 5),
    "segnet": lambda: models.segnet((33, 40, 3), 5),
    "lstm_lm": lambda: models.lstm_lm(2, 12, vocabulary_size=30, sequence_length=7),
    "seq2seq_attention": lambda: models.seq2seq_attention(
        2, 12, vocabulary_size=30, sequence_length=7
    ),
    "bert_encoder": lambda: models.bert_encoder(
        2, 24, 3, vocabulary_size=30, sequence_length=9, mask_zero=True, classes=4
    ),
    "gpt": lambda: models.gpt(2, 24, 3, vocabulary_size=30, sequence_length=9),
}
# Of each family one, for what takes several models' time.
FAMILIES = sorted(SMALL.keys() - {"vgg19", "resnet34", "resnet101", "resnet152"})
# Of hundreds of ops; shallower ones are of the same kinds.
DEEP = ["densenet121", "inception_v3", "mobilenet_v2", "resnet34", "resnet50"]
DEEP += ["resnet101", "resnet152", "vgg19"]


def make_small(name, monkeypatch):
    """Make a network that trains in a test: few units, and filters where it is deep."""
    narrow = ((16, 2), (16, 2), (32, 3), (32, 3), (32, 3))
    for module in ("fcn", "segnet"):  # FCN pads its images by 100 pixels
        monkeypatch.setattr(f"memcfg.models._{module}._BLOCKS", narrow)
    for module in ("alexnet", "fcn", "vgg"):  # hundreds of MB otherwise
        monkeypatch.setattr(f"memcfg.models._{module}._UNITS", 64)
    return SMALL[name]()


def batch(model, samples=2):
    """Samples and labels of a model's shapes; indices where it reads them."""
    random = np.random.default_rng(0)
    x = [
        random.integers(0, 2, (samples, *start.sample_shape)).astype(np.int32)
        if start.dtype == "int32"
        else random.normal(size=(samples, *start.sample_shape)).astype(np.float32)
        for start in model.inputs
    ]
    y = [
        random.integers(0, end.sample_shape[-1], (samples, *end.sample_shape[:-1]))
        for end in model.outputs
    ]
    return x if len(x) > 1 else x[0], y if len(y) > 1 else y[0]
