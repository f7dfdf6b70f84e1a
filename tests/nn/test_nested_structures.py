"""Inputs and outputs in nested lists, tuples and dicts."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
X = np.random.default_rng(3).standard_normal((12, 4)).astype("f4")
Y = X[:, :2]


class Heads(nn.Model):
    """A model of three heads, in the containers that a function puts them in."""

    def __init__(self, nest):
        super().__init__()
        self.nest = nest
        self.heads = {name: nn.Dense(2, name=name) for name in "abc"}

    def call(self, x):
        return self.nest({name: head(x) for name, head in self.heads.items()})


def functional(nest):
    start = nn.Input((4,))
    return nn.Model(
        start, nest({name: nn.Dense(2, name=name)(start) for name in "abc"})
    )


def deep(h):
    return {"p": h["a"], "n": [h["b"], {"r": h["c"]}]}


def shapes(nested):
    return mc.nn.tree.map_structure(np.shape, nested)


@pytest.mark.parametrize("make", [functional, Heads])
def test_results_are_nested_as_the_outputs(make):
    model = make(deep)
    made = model.predict(X, verbose=0)
    assert shapes(made) == {"p": (12, 2), "n": [(12, 2), {"r": (12, 2)}]}
    kernel, bias = model.get_layer("c").get_weights()
    np.testing.assert_allclose(made["n"][1]["r"], X @ kernel + bias, 1e-4, 1e-5)
    for again in (model(X), model.predict_on_batch(X)):
        np.testing.assert_array_equal(again["n"][0], made["n"][0])


def test_copies_and_files_have_the_structure(tmp_path):
    model = functional(deep)
    model.save(tmp_path / "deep.memcfg")
    copies = [
        nn.models.load_model(tmp_path / "deep.memcfg"),
        nn.models.clone_model(model),
        nn.Model.from_config(model.get_config()),
    ]
    for each in copies:
        each.set_weights(model.get_weights())
        assert each.output_shape == model.output_shape
        made = each.predict(X, verbose=0)["n"][1]["r"]
        np.testing.assert_array_equal(made, model.predict(X, verbose=0)["n"][1]["r"])


def test_losses_weights_and_metrics_are_nested_alike():
    model = functional(deep)
    model.compile(
        "sgd",
        {"p": "mse", "n": ["mae", {"r": "mse"}]},
        loss_weights={"p": 1.0, "n": [0.5, {"r": 2.0}]},
        metrics={"p": "mae", "n": ["mse", {"r": ["mae"]}]},
    )
    y = {"p": Y, "n": [Y, {"r": Y}]}
    logs = model.evaluate(X, y, verbose=0, return_dict=True)
    losses = ["loss", "n/b_loss", "n/1/r_loss", "p_loss"]
    assert list(logs) == [*losses, "a_mae", "b_mse", "c_mae"]
    made = model.predict(X, verbose=0)
    b = np.abs(made["n"][0] - Y).mean()
    c = ((made["n"][1]["r"] - Y) ** 2).mean()
    a = ((made["p"] - Y) ** 2).mean()
    wanted = [a + b / 2 + 2 * c, b, c, a]
    np.testing.assert_allclose([logs[name] for name in losses], wanted, 1e-5)
    before = logs["loss"]
    weight = {"p": np.ones(12), "n": [np.ones(12), {"r": np.ones(12)}]}
    model.fit(X, y, epochs=3, verbose=0, sample_weight=weight)
    batches = [(X, y), (X, y)]
    model.fit(batches, verbose=0)
    in_tuples = {"p": Y, "n": (Y, {"r": Y})}  # lists are arrays to datasets
    dataset = mc.data.Dataset.from_tensor_slices((X, in_tuples)).batch(6)
    model.fit(dataset, verbose=0)
    assert model.evaluate(X, [Y, Y, Y], verbose=0)[0] < before


def test_one_loss_is_for_all_parts_and_none_is_for_none():
    model = functional(lambda h: [h["a"], (h["b"], h["c"])])
    model.compile("sgd", "mse")
    names = list(model.fit(X, [Y, (Y, Y)], verbose=0).history)
    assert names == ["loss", "a_loss", "1/b_loss", "1/c_loss"]
    model = functional(deep)
    model.compile("sgd", {"n": [None, {"r": "mse"}]})
    frozen = model.get_layer("a").get_weights()
    with pytest.warns(UserWarning, match="no loss depends on the weights 'a/bias'"):
        model.fit(X, {"n": [None, {"r": Y}]}, verbose=0)
    np.testing.assert_array_equal(model.get_layer("a").get_weights()[0], frozen[0])


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ({"q": "mse"}, "the whole has 'q'"),
        ({"n": "mse"}, r"\['n'\] is one for 2 outputs"),
        (["mse", "mse"], "the whole is a list"),
        ({"n": ["mse"]}, r"\['n'\] has 1 parts, not 2"),
    ],
)
def test_a_loss_that_is_nested_otherwise_is_refused(loss, message):
    with pytest.raises(ValueError, match=message):
        functional(deep).compile("sgd", loss)


def test_a_target_that_is_nested_otherwise_is_refused():
    model = functional(deep)
    model.compile("sgd", "mse")
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"y must be nested.*\['n'\] has 1 parts"):
        model.fit(X, {"p": Y, "n": [Y]}, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


class Sum(nn.Model):
    """A model of nested inputs."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(1)

    def call(self, inputs):
        a, more = inputs["a"], inputs["more"]
        return self.dense(nn.ops.concatenate([a, more[0] + more[1]["b"]], -1))


