"""Networks of the zoo have the published shapes, train, and take what is planned."""

from __future__ import annotations

import inspect
import math
import subprocess
import sys

import numpy as np
import pytest
from zoo_table import PUBLISHED, SMALL

import memcfg as mc

nn, models = mc.nn, mc.models
FUNCTIONS = [name for name in models.__all__ if not name.startswith("load_")]


def trained(model):
    return sum(math.prod(weight.shape) for weight in model.trainable_weights)


def batch(model, samples=2):
    """Samples and labels of a model's shapes; indices where it reads them."""
    random = np.random.default_rng(0)
    x = [
        random.integers(1, 5, (samples, *start.sample_shape)).astype(np.int32)
        if start.dtype == "int32"
        else random.normal(size=(samples, *start.sample_shape)).astype(np.float32)
        for start in model.inputs
    ]
    y = [
        random.integers(0, end.sample_shape[-1], (samples, *end.sample_shape[:-1]))
        for end in model.outputs
    ]
    return x if len(x) > 1 else x[0], y if len(y) > 1 else y[0]


def compiled(name, policy=None, seed=7):
    nn.set_random_seed(seed)
    model = SMALL[name]()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(1e-3), loss, memory=policy)
    return model


def test_every_network_is_in_both_tables():
    assert {each.name for each in PUBLISHED} == SMALL.keys() == set(FUNCTIONS)


@pytest.mark.parametrize(
    "published", PUBLISHED, ids=lambda each: "-".join([each.name, *each.options])
)
def test_parameters_and_outputs_are_those_published(published):
    model = getattr(models, published.name)(**published.options)
    assert trained(model) == published.parameters
    assert model.output_shape == published.output_shape
    assert model.name == published.name


@pytest.mark.parametrize("name", SMALL)
def test_a_step_trains_and_takes_what_is_planned(name):
    model = compiled(name)
    x, y = batch(model)
    losses = [model.train_on_batch(x, y) for _ in range(2)]
    assert np.isfinite(losses).all()
    assert np.all(np.diff(losses, axis=0) != 0)
    predicted = model.memory_plan.peak_bytes
    assert model.memory_report(verify=True).measured_peak_bytes == predicted
    model.close()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_arguments_are_few_and_checked(name):
    function = getattr(models, name)
    assert "name" in inspect.signature(function).parameters
    with pytest.raises(TypeError):
        function(include_top=True)
    with pytest.raises(TypeError):
        function(name=3)


@pytest.mark.parametrize("name", ["resnet18", "vgg16", "lenet5", "nin", "densenet121"])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"classes": 0}, "must be positive"),
        ({"input_shape": (8, 3)}, "reads images"),
        ({"input_shape": (None, None, 3)}, "every length"),
    ],
)
def test_what_cannot_be_honoured_is_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        getattr(models, name)(**options)


def test_networks_are_not_imported_before_they_are_named():
    text = "import memcfg, sys; print([m for m in sys.modules if 'memcfg.models' in m])"
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
