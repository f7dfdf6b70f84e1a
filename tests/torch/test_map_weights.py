"""Frozen weights that lie in a safetensors file, and are read by each step."""

from __future__ import annotations

import copy
import json

import pytest
import torch
from torch import nn
from torch_allocations import allocated_peak

import memcfg.torch as mt

pytestmark = [
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),
]
WIDTH, LAYERS = 192, 4
NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}


class Adapted(nn.Module):
    """Frozen layers, each with a small trained scale and a shift."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        made = [nn.Linear(WIDTH, WIDTH, False, dtype=dtype) for _ in range(LAYERS)]
        self.layers = nn.ModuleList(made).requires_grad_(False)
        self.scales = nn.ParameterList(torch.ones(WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        for layer, scale in zip(self.layers, self.scales, strict=True):
            x = x + torch.tanh(
                nn.functional.linear(x, layer.weight.to(x.dtype)) * scale
            )
        return x


def saved(model, path):
    """Write a file as the format's page has it: a length, a header, the bytes."""
    header, data = {"__metadata__": {"of": "a test"}}, b""
    for name, each in model.named_parameters():
        if name.startswith("layers"):
            own = each.detach().view(torch.uint8).numpy().tobytes()
            entry = {"dtype": NAMES[each.dtype], "shape": list(each.shape)}
            header[name] = {**entry, "data_offsets": [len(data), len(data) + len(own)]}
            data += own
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def step(model, x):
    for each in model.parameters():
        each.grad = None
    loss = model(x).square().mean()
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_steps_read_weights_and_have_the_bits_of_eager(dtype, tmp_path):
    eager, x = Adapted(dtype), torch.randn(8, WIDTH)
    path = saved(eager, tmp_path / "weights.safetensors")
    model = copy.deepcopy(eager)
    missing = mt.map_weights(model, path)
    assert missing == [f"scales.{at}" for at in range(LAYERS)]
    assert not any(each.weight.requires_grad for each in model.layers)
    loss, gradients = step(eager, x)
    mt.budget(model, "1GiB", times="nominal")
    for _ in range(2):
        found, made = step(model, x)
        assert torch.equal(found, loss)
        assert all(map(torch.equal, gradients, made))
    with torch.no_grad():
        assert torch.equal(model(x), eager(x))
    one = eager.layers[0].weight.nbytes
    report = mt.get_budget(model).memory_report()
    assert "weights of their own file" in report
    # forward reads each, and so does backward, but the first needs no gradient there
    assert LAYERS * one <= mt.get_budget(model)._offload.copies.traffic.read_bytes


def test_weights_are_in_memory_only_while_they_are_read(tmp_path):
    eager, x = Adapted(), torch.randn(8, WIDTH)
    one = eager.layers[0].weight.nbytes
    path = saved(eager, tmp_path / "weights.safetensors")
    model = copy.deepcopy(eager)
    mt.map_weights(model, path)
    limit = 3 * one
    mt.budget(model, limit, example=(x,), times="nominal")
    step(model, x)
    used = allocated_peak(lambda: step(model, x))
    assert used <= mt.get_budget(model).predicted_peak_bytes <= limit
    assert limit < LAYERS * one


def test_a_model_made_on_the_meta_device_gets_its_weights(tmp_path):
    source = nn.Linear(WIDTH, WIDTH)
    header = {
        "w": {
            "dtype": "F32",
            "shape": [WIDTH, WIDTH],
            "data_offsets": [0, 4 * WIDTH**2],
        }
    }
    text = json.dumps(header).encode()
    data = source.weight.detach().numpy().tobytes()
    path = tmp_path / "one.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    with torch.device("meta"):
        model = nn.Linear(WIDTH, WIDTH, bias=False)
    assert mt.map_weights(model, [path], names={"weight": "w"}) == []
    x = torch.randn(3, WIDTH)
    assert torch.equal(model(x), nn.functional.linear(x, source.weight))


def test_a_weight_that_was_changed_in_memory_is_an_error(tmp_path):
    model, x = Adapted(), torch.randn(8, WIDTH)
    mt.map_weights(model, saved(model, tmp_path / "weights.safetensors"))
    mt.budget(model, "1GiB", times="nominal")
    step(model, x)
    with torch.no_grad():
        model.layers[1].weight.mul_(2)
    with pytest.raises(RuntimeError, match="was changed in memory"):
        model(x)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"[]",
        (4).to_bytes(8, "little") + b"\xff\xfe{}",
        (16).to_bytes(8, "little") + b'{"a":{"dtype":1}}'[:16],
    ],
)
def test_files_of_other_formats_are_refused(content, tmp_path):
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="is not a safetensors file"):
        mt.map_weights(nn.Linear(2, 2), path)


def test_tensors_that_do_not_fit_are_refused(tmp_path):
    model = Adapted()
    path = saved(model, tmp_path / "weights.safetensors")
    before = model.layers[0].weight
    model.layers[1] = nn.Linear(3, 3, bias=False)
    with pytest.raises(ValueError, match=r"layers\.1\.weight has the shape \(3, 3\)"):
        mt.map_weights(model, path)
    assert model.layers[0].weight is before
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        mt.map_weights(3, path)
    text = json.dumps(
        {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}
    ).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"1234")
    with pytest.raises(ValueError, match="do not fit its shape"):
        mt.map_weights(model, path)


def test_frozen_weights_without_a_file_are_moved_to_one(tmp_path):
    eager, x = Adapted(), torch.randn(8, WIDTH)
    model = copy.deepcopy(eager)
    loss, gradients = step(eager, x)
    mt.budget(
        model, "1GiB", spill_to=tmp_path, offload="frozen_weights", times="nominal"
    )
    found, made = step(model, x)
    assert torch.equal(found, loss)
    assert all(map(torch.equal, gradients, made))
    assert "In files: weights" in mt.get_budget(model).memory_report()
    mt.budget(model, None)
    assert all(map(torch.equal, model.parameters(), eager.parameters()))
