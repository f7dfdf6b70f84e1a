"""The zoo's networks in PyTorch: torchvision's where it has them, else as written here.

`NETWORKS` has, by name, both libraries' builders, the shapes of a sample, and the batch
of a training step on a machine with few cores.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from peers import torch_residual_network
from torch import nn as tn
from torch.nn import functional as tf

from memcfg import models
from memcfg.commands._digits import residual_network

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NETWORKS", "Network"]


class Network(NamedTuple):
    """One network, in both libraries."""

    build: Callable[[], Any]
    torch_build: Callable[[], tn.Module]
    shapes: tuple[tuple[int, ...], ...]  # of a sample's inputs, channels last
    batch: int
    classes: int
    target: tuple[int, ...] = ()  # of a sample's labels
    words: int = 0  # inputs are whole numbers below it
    extra: int = 0  # parameters that PyTorch has and memcfg has not


def _torchvision() -> Any:
    """Import torchvision's networks; its compiled ops may be those of another build."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float limit) -> Tensor")
    from torchvision import models as found

    found.library = library  # which lives as long as its ops do
    return found


tv = _torchvision()


def _lenet_300_100() -> tn.Module:
    return tn.Sequential(
        *(tn.Flatten(), tn.Linear(784, 300), tn.ReLU(), tn.Linear(300, 100)),
        *(tn.ReLU(), tn.Linear(100, 10)),
    )


def _lenet5() -> tn.Module:
    return tn.Sequential(
        *(tn.Conv2d(1, 6, 5), tn.ReLU(), tn.MaxPool2d(2)),
        *(tn.Conv2d(6, 16, 5), tn.ReLU(), tn.MaxPool2d(2), tn.Flatten()),
        *(tn.Linear(400, 120), tn.ReLU(), tn.Linear(120, 84), tn.ReLU()),
        tn.Linear(84, 10),
    )


def _nin() -> tn.Module:
    layers: list[tn.Module] = []
    channels = 3
    blocks = ((96, 11, 4, 0), (256, 5, 1, 2), (384, 3, 1, 1), (1024, 3, 1, 1))
    for filters, window, stride, padding in blocks:
        last = filters == 1024
        layers += [tn.Dropout(0.5)] if last else []
        layers += [tn.Conv2d(channels, filters, window, stride, padding), tn.ReLU()]
        for width in (filters, 1000 if last else filters):
            layers += [tn.Conv2d(filters, width, 1), tn.ReLU()]
        layers += [] if last else [tn.MaxPool2d(3, 2, ceil_mode=True)]
        channels = filters
    return tn.Sequential(*layers, tn.AdaptiveAvgPool2d(1), tn.Flatten())


def _mobilenet() -> tn.Module:
    def unit(inputs: int, filters: int, stride: int, groups: int) -> list[tn.Module]:
        window, padding = (3, 1) if groups > 1 or inputs == 3 else (1, 0)
        convolution = tn.Conv2d(
            inputs, filters, window, stride, padding, groups=groups, bias=False
        )
        return [convolution, tn.BatchNorm2d(filters), tn.ReLU6()]

    layers, channels = unit(3, 32, 2, 1), 32
    blocks = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2))
    for filters, stride in (*blocks, *((512, 1),) * 5, (1024, 2), (1024, 1)):
        layers += unit(channels, channels, stride, channels)
        layers += unit(channels, filters, 1, 1)
        channels = filters
    pool = (tn.AdaptiveAvgPool2d(1), tn.Dropout(1e-3))
    return tn.Sequential(*layers, *pool, tn.Conv2d(1024, 1000, 1), tn.Flatten())


def _twice(inputs: int, width: int) -> tn.Sequential:
    first, second = (tn.Conv2d(n, width, 3, padding=1) for n in (inputs, width))
    return tn.Sequential(first, tn.ReLU(), second, tn.ReLU())


