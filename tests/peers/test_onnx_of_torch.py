"""Networks that PyTorch exports: the same numbers, layers with its names, training."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from beside_torchvision import theirs, torch

import memcfg as mc

onnx = pytest.importorskip("onnx", reason="run: tox run -e parity")
pytest.importorskip("onnxscript", reason="run: tox run -e parity")

from onnx_runs import assert_same, predicted  # noqa: E402

nn, tnn = mc.nn, torch.nn
pytestmark = [pytest.mark.parity, pytest.mark.filterwarnings("ignore")]


def exported(module, x, path, *, traced):
    """Write a module as ONNX, with a batch of any size and all of its normalisations.

    By default both exporters join batch normalisations to convolutions.
    """
    module.eval()
    size = torch.export.Dim("N")
    options = (
        {
            "dynamo": True,
            "dynamic_shapes": ({0: size},),
            "verbose": False,
            "optimize": False,
        }
        if traced
        else {
            "dynamo": False,
            "dynamic_axes": {"x": {0: "N"}},
            "training": torch.onnx.TrainingMode.PRESERVE,
            "do_constant_folding": False,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, (x,), path, input_names=["x"], **options)


def check(module, x, path, *, traced, tolerance=1e-5):
    """Compare a network of a file with PyTorch's, for another batch; return it."""
    exported(module, x, path, traced=traced)
    model = nn.models.from_onnx(path)
    more = torch.cat([x, x.flip(0), x])
    with torch.no_grad():
        made = module(more)
    several = made if isinstance(made, tuple) else (made,)
    expected = [each.numpy() for each in several]
    assert_same(predicted(model, [more.numpy()]), expected, tolerance)
    return model


class Vision(tnn.Module):
    """A vision transformer's embedding, attention and pooled token."""

    def __init__(self):
        super().__init__()
        self.patch = tnn.Conv2d(3, 16, 4, 4)
        self.token = tnn.Parameter(torch.randn(1, 1, 16))
        self.places = tnn.Parameter(torch.randn(1, 5, 16))
        self.qkv, self.out = tnn.Linear(16, 48), tnn.Linear(16, 16)
        self.norm = tnn.LayerNorm(16)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        count, steps, _width = x.shape
        q, k, v = self.qkv(x).reshape(count, steps, 3, 4, 4).permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-2, -1) / 2).softmax(-1)
        x = self.norm(x + self.out((scores @ v).transpose(1, 2).flatten(2)))
        return x[:, 0], x.mean(1)


