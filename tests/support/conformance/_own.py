"""Models of PyTorch's layers, as people write them themselves."""

from __future__ import annotations

import itertools
from functools import partial

import torch
from torch import nn
from torch.nn import functional as tf

from conformance._case import Case

__all__ = ["OWN"]


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = nn.Sequential(
            *(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)),
            *(nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)),
            nn.BatchNorm2d(width),
        )

    def forward(self, x):
        return torch.relu(x + self.branch(x))


class _UNet(nn.Module):
    """With bilinear upsampling, where `up` is None, else transposed convolutions."""

    def __init__(self, mode: str | None) -> None:
        super().__init__()
        self.mode = mode
        self.down = nn.ModuleList(self._twice(a, b) for a, b in ((3, 16), (16, 32)))
        self.middle = self._twice(32, 64)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, 2) if mode is None else nn.Conv2d(b, a, 1)
            for a, b in ((32, 64), (16, 32))
        )
        self.join = nn.ModuleList(self._twice(2 * a, a) for a in (32, 16))
        self.head = nn.Conv2d(16, 4, 1)

    @staticmethod
    def _twice(a: int, b: int) -> nn.Sequential:
        first, second = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x):
        kept = []
        for block in self.down:
            x = block(x)
            kept.append(x)
            x = tf.max_pool2d(x, 2)
        x = self.middle(x)
        for up, join in zip(self.up, self.join, strict=True):
            if self.mode is None:
                x = up(x)
            else:
                x = up(tf.interpolate(x, scale_factor=2, mode=self.mode))
            x = join(torch.cat([kept.pop(), x], 1))
        return self.head(x)


class _Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 32)
        self.inner = kind(32, 64, batch_first=True, **options)
        width = 128 if options.get("bidirectional") else 64
        self.drop, self.head = nn.Dropout(0.2), nn.Linear(width, 200)

    def forward(self, x):
        return self.head(self.drop(self.inner(self.words(x))[0]))


class _Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(200, 64)
        self.inner = nn.Transformer(64, 4, 1, 2, 128, batch_first=True)
        self.head = nn.Linear(64, 200)

    def forward(self, source, target):
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        made = self.inner(self.words(source), self.words(target), tgt_mask=mask)
        return self.head(made)


class _Autoencoder(nn.Module):
    """Variational: it draws noise, and returns the parameters of its posterior."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(784, 256), nn.ReLU())
        self.mean, self.scale = nn.Linear(256, 16), nn.Linear(256, 16)
        self.decode = nn.Sequential(
            *(nn.Linear(16, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())
        )

    def forward(self, x):
        hidden = self.encode(x)
        mean, scale = self.mean(hidden), self.scale(hidden)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * scale)
        return self.decode(drawn), mean, scale


class _Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            *(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(32)),
        )

    def forward(self, one, other):
        return (self.tower(one) - self.tower(other)).square().sum(1)


class _GraphConvolution(nn.Module):
    """Messages along edges are summed by `index_add`."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, 64) for a in (32, 64, 64))
        self.head = nn.Linear(64, 4)

    def forward(self, x, edges):
        for layer in self.layers:
            sent = layer(x)
            x = torch.relu(
                torch.zeros_like(sent).index_add(0, edges[1], sent[edges[0]])
            )
        return self.head(x)


class _DeepCross(nn.Module):
    """Bags of categories, crossed with numbers, as recommenders have them."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(500, 16) for _ in range(4))
        self.cross = nn.ModuleList(nn.Linear(72, 72) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(72, 64), nn.PReLU(), nn.Linear(64, 1))

    def forward(self, numbers, categories):
        parts = [bag(categories[:, at]) for at, bag in enumerate(self.bags)]
        first = x = torch.cat([numbers, *parts], 1)
        for layer in self.cross:
            x = first * layer(x) + x
        return self.head(x)


class _Dilated(nn.Module):
    """Gated dilated convolutions in one dimension, as WaveNet has them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 32, 1)
        self.gates = nn.ModuleList(
            nn.Conv1d(32, 64, 2, dilation=2**at, padding=2**at) for at in range(5)
        )
        self.mixed = nn.ModuleList(nn.Conv1d(32, 32, 1) for _ in range(5))
        self.head = nn.Conv1d(32, 64, 1)

    def forward(self, x):
        x, total = self.stem(x), 0
        for at, (gate, mixed) in enumerate(zip(self.gates, self.mixed, strict=True)):
            a, b = gate(x)[..., : -(2**at)].chunk(2, 1)
            y = mixed(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + y, total + y
        return self.head(torch.relu(total))


class _Mixture(nn.Module):
    """Experts that all run, weighted by a softmax of the two best."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
            for _ in range(4)
        )

    def forward(self, x):
        scores = self.router(x)
        best, which = scores.topk(2, -1)
        weights = torch.zeros_like(scores).scatter(-1, which, best.softmax(-1))
        made = torch.stack([each(x) for each in self.experts], -1)
        return (made * weights[..., None, :]).sum(-1)


class _PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = (3, 32, 64, 128)
        self.layers = nn.Sequential(
            *(
                layer
                for a, b in itertools.pairwise(widths)
                for layer in (nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU())
            )
        )
        self.head = nn.Linear(128, 10)

    def forward(self, x):
        return self.head(self.layers(x).amax(2))


class _Euler(nn.Module):
    """A differential equation by steps that share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32))

    def forward(self, x):
        for _ in range(12):
            x = x + self.inner(x) / 12
        return x


