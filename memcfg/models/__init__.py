"""Networks of the literature, with the published shapes.

Each function returns a `memcfg.nn.Model` that is not compiled. Classifiers return
logits, for losses with ``from_logits=True``. If torchvision has the network, layers
with weights have the names of its modules.
"""

from memcfg.models._alexnet import alexnet
from memcfg.models._cifar_resnet import resnet
from memcfg.models._densenet import densenet121
from memcfg.models._fcn import fcn8
from memcfg.models._googlenet import googlenet
from memcfg.models._inception_v3 import inception_v3
from memcfg.models._lenet import lenet5, lenet_300_100
from memcfg.models._lstm_lm import lstm_lm
from memcfg.models._mobilenet import mobilenet
from memcfg.models._mobilenet_v2 import mobilenet_v2
from memcfg.models._nin import nin
from memcfg.models._resnet import resnet18, resnet34, resnet50, resnet101, resnet152
from memcfg.models._segnet import segnet
from memcfg.models._seq2seq import seq2seq_attention
from memcfg.models._torchvision import load_torchvision_weights
from memcfg.models._transformers import bert_encoder, gpt
from memcfg.models._unet import unet
from memcfg.models._vgg import vgg16, vgg19

__all__ = [
    "alexnet",
    "bert_encoder",
    "densenet121",
    "fcn8",
    "googlenet",
    "gpt",
    "inception_v3",
    "lenet5",
    "lenet_300_100",
    "load_torchvision_weights",
    "lstm_lm",
    "mobilenet",
    "mobilenet_v2",
    "nin",
    "resnet",
    "resnet18",
    "resnet34",
    "resnet50",
    "resnet101",
    "resnet152",
    "segnet",
    "seq2seq_attention",
    "unet",
    "vgg16",
    "vgg19",
]