class Recurrent(tnn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = tnn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.gru = tnn.GRU(10, 4, batch_first=True)
        self.rnn = tnn.RNN(4, 3, batch_first=True)

    def forward(self, x):
        y, last = self.gru(self.lstm(x)[0])
        return self.rnn(y)[0], last[0]


def blocks():
    torch.manual_seed(0)
    encoder = tnn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    images = tnn.Sequential(
        tnn.Conv2d(3, 8, 3, 1, 1),
        tnn.ReLU6(),
        tnn.Conv2d(8, 8, 3, 1, 1, groups=8),
        tnn.Hardswish(),
        tnn.PReLU(8),
        tnn.Upsample(scale_factor=2),
        tnn.ConvTranspose2d(8, 4, 3, 2, 1, output_padding=1),
        tnn.GroupNorm(2, 4),
        tnn.GELU(),
        tnn.AvgPool2d(3, 2, 1, ceil_mode=True),
        tnn.PixelShuffle(2),
    )
    steps = tnn.Sequential(
        tnn.Conv1d(3, 8, 3, padding=1),
        tnn.BatchNorm1d(8),
        tnn.SiLU(),
        tnn.MaxPool1d(2),
        tnn.Flatten(),
        tnn.Linear(32, 4),
        tnn.Softmax(-1),
    )
    return {
        "encoder": (encoder, (2, 5, 16)),
        "images": (images, (2, 3, 8, 8)),
        "steps": (steps, (2, 3, 8)),
        "vision": (Vision(), (2, 3, 8, 8)),
        "recurrent": (Recurrent(), (2, 7, 6)),
    }


BLOCKS = blocks()


@pytest.mark.parametrize(
    ("name", "traced"),
    [
        *((name, False) for name in BLOCKS if name != "encoder"),  # it fails there
        ("encoder", True),
        *(
            pytest.param(name, True, marks=pytest.mark.slow)
            for name in BLOCKS
            if name != "encoder"
        ),
    ],
)
def test_blocks_give_pytorchs_numbers(name, traced, tmp_path):
    module, shape = BLOCKS[name]
    model = check(module, torch.randn(shape), tmp_path / "m.onnx", traced=traced)
    if name in ("encoder", "vision"):  # tokens and places among them
        trained = sum(each.numel() for each in module.parameters())
        assert sum(np.prod(each.shape) for each in model.trainable_weights) == trained


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 64),
        ("mobilenet_v2", 64),
        pytest.param("vgg11", 224, marks=pytest.mark.slow),
        pytest.param("densenet121", 64, marks=pytest.mark.slow),
        pytest.param("efficientnet_b0", 64, marks=pytest.mark.slow),
        pytest.param("shufflenet_v2_x0_5", 64, marks=pytest.mark.slow),
        pytest.param("vit_b_16", 224, marks=pytest.mark.slow),
    ],
)
def test_networks_give_pytorchs_numbers(name, size, tmp_path):
    torch.manual_seed(0)
    module = getattr(theirs, name)(num_classes=10)
    for each in module.parameters():  # equal arrays would be stored once
        each.data += 0.01 * torch.randn(each.shape)
    x = torch.randn(2, 3, size, size)
    module.train()
    with torch.no_grad():
        module(x)  # moves the averages of normalisations
    model = check(module, x, tmp_path / "m.onnx", traced=False, tolerance=3e-5)
    trained = sum(each.numel() for each in module.parameters())
    assert sum(np.prod(each.shape) for each in model.trainable_weights) == trained
    layers = [each for each in model.layers if "transpose" in each.name]
    if name in ("resnet18", "mobilenet_v2", "vgg11"):
        assert len(layers) <= 2  # to channels last; and back where VGG flattens


def test_layers_have_the_names_of_pytorchs(tmp_path):
    module = theirs.resnet18(num_classes=10)
    for each in module.parameters():  # equal arrays would be stored once
        tnn.init.normal_(each)
    exported(module, torch.randn(2, 3, 64, 64), tmp_path / "m.onnx", traced=False)
    model = nn.models.from_onnx(tmp_path / "m.onnx")
    fc = model.get_layer("fc")
    assert isinstance(fc, nn.Dense)
    np.testing.assert_array_equal(fc.get_weights()[0], module.fc.weight.detach().T)
    norm = model.get_layer("layer1.0.bn1")
    assert (norm.epsilon, norm.momentum) == pytest.approx((1e-5, 0.9))


def test_steps_of_training_are_pytorchs(tmp_path):
    """Five steps of SGD from the same weights, batch normalisation included."""
    torch.manual_seed(0)
    module = tnn.Sequential(
        tnn.Conv2d(3, 6, 3, 1, 1, bias=False),
        tnn.BatchNorm2d(6),
        tnn.ReLU(),
        tnn.MaxPool2d(2),
        tnn.Flatten(),
        tnn.Linear(6 * 16, 4),
    )
    x, y = torch.randn(16, 3, 8, 8), torch.arange(16) % 4
    exported(module, x[:2], tmp_path / "m.onnx", traced=True)
    model = nn.models.from_onnx(tmp_path / "m.onnx")
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.05), loss)
    ours = [model.train_on_batch(x.numpy(), y.numpy()) for _ in range(5)]
    module.train()
    optimizer, theirs_ = torch.optim.SGD(module.parameters(), 0.05), []
    for _ in range(5):
        value = tnn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        theirs_.append(value.item())
    np.testing.assert_allclose(np.ravel(ours), theirs_, rtol=1e-4)