class _Product(nn.Module):
    """Products over an axis, and a cumulative sum."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(16, 48), nn.Linear(48, 4)

    def forward(self, x):
        x = torch.sigmoid(self.inner(x))
        return self.head(x.cumsum(1)) * x.prod(1, keepdim=True)


class _VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 8, 8)
        layer = nn.TransformerEncoderLayer(
            64, 4, 128, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.places = nn.Parameter(torch.randn(16, 64) * 0.02)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.layers(x).mean(1))


def _siamese() -> nn.Module:
    made = _Siamese()
    made(torch.ones(1, 1, 28, 28), torch.ones(1, 1, 28, 28))  # shapes of lazy layers
    return made


def _images(batch=8, side=32, channels=3):
    return (torch.randn(batch, channels, side, side),), {}


def _words(batch=8, length=24, count=1):
    return tuple(torch.randint(200, (batch, length)) for _ in range(count)), {}


def _perceptron() -> nn.Module:
    widths = (64, 256, 256, 256, 10)
    pairs = itertools.pairwise(widths)
    return nn.Sequential(
        *(e for a, b in pairs for e in (nn.Linear(a, b), nn.Dropout(0.1), nn.GELU()))
    )


def _resnet() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), _Residual(16), _Residual(16)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)),
    )


def _generator() -> nn.Module:
    return nn.Sequential(
        *(nn.ConvTranspose2d(16, 64, 4), nn.BatchNorm2d(64), nn.ReLU(True)),
        *(nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(True)),
        *(nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()),
    )


def _volumes() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv3d(1, 8, 3, padding=1), nn.InstanceNorm3d(8, affine=True), nn.ELU()),
        *(nn.MaxPool3d(2), nn.Conv3d(8, 16, 3, padding=1), nn.GroupNorm(4, 16)),
        *(nn.LeakyReLU(), nn.AdaptiveMaxPool3d(2), nn.Flatten(), nn.Linear(128, 4)),
    )


def _gan_inputs():
    return (torch.randn(16, 16, 1, 1),), {}


OWN = {
    "own/perceptron": (_perceptron, lambda: ((torch.randn(256, 64),), {})),
    "own/resnet": (_resnet, _images),
    "own/unet": (partial(_UNet, None), partial(_images, 4)),
    "own/unet_nearest": (partial(_UNet, "nearest"), partial(_images, 4)),
    "own/unet_bilinear": (partial(_UNet, "bilinear"), partial(_images, 4)),
    "own/unet_bicubic": (partial(_UNet, "bicubic"), partial(_images, 4)),
    "own/lstm": (partial(_Recurrent, nn.LSTM, num_layers=2), _words),
    "own/lstm_both_ways": (partial(_Recurrent, nn.LSTM, bidirectional=True), _words),
    "own/gru": (partial(_Recurrent, nn.GRU), partial(_words, 8, 12)),
    "own/rnn": (partial(_Recurrent, nn.RNN), partial(_words, 8, 12)),
    "own/transformer": (_Transformer, partial(_words, count=2)),
    "own/vision_transformer": (_VisionTransformer, _images),
    "own/autoencoder": (_Autoencoder, lambda: ((torch.rand(64, 784),), {})),
    "own/siamese": (
        _siamese,
        lambda: (tuple(torch.randn(8, 1, 28, 28) for _ in range(2)), {}),
    ),
    "own/graph_convolution": (
        _GraphConvolution,
        lambda: ((torch.randn(200, 32), torch.randint(200, (2, 1000))), {}),
    ),
    "own/deep_cross": (
        _DeepCross,
        lambda: ((torch.randn(64, 8), torch.randint(500, (64, 4, 3))), {}),
    ),
    "own/dilated": (_Dilated, lambda: ((torch.randn(4, 1, 512),), {})),
    "own/mixture": (_Mixture, lambda: ((torch.randn(16, 16, 32),), {})),
    "own/point_net": (_PointNet, lambda: ((torch.randn(8, 3, 256),), {})),
    "own/euler": (_Euler, lambda: ((torch.randn(256, 32),), {})),
    "own/product": (_Product, lambda: ((torch.randn(256, 16),), {})),
    "own/generator": (_generator, _gan_inputs),
    "own/volumes": (_volumes, lambda: ((torch.randn(4, 1, 12, 12, 12),), {})),
}
OWN = {name: Case("own", *parts) for name, parts in OWN.items()}