class _Unet(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 64, 128, 256, 512)
        pairs = list(pairwise(widths))
        self.down = tn.ModuleList(_twice(a, b) for a, b in pairs)
        self.bottom = _twice(512, 1024)
        self.up = tn.ModuleList(
            tn.ConvTranspose2d(2 * b, b, 2, 2) for _, b in reversed(pairs)
        )
        self.merge = tn.ModuleList(_twice(2 * b, b) for _, b in reversed(pairs))
        self.dropout, self.head = tn.Dropout(0.5), tn.Conv2d(64, 2, 1)

    def forward(self, x):
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = tf.max_pool2d(x, 2)
        x = self.dropout(self.bottom(x))
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], 1))
        return self.head(x)


_BLOCKS = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))


class _Segnet(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up, channels = tn.ModuleList(), tn.ModuleList(), 3
        for filters, count in _BLOCKS:
            widths = [channels, *[filters] * count]
            self.down.append(self._block(widths))
            channels = filters
        for block in reversed(range(5)):
            filters, count = _BLOCKS[block]
            narrow = _BLOCKS[max(block - 1, 0)][0]
            widths = [filters] * count + [narrow if block else 11]
            self.up.append(self._block(widths, last=block == 0))

    @staticmethod
    def _block(widths: list[int], last: bool = False) -> tn.Sequential:
        layers: list[tn.Module] = []
        for i, (a, b) in enumerate(pairwise(widths)):
            layers.append(tn.Conv2d(a, b, 3, padding=1))
            if not (last and i == len(widths) - 2):
                layers += [tn.BatchNorm2d(b), tn.ReLU()]
        return tn.Sequential(*layers)

    def forward(self, x):
        places = []
        for block in self.down:
            x = block(x)
            size = x.shape
            x, where = tf.max_pool2d(x, 2, ceil_mode=True, return_indices=True)
            places.append((where, size))
        for block in self.up:
            where, size = places.pop()
            x = block(tf.max_unpool2d(x, where, 2, output_size=size))
        return x


class _Fcn8(tn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks, channels = tn.ModuleList(), 3
        for filters, count in _BLOCKS:
            layers: list[tn.Module] = []
            for _ in range(count):
                padding = 100 if channels == 3 else 1
                layers += [tn.Conv2d(channels, filters, 3, padding=padding), tn.ReLU()]
                channels = filters
            layers.append(tn.MaxPool2d(2, 2, ceil_mode=True))
            self.blocks.append(tn.Sequential(*layers))
        self.top = tn.Sequential(
            *(tn.Conv2d(512, 4096, 7), tn.ReLU(), tn.Dropout(0.5)),
            *(tn.Conv2d(4096, 4096, 1), tn.ReLU(), tn.Dropout(0.5)),
            tn.Conv2d(4096, 21, 1),
        )
        self.scores = tn.ModuleList([tn.Conv2d(512, 21, 1), tn.Conv2d(256, 21, 1)])
        self.ups = tn.ModuleList(
            tn.ConvTranspose2d(21, 21, 2 * f, f, bias=False) for f in (2, 2, 8)
        )

    def forward(self, x):
        height, width = x.shape[2:]
        pools = []
        for block in self.blocks:
            x = block(x)
            pools.append(x)
        x = self.top(x)
        for up, score, pool, at in zip(
            self.ups, self.scores, (pools[3], pools[2]), (5, 9), strict=False
        ):
            x = up(x)
            h, w = x.shape[2:]
            x = x + score(pool)[:, :, at : at + h, at : at + w]
        return self.ups[2](x)[:, :, 31 : 31 + height, 31 : 31 + width]


class _LstmLm(tn.Module):
    def __init__(self, words: int, units: int) -> None:
        super().__init__()
        self.words = tn.Embedding(words, units)
        self.lstms = tn.ModuleList(
            tn.LSTM(units, units, batch_first=True) for _ in range(2)
        )
        self.head, self.dropout = tn.Linear(units, words), tn.Dropout(0.5)

    def forward(self, x):
        x = self.dropout(self.words(x))
        for lstm in self.lstms:
            x = self.dropout(lstm(x)[0])
        return self.head(x)


class _Seq2seq(tn.Module):
    def __init__(self, layers: int, words: int, units: int) -> None:
        super().__init__()
        self.source, self.target = (tn.Embedding(words, units) for _ in range(2))
        self.encoders, self.decoders = (
            tn.ModuleList(
                tn.LSTM(units, units, batch_first=True) for _ in range(layers)
            )
            for _ in range(2)
        )
        self.scores = tn.Linear(units, units, bias=False)
        self.attended = tn.Linear(2 * units, units, bias=False)
        self.head, self.dropout = tn.Linear(units, words), tn.Dropout(0.2)

    def forward(self, source, target):
        x, y = self.source(source), self.target(target)
        for encoder, decoder in zip(self.encoders, self.decoders, strict=True):
            x, states = encoder(self.dropout(x))
            y, _ = decoder(self.dropout(y), states)
        weights = torch.softmax(self.scores(y) @ x.transpose(1, 2), -1)
        y = torch.tanh(self.attended(torch.cat([weights @ x, y], -1)))
        return self.head(self.dropout(y))


class _Block(tn.Module):
    """A transformer's; normalised before (GPT) or after (BERT)."""

    def __init__(self, hidden: int, heads: int, before: bool) -> None:
        super().__init__()
        self.before, self.heads = before, heads
        self.queries = tn.Linear(hidden, 3 * hidden)
        self.out = tn.Linear(hidden, hidden)
        epsilon = 1e-5 if before else 1e-12
        self.norm1, self.norm2 = (tn.LayerNorm(hidden, epsilon) for _ in range(2))
        self.wide, self.narrow = (
            tn.Linear(hidden, 4 * hidden),
            tn.Linear(4 * hidden, hidden),
        )

    def attend(self, x):
        batch, length, hidden = x.shape
        parts = self.queries(x).view(batch, length, 3, self.heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = tf.scaled_dot_product_attention(q, k, v, is_causal=self.before)
        return self.out(y.transpose(1, 2).reshape(batch, length, hidden))

    def feed(self, x):
        form = "tanh" if self.before else "none"
        return self.narrow(tf.gelu(self.wide(x), approximate=form))

    def forward(self, x):
        if self.before:
            x = x + self.attend(self.norm1(x))
            return x + self.feed(self.norm2(x))
        x = self.norm1(x + self.attend(x))
        return self.norm2(x + self.feed(x))


class _Gpt(tn.Module):
    def __init__(self, layers, hidden, heads, words, length) -> None:
        super().__init__()
        self.words = tn.Embedding(words, hidden)
        self.places = tn.Parameter(torch.randn(length, hidden) * 0.02)
        self.blocks = tn.Sequential(
            *(_Block(hidden, heads, before=True) for _ in range(layers))
        )
        self.norm = tn.LayerNorm(hidden)

    def forward(self, x):
        x = self.norm(self.blocks(self.words(x) + self.places))
        return tf.linear(x, self.words.weight)


class _Bert(tn.Module):
    def __init__(self, layers, hidden, heads, words, length, classes) -> None:
        super().__init__()
        self.words, self.kinds = tn.Embedding(words, hidden), tn.Embedding(2, hidden)
        self.places = tn.Parameter(torch.randn(length, hidden) * 0.02)
        self.norm = tn.LayerNorm(hidden, 1e-12)
        self.blocks = tn.Sequential(
            *(_Block(hidden, heads, before=False) for _ in range(layers))
        )
        self.pooler, self.head = tn.Linear(hidden, hidden), tn.Linear(hidden, classes)

    def forward(self, tokens, kinds):
        x = self.norm(self.words(tokens) + self.places + self.kinds(kinds))
        return self.head(torch.tanh(self.pooler(self.blocks(x)[:, 0])))


class _Bottleneck(tn.Module):
    """Normalised before each convolution; of CIFAR-10's very deep networks."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.norm = tn.BatchNorm2d(inputs)
        self.branch = tn.Sequential(
            tn.Conv2d(inputs, width, 1, stride, bias=False),
            *(tn.BatchNorm2d(width), tn.ReLU()),
            tn.Conv2d(width, width, 3, padding=1, bias=False),
            *(tn.BatchNorm2d(width), tn.ReLU()),
            tn.Conv2d(width, wide, 1, bias=False),
        )
        self.project = None
        if inputs != wide:
            self.project = tn.Conv2d(inputs, wide, 1, stride, bias=False)

    def forward(self, x):
        y = torch.relu(self.norm(x))
        return (x if self.project is None else self.project(y)) + self.branch(y)


def _cifar_resnet(depth: int) -> tn.Module:
    layers: list[tn.Module] = [tn.Conv2d(3, 16, 3, padding=1, bias=False)]
    channels = 16
    for width in (16, 32, 64):
        for i in range((depth - 2) // 9):
            stride = 2 if width > 16 and i == 0 else 1
            layers.append(_Bottleneck(channels, width, stride))
            channels = 4 * width
    layers += [tn.BatchNorm2d(channels), tn.ReLU(), tn.AdaptiveAvgPool2d(1)]
    return tn.Sequential(*layers, tn.Flatten(), tn.Linear(channels, 10))


def _images(name: str, batch: int, size: int = 224, **options: Any) -> Network:
    """Pair a network of torchvision with ours of the same name."""
    return Network(
        lambda: getattr(models, name)((size, size, 3)),
        lambda: getattr(tv, name)(**options),
        ((size, size, 3),),
        batch,
        1000,
    )


_PLAIN = {"aux_logits": False, "init_weights": False}

NETWORKS = {
    "lenet_300_100": Network(
        models.lenet_300_100, _lenet_300_100, ((28, 28, 1),), 32, 10
    ),
    "lenet5": Network(models.lenet5, _lenet5, ((32, 32, 1),), 32, 10),
    "residual_digits": Network(  # the demo's
        residual_network, torch_residual_network, ((8, 8, 1),), 32, 10
    ),
    "alexnet": _images("alexnet", 16),
    "vgg16": _images("vgg16", 8),
    "vgg19": _images("vgg19", 8),
    "nin": Network(models.nin, _nin, ((224, 224, 3),), 16, 1000),
    "googlenet": _images("googlenet", 16, **_PLAIN),
    "inception_v3": _images("inception_v3", 8, 299, **_PLAIN),
    "resnet18": _images("resnet18", 16),
    "resnet34": _images("resnet34", 16),
    "resnet50": _images("resnet50", 16),
    "resnet101": _images("resnet101", 8),
    "resnet152": _images("resnet152", 8),
    "resnet1001": Network(
        lambda: models.resnet(1001), lambda: _cifar_resnet(1001), ((32, 32, 3),), 16, 10
    ),
    "mobilenet": Network(models.mobilenet, _mobilenet, ((224, 224, 3),), 16, 1000),
    "mobilenet_v2": _images("mobilenet_v2", 16),
    "densenet121": _images("densenet121", 8),
    "unet": Network(
        lambda: models.unet((256, 256, 3), 2, "same"),
        _Unet,
        ((256, 256, 3),),
        2,
        2,
        (256, 256),
    ),
    "fcn8": Network(
        lambda: models.fcn8((256, 256, 3)), _Fcn8, ((256, 256, 3),), 1, 21, (256, 256)
    ),
    "segnet": Network(
        lambda: models.segnet((180, 240, 3)),
        _Segnet,
        ((180, 240, 3),),
        2,
        11,
        (180, 240),
    ),
    "lstm_lm": Network(
        lambda: models.lstm_lm(2, 650, vocabulary_size=10_000),
        lambda: _LstmLm(10_000, 650),
        ((35,),),
        20,
        10_000,
        (35,),
        10_000,
        extra=2 * 4 * 650,  # a second bias of each LSTM
    ),
    "seq2seq_attention": Network(
        lambda: models.seq2seq_attention(
            2, 512, vocabulary_size=8000, sequence_length=30
        ),
        lambda: _Seq2seq(2, 8000, 512),
        ((30,), (30,)),
        16,
        8000,
        (30,),
        8000,
        extra=4 * 4 * 512,
    ),
    "bert_encoder": Network(
        lambda: models.bert_encoder(
            4, 256, 4, vocabulary_size=8000, sequence_length=128, dropout=0.0, classes=2
        ),
        lambda: _Bert(4, 256, 4, 8000, 128, 2),
        ((128,), (128,)),
        16,
        2,
        (),
        2,
    ),
    "gpt": Network(
        lambda: models.gpt(
            4, 256, 4, vocabulary_size=8000, sequence_length=256, dropout=0.0
        ),
        lambda: _Gpt(4, 256, 4, 8000, 256),
        ((256,),),
        8,
        8000,
        (256,),
        8000,
    ),
}