def test_inputs_may_be_nested():
    model = Sum()
    model.compile("sgd", "mse")
    x = {"a": X, "more": [X, {"b": X}]}
    model.fit(x, X[:, 0], epochs=2, verbose=0)
    made = model.predict(x, verbose=0)
    kernel, bias = model.get_weights()
    np.testing.assert_allclose(made, np.hstack([X, 2 * X]) @ kernel + bias, 1e-4, 1e-5)
    np.testing.assert_array_equal(model(x), made)
    assert model.input_shape == {"a": (None, 4), "more": [(None, 4), {"b": (None, 4)}]}
    in_tuples = {"a": X, "more": (X, {"b": X})}  # lists are arrays to datasets
    dataset = mc.data.Dataset.from_tensor_slices((in_tuples, X[:, 0])).batch(6)
    model.fit(dataset, verbose=0)
    again = Sum()
    again.build({"a": (None, 4), "more": [(None, 4), {"b": (None, 4)}]})
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again.predict(x, verbose=0), model.predict(x))
    starts = mc.nn.tree.map_structure(lambda each: nn.Input(each.shape[1:]), x)
    outer = nn.Model(starts, model(starts))
    np.testing.assert_array_equal(outer.predict(x, verbose=0), model.predict(x))


def test_parts_of_dicts_are_in_the_order_of_their_keys():
    """As in Keras, with which weights are exchanged as lists."""
    start = nn.Input((4,))
    model = nn.Model(start, {"z": nn.Dense(2)(start), "c": nn.Dense(3)(start)})
    assert [each.shape for each in model.weights] == [(4, 3), (3,), (4, 2), (2,)]


def test_states_of_stacked_cells_are_nested_as_the_cells_are():
    start = nn.Input((5, 3))
    cells = [nn.LSTMCell(4), nn.GRUCell(2)]
    y, first, second = nn.RNN(cells, return_state=True)(start)
    assert [each.shape for each in first] == [(None, 4), (None, 4)]
    model = nn.Model(start, [y, first, second])
    x = np.random.default_rng(0).random((2, 5, 3), "f4")
    y, first, second = model.predict(x, verbose=0)
    assert shapes(first) == [(2, 4), (2, 4)]
    np.testing.assert_array_equal(y, second)
