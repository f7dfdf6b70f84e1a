"""Networks of the zoo have the published shapes, train, and take what is planned."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
import zlib

import numpy as np
import pytest
from zoo_table import DEEP, PUBLISHED, SMALL, batch, make_small

import memcfg as mc

nn, models = mc.nn, mc.models
slow = pytest.mark.slow
PLAIN = ["alexnet", "vgg16", "vgg19"]  # deep, without normalisation
FUNCTIONS = [name for name in models.__all__ if not name.startswith("load_")]


def trained(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def test_only_networks_are_listed():
    # Names with an "@" are pytest's, which rewrites assertions where it has plugins.
    public = [name for name in dir(models) if name[0] not in "_@"]
    assert public == sorted(models.__all__)


def test_every_network_is_in_both_tables():
    assert {each.name for each in PUBLISHED} == SMALL.keys() == set(FUNCTIONS)


@pytest.mark.parametrize(
    "published",
    [
        pytest.param(
            each,
            marks=[slow] if each.options.get("depth", 0) > 200 else [],
            id="-".join([each.name, *map(str, each.options.values())]),
        )
        for each in PUBLISHED
    ],
)
def test_parameters_and_outputs_are_those_published(published):
    model = getattr(models, published.name)(**published.options)
    assert trained(model) == published.parameters
    assert model.output_shape == published.output_shape
    depth = published.options.get("depth")
    assert model.name == (published.name if depth is None else f"cifar_resnet{depth}")


def run(model, policy, data, steps=2):
    """Train a few steps; check what was planned, and return losses and weights."""
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1e-3), loss, memory=policy)
    losses = [model.train_on_batch(*data) for _ in range(steps)]
    weights = [zlib.crc32(each.numpy()) for each in model.weights]
    assert np.isfinite(losses).all()
    predicted = model.memory_plan.peak_bytes
    assert model.memory_report(verify=True).measured_peak_bytes == predicted
    return losses, weights, predicted


@pytest.mark.strength(1)
@pytest.mark.parametrize(
    "policy", ["keep_all", "replay_elementwise", "sqrt_checkpoint"]
)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=[slow] if each in DEEP else [])
        for each in sorted(SMALL)
    ],
)
def test_a_step_trains_takes_what_is_planned_and_has_the_bits_of_any_plan(
    name, policy, monkeypatch
):
    nn.set_random_seed(7)
    model = make_small(name, monkeypatch)
    data = batch(model)
    start = model.get_weights()
    losses, weights, peak = run(model, "share", data)
    assert np.all(np.diff(losses, axis=0) != 0)
    if name in PLAIN:  # logits are small where nothing was learned
        assert losses[0] == pytest.approx(math.log(model.output_shape[-1]), rel=0.01)
    model.set_weights(start)
    found = run(model, policy, data)
    assert found[:2] == (losses, weights)
    assert (found[2] > peak) == (policy == "keep_all")
    model.close()


def by_steps(layers=1):
    return models.seq2seq_attention(
        layers, 6, vocabulary_size=30, sequence_length=5, attention="additive"
    )


def softmax(x):
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def lstm(x, state, weights):
    """A step of Keras's LSTM."""
    hidden, cell = state
    kernel, recurrent, bias = weights
    i, f, c, o = np.split(x @ kernel + hidden @ recurrent + bias, 4, -1)
    i, f, o = (1 / (1 + np.exp(-gate)) for gate in (i, f, o))
    cell = f * cell + i * np.tanh(c)
    return o * np.tanh(cell), cell


def decoded(model, source, target):
    """Bahdanau's decoder over an encoder of one layer, in float64."""
    w = {weight.path: weight.numpy().astype(np.float64) for weight in model.weights}
    cells = {
        name: [w[f"{name}/{part}"] for part in ("kernel", "recurrent_kernel", "bias")]
        for name in ("encoder1", "decoder1")
    }
    state = 2 * (np.zeros((len(source), 6)),)
    x = []
    for word in source.T:
        state = lstm(w["source_words/embeddings"][word], state, cells["encoder1"])
        x.append(state[0])
    x = np.stack(x, 1)
    keys = x @ w["keys/kernel"]
    out = []
    for word in target.T:
        sums = keys + (state[0] @ w["queries/kernel"])[:, None]
        weight = softmax(np.tanh(sums) @ w["scores/scale"])
        context = np.einsum("bk,bkf->bf", weight, x)
        word = np.concatenate([w["target_words/embeddings"][word], context], -1)
        state = lstm(word, state, cells["decoder1"])
        out.append(np.concatenate([context, state[0]], -1))
    y = np.tanh(np.stack(out, 1) @ w["attended/kernel"])
    return y @ w["logits/kernel"] + w["logits/bias"]


