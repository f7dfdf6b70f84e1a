"""Ten steps of each optimizer against NumPy, whatever its settings."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optimizer_rules import CLASSES, RULES, OnDevice, Oracle, drawn, values

import memcfg as mc

SHAPES = {"kernel": (5, 7), "filter": (2, 3, 4), "bias": (7,), "scale": ()}


@pytest.mark.parametrize("kind", RULES)
@given(data=st.data())
@settings(max_examples=12)
def test_ten_steps_agree_with_numpy(kind, data):
    chosen = data.draw(drawn(kind))
    rates = data.draw(st.lists(st.floats(1e-3, 0.1), min_size=10, max_size=10))
    weights = values(SHAPES, 0)
    model = OnDevice(CLASSES[kind](**chosen), weights)
    given = {"weight_decay": 0.004, **chosen} if kind == "adamw" else chosen
    oracle = Oracle(kind, given, weights)
    for number, rate in enumerate(rates):
        gradients = values(SHAPES, 1 + number)
        found, wanted = model.step(gradients, rate), oracle.step(gradients, rate)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name], value, rtol=2e-4, atol=2e-5)
    model.close()


EVERYTHING = {"gradient_accumulation_steps": 2, "use_ema": True}

# Floats that an optimizer keeps beside a matrix of 5 x 7 and a vector of 7.
KEPT = {
    "sgd": ({}, 0),
    "sgd with momentum": ({"momentum": 0.9}, 42),
    "adam": ({}, 84),
    "adam with amsgrad": ({"amsgrad": True}, 126),
    "adamw": ({}, 84),
    "adamax": ({}, 84),
    "nadam": ({}, 85),
    "rmsprop": ({}, 42),
    "rmsprop with everything": ({"centered": True, "momentum": 0.5}, 126),
    "adagrad": ({}, 42),
    "adadelta": ({}, 84),
    "lion": ({}, 42),
    "lamb": ({}, 84),
    "ftrl": ({}, 84),
    "schedulefreeadamw": ({}, 84),
    "muon": ({}, 35 + 14),
    "adafactor": ({}, 5 + 7 + 7),
}


@pytest.mark.parametrize(
    "more", [{}, {"gradient_accumulation_steps": 2, "use_ema": True}]
)
@pytest.mark.parametrize("case", KEPT)
def test_what_is_kept_is_in_plans_and_reports(case, more, loss):
    chosen, floats = KEPT[case]
    floats += 84 if more else 0
    model = mc.nn.Sequential([mc.nn.Input((5,)), mc.nn.Dense(7)])
    model.compile(CLASSES[case.split()[0]](**chosen, **more), loss)
    graph = model.graph(4)
    state = [t for t in graph.tensors if t.role == "optimizer_state"]
    kept = sum(
        t.nbytes
        for t in state
        if t.name in {graph.tensors[i].name for i in graph.persistent}
    )
    assert kept == 4 * floats
    assert sum(each.nbytes for each in model.optimizer.variables) == kept + 8
    planned = model.plan(4).peak_bytes
    x = np.ones((4, 5), np.float32)
    for _ in range(3):
        model.train_on_batch(x, np.arange(4))
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes == planned
