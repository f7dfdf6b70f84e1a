"""State of models by nested names, and what Keras's loops read of models."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
X = np.random.default_rng(1).standard_normal((12, 4)).astype("f4")
Y = X[:, :1]


def trained():
    inner = nn.Sequential([nn.Input((4,)), nn.Dense(3, name="deep")], name="inner")
    model = nn.Sequential([inner, nn.BatchNormalization(name="bn"), nn.Dense(1)])
    model.compile(nn.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    model.fit(X, Y, epochs=2, verbose=0, shuffle=False)
    return model


def test_a_tree_brings_a_model_back():
    model = trained()
    tree = model.get_state_tree()
    assert tree["trainable_variables"]["inner"]["deep"]["kernel"].shape == (4, 3)
    assert set(tree["non_trainable_variables"]) == {"bn"}
    assert tree["optimizer_variables"][model.optimizer.name]["iteration"] == 2
    before = model.predict(X, verbose=0)
    after = model.fit(X, Y, verbose=0, shuffle=False).history
    assert not np.array_equal(model.predict(X, verbose=0), before)
    model.set_state_tree(tree)
    np.testing.assert_array_equal(model.predict(X, verbose=0), before)
    assert int(model.optimizer.iterations) == 2
    assert model.fit(X, Y, verbose=0, shuffle=False).history == after


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trainable_variables": {"inner": {"deep": {"k": X}}}}, "no weight"),
        ({"trainable_variables": {"inner": {"deep": {"kernel": X}}}}, "of shape"),
        ({"more": {"a": X}}, "has no more"),
        ({"optimizer_variables": {"sgd": {"iteration": 0}}}, "does not match"),
    ],
)
def test_another_tree_is_refused(change, message):
    model = trained()
    before = model.predict(X, verbose=0)
    tree = {"non_trainable_variables": {"bn": {"moving_mean": np.ones(3)}}}
    with pytest.raises(mc.errors.WeightsError, match=message):
        model.set_state_tree(tree | change)
    np.testing.assert_array_equal(model.predict(X, verbose=0), before)


def test_the_format_of_values_is_one_of_keras():
    with pytest.raises(ValueError, match="unknown value_format"):
        trained().get_state_tree("list")


def test_names_and_results_of_metrics():
    model = trained()
    assert model.metrics_names == ["loss", "mae"]
    found = model.evaluate(X, Y, verbose=0)
    assert model.get_metrics_result() == dict(zip(["loss", "mae"], found, strict=True))
    logs = model.fit(X, Y, verbose=0, validation_data=(X[:6], Y[:6])).history
    assert model.get_metrics_result()["mae"] == logs["val_mae"][0]
    assert nn.Sequential().metrics_names == []
    assert nn.Sequential().get_metrics_result() == {}


def test_a_model_without_a_call_holds_others():
    class Pair(nn.Model):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential([nn.Input((4,)), nn.Dense(2)])
            self.second = nn.Sequential([nn.Input((2,)), nn.Dense(4)])
            self.built = True

    pair = Pair()
    assert len(pair.trainable_weights) == 4
    pair.compile("sgd", "mse")
    for use in (pair, pair.predict):
        with pytest.raises(NotImplementedError, match=r"Pair .*override `call`"):
            use(X)
    made = nn.Sequential([nn.Dense(1)])
    made.build((None, 4))
    with pytest.raises(AttributeError):
        made.built = False