def test_a_decoder_step_by_step_is_that_of_numpy():
    nn.set_random_seed(3)
    model = by_steps()
    chance = np.random.default_rng(0)
    source, target = (chance.integers(0, 30, (4, 5)).astype(np.int32) for _ in range(2))
    found = model.predict([source, target], verbose=0)
    np.testing.assert_allclose(
        found, decoded(model, source, target), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("layers", [1, 2])
def test_a_decoder_step_by_step_has_the_bits_of_any_plan(layers):
    nn.set_random_seed(7)
    model = by_steps(layers)
    data = batch(model)
    start = model.get_weights()
    losses, weights, _ = run(model, "share", data)
    for policy in ("bptt_hidden", "bptt_internal", "bptt_mixed", "meng_attention"):
        model.set_weights(start)
        assert run(model, policy, data)[:2] == (losses, weights)
    model.close()


@pytest.mark.parametrize(
    ("make", "samples", "mebibytes"),
    [
        (models.densenet121, 8, 731),
        (models.inception_v3, 8, 761),
        (models.resnet50, 16, 1449),
        (models.vgg16, 8, 1377),
        (lambda: models.unet((256, 256, 3), 2, "same"), 2, 597),
    ],
)
def test_backward_keeps_nothing_twice(make, samples, mebibytes):
    """Neither a mask's array nor what lies in a concatenation."""
    model = make()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1e-4, momentum=0.9), loss)
    plan = mc.plan.share()(model.graph(samples))
    assert plan.peak_bytes <= mebibytes * 2**20


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_few_and_checked(name):
    function = getattr(models, name)
    assert "name" in inspect.signature(function).parameters
    given = {"depth": 20} if name == "resnet" else {}
    with pytest.raises(TypeError, match="include_top"):
        function(**given, include_top=True)
    with pytest.raises(TypeError, match="a name must be a string"):
        function(**given, name=3)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "lenet5", "nin", "densenet121"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "must be positive"),
        ({"input_shape": (8, 3)}, "expects images"),
        ({"input_shape": (None, None, 3)}, "must have known lengths"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(models, name)(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: models.resnet(21), "6 n . 2"),
        (lambda: models.resnet(2), "version 1 has no depth 2"),
        (lambda: models.resnet(20, version=3), "version must be 1 or 2"),
        (lambda: models.resnet(32, version=2), "version 2 has no depth 32"),
        (lambda: models.resnet(18), r"version 2 has no depth 18: resnet18\(\) has it"),
        (lambda: models.unet((100, 100, 1)), r"are 16 n \+ 12, 188 or more"),
        (lambda: models.unet((172, 572, 1)), r"188 or more, not \(172, 572\)"),
        (lambda: models.unet((40, 64, 1), padding="same"), "are a multiple of 16"),
        (lambda: models.unet((64, 64, 1), padding="full"), "padding must be 'valid'"),
        (lambda: models.gpt(2, 30, 4), r"hidden \(30\) is not a multiple of heads"),
        (lambda: models.gpt(0, 30, 3), "layers must be positive"),
        (lambda: models.lstm_lm(dropout=1.0), "rate"),
        (
            lambda: models.seq2seq_attention(attention="addictive"),
            "unknown attention 'addictive': did you mean 'additive'",
        ),
        (lambda: models.mobilenet(alpha=0.01), "must be positive"),
        (lambda: models.inception_v3((64, 64, 3)), "cannot take an input of shape"),
    ],
)
def test_what_a_network_cannot_be_is_said(make, message):
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "num_classes",
            "takes no argument 'num_classes': did you mean 'classes'",
        ),
        ("weights", "load_torchvision_weights"),
        ("pretrained", "load_torchvision_weights"),
        ("classes_", "did you mean 'classes'"),
        ("zzz", "it has input_shape, classes, name"),
    ],
)
def test_arguments_of_other_libraries_are_told_apart(option, message):
    with pytest.raises(TypeError, match=message):
        models.vgg16(**{option: 10})


def test_too_many_arguments_name_the_function():
    with pytest.raises(TypeError, match=r"^vgg16: too many positional arguments$"):
        models.vgg16(*range(9))


IMAGES = [
    name
    for name in FUNCTIONS
    if "input_shape" in inspect.signature(getattr(models, name)).parameters
]


@pytest.mark.parametrize("name", sorted({*IMAGES} - {"resnet", "unet"}))
def test_a_network_says_the_smallest_image_that_it_reads(name):
    function = getattr(models, name)
    try:
        function((1, 1, 3))
    except ValueError as error:
        least = int(re.search(r" needs images of at least (\d+) x \1", str(error))[1])
        with pytest.raises(ValueError, match=f"at least {least} x {least}"):
            function((least - 1, least, 3))
    else:
        least = 1
    assert function((least, least, 3)).built


@pytest.mark.parametrize("shape", [(3, 224, 224), (3, 480, 640), (1, 28, 28)])
def test_channels_in_the_first_place_are_warned_of(shape):
    last = (*shape[1:], shape[0])
    with pytest.warns(UserWarning, match=re.escape(f"write {last}")) as found:
        models.mobilenet_v2(shape)
    assert found[0].filename == __file__
    models.mobilenet_v2(last)


def test_networks_are_not_imported_before_they_are_named():
    text = "import memcfg, sys; print([m for m in sys.modules if 'memcfg.models' in m])"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
