"""Architectures: functional models, chains, sharing, names, tables, plans."""

from __future__ import annotations

import copy
import gc

import numpy as np
import pytest
from internals import note_networks

import memcfg as mc

nn = mc.nn


def residual(name=None):
    x = nn.Input((8, 8, 3))
    stem = nn.Conv2D(4, 3, padding="same", activation="relu", name="stem")(x)
    h = nn.Conv2D(4, 3, padding="same", name="inner")(stem)
    h = nn.BatchNormalization(name="norm")(h)
    h = nn.ReLU()(nn.Add()([stem, h]))
    return nn.Model(x, nn.Dense(5, name="head")(nn.GlobalAvgPool2D()(h)), name=name)


def test_a_functional_model_computes_what_it_says(rows):
    x, _ = rows
    inputs = nn.Input((6,))
    first, second = nn.Dense(6, activation="relu"), nn.Dense(6)
    hidden = first(inputs)
    model = nn.Model(inputs, nn.Add()([inputs, second(hidden), hidden]))
    w1, b1, w2, b2 = model.get_weights()
    h = np.maximum(x @ w1 + b1, 0)
    np.testing.assert_allclose(
        model.predict(x, verbose=0), x + h @ w2 + b2 + h, rtol=1e-5, atol=1e-5
    )


def test_a_shared_layer_has_one_weight_and_added_gradients(loss, rows):
    """relu(x w) w: compare with central differences of the loss itself."""
    x, y = rows
    inputs, shared = nn.Input((6,)), nn.Dense(6, use_bias=False, name="shared")
    head = nn.Dense(4, name="head")
    model = nn.Model(inputs, head(shared(nn.ReLU()(shared(inputs)))))
    model.compile(nn.SGD(1.0), loss)
    before = model.get_weights()
    assert [w.shape for w in before] == [(6, 6), (6, 4), (4,)]

    def value(kernel):
        h = np.maximum(x @ kernel, 0) @ kernel
        z = h.astype(np.float64) @ before[1] + before[2]
        z = z - z.max(1, keepdims=True)
        return (np.log(np.exp(z).sum(1)) - z[np.arange(len(y)), y]).mean()

    assert model.train_on_batch(x, y) == pytest.approx(
        value(before[0].astype(np.float64)), rel=1e-5
    )
    found = before[0] - model.get_weights()[0]
    for place in [(0, 0), (2, 5), (4, 1)]:
        step = np.zeros((6, 6))
        step[place] = 1e-5
        slope = (value(before[0] + step) - value(before[0] - step)) / 2e-5
        assert found[place] == pytest.approx(slope, rel=1e-3, abs=1e-6)


def test_a_shared_batch_normalization_moves_its_averages_for_each_call(loss, rows):
    x, y = rows
    inputs, norm = nn.Input((6,)), nn.BatchNormalization(momentum=0.9)
    shifted = nn.Add()([inputs, inputs])
    total = nn.Add()([norm(inputs), norm(shifted)])
    model = nn.Model(inputs, nn.Dense(4)(total))
    model.compile(nn.SGD(0.0), loss)
    model.train_on_batch(x, y)
    mean = x.mean(0)
    expected = 0.9 * (0.1 * mean) + 0.1 * (2 * mean)
    np.testing.assert_allclose(model.get_weights()[2], expected, rtol=1e-4, atol=1e-6)


def test_a_shared_dropout_drops_differently_in_each_place(loss):
    """x - x would vanish if both masks were one."""
    x = np.ones((32, 50), np.float32)
    inputs, drop = nn.Input((50,)), nn.Dropout(0.5, seed=2)
    minus = nn.RandomNormal(mean=-1.0, stddev=0.0)
    head = nn.Dense(2, kernel_initializer=minus, use_bias=False)
    plus = nn.Dense(2, kernel_initializer="ones", use_bias=False)
    model = nn.Model(inputs, nn.Add()([plus(drop(inputs)), head(drop(inputs))]))
    model.compile(nn.SGD(1.0), loss)
    before = model.get_weights()
    model.train_on_batch(x, np.zeros(32, np.int64))
    moved = [b - a for a, b in zip(before, model.get_weights(), strict=True)]
    assert not np.array_equal(*moved)


def test_weights_stand_in_keras_order():
    """By distance from the output, then as the walk from the output meets them."""
    x = nn.Input((4,))
    late = nn.Dense(3, name="late")
    early = nn.Dense(3, name="early")
    long = nn.Dense(3, name="long")(early(x))
    short = late(x)
    model = nn.Model(x, nn.Dense(2, name="head")(nn.Add()([short, long])))
    names = [layer.name for layer in model.layers if layer.weight_specs]
    assert names == ["early", "late", "long", "head"]


def test_layers_of_a_residual_model():
    model = residual()
    shapes = [w.shape for w in model.get_weights()]
    assert shapes == [
        *((3, 3, 3, 4), (4,), (3, 3, 4, 4), (4,), (4,), (4,), (4,), (4,)),
        *((4, 5), (5,)),
    ]
    assert model.count_params() == sum(int(np.prod(s)) for s in shapes)
    assert model.get_layer("inner").filters == 4
    for wrong, told in (("iner", "did you mean 'inner'"), ("zzz", "there are ")):
        with pytest.raises(ValueError, match=f"no layer '{wrong}' in .*: {told}"):
            model.get_layer(wrong)


def test_deep_chains_do_not_recurse():
    x = h = nn.Input((4,))
    for _ in range(1500):
        h = nn.ReLU()(h)
    assert len(nn.Model(x, h).layers) == 1501


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda x, y: nn.Model(x, nn.Input((4,))), "does not depend on the input"),
        (lambda x, y: nn.Model(x, nn.Add()([x, y])), "depends on the input"),
        (lambda x, y: nn.Model(nn.Dense(3)(x), nn.Dense(3)(x)), "does not depend"),
        (
            lambda x, y: nn.Model(x, nn.Dense(3, name="d")(nn.Dense(3, name="d")(x))),
            "used twice: 'd'",
        ),
    ],
)
def test_wrong_architectures(make, message):
    with pytest.raises(ValueError, match=message):
        make(nn.Input((4,)), nn.Input((4,)))


def test_what_is_no_input_or_output_is_refused():
    x = nn.Input((4,))
    for outputs in ([], [x, 3], np.zeros(3)):
        with pytest.raises(TypeError, match="outputs must be a symbolic tensor"):
            nn.Model(x, outputs)
    with pytest.raises(ValueError, match="same Input is passed"):
        nn.Model([x, x], nn.Dense(2)(x))


def test_models_share_the_weights_of_a_layer(rows):
    x, data = nn.Input((6,)), rows[0]
    layer = nn.Dense(3)
    first = nn.Model(x, layer(x))
    second = nn.Sequential([nn.Input((6,)), layer])
    second.set_weights([np.ones((6, 3)), np.arange(3)])
    expected = data @ np.ones((6, 3), np.float32) + np.arange(3)
    for model in (first, second, first):
        np.testing.assert_allclose(model.predict(data, verbose=0), expected, 1e-5)
    second.set_weights([np.ones((6, 3)), np.zeros(3)])
    del second, model
    gc.collect()  # the values stay
    assert not layer.get_weights()[1].any()
    assert not first.get_weights()[1].any()


def test_operators_and_functions_are_no_layers_as_in_keras():
    x = nn.Input((4,), name="x")
    h = nn.Dense(4, name="h")(x)
    shared = nn.ReLU(name="shared")
    y = nn.ops.maximum(shared(x + 2.0 * h) - h[:, :1], shared(h))
    model = nn.Model(x, nn.Dropout(0.5, name="last")(y))
    assert [each.name for each in model.layers] == ["x", "h", "shared", "last"]
    assert model.get_layer(index=2) is shared


def test_a_chain_that_is_built_late(images):
    x, _ = images
    layers = [nn.Conv2D(2, 3), nn.Flatten(), nn.Dense(3)]
    model = nn.Sequential(layers)
    assert model.layers == layers
    assert not model.built
    for call in (
        model.get_weights,
        model.count_params,
        lambda: model.save_weights("w"),
        lambda: model.set_weights([]),
    ):
        with pytest.raises(RuntimeError, match="not known yet"):
            call()
    model.build((None, 8, 8, 3))
    assert len(model.get_weights()) == 4
    with pytest.raises(RuntimeError, match="and not of"):
        model.build((None, 9, 9, 3))

    assert model.predict(x, verbose=0).shape == (40, 3)


def test_building_late_and_early_give_the_same_weights():
    found = []
    for early in (True, False):
        nn.set_random_seed(3)
        layers = [nn.Dense(3), nn.Dense(2)]
        if early:
            model = nn.Sequential([nn.Input((4,)), *layers])
        else:
            model = nn.Sequential(layers)
            model.build((None, 4))
        found.append(model.get_weights())
    for first, second in zip(*found, strict=True):
        assert np.array_equal(first, second)


def test_add_checks_before_it_appends(loss):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3, name="d")])
    before = model.get_weights()
    with pytest.raises(ValueError, match="'d' is taken"):
        model.add(nn.Dense(3, name="d"))
    wrong = nn.Conv2D(3, 3)
    with pytest.raises(ValueError, match="images"):
        model.add(wrong)
    assert wrong.weight_specs is None
    with pytest.raises(TypeError, match="accepts layers"):
        model.add("dense")
    with pytest.raises(ValueError, match="first"):
        model.add(nn.Input((4,)))
    assert len(model.layers) == 1
    model.add(nn.Dense(2))
    after = model.get_weights()
    assert len(after) == 4
    assert np.array_equal(before[0], after[0])
    model.compile("sgd", loss)
    with pytest.raises(RuntimeError, match="add all layers before"):
        model.add(nn.Dense(2))


def test_an_empty_chain_has_no_layers(rows):
    with pytest.raises(ValueError, match="no layers"):
        nn.Sequential().predict(rows[0])


def test_summary_of_a_subclass_that_is_not_built(capsys):
    class Own(nn.Model):
        def __init__(self):
            super().__init__()
            self.ends = [nn.Dense(3, name="one"), nn.Dense(2, name="two")]

        def call(self, x):
            return self.ends[1](self.ends[0](x))

    model = Own()
    assert [layer.name for layer in model.layers] == ["one", "two"]
    model.summary()
    text = capsys.readouterr().out
    assert "one (Dense)" in text
    assert "?" in text
    assert "Not built" in text
    model.build((None, 4))
    model.summary()
    assert "?" not in capsys.readouterr().out


def test_summary(capsys):
    model = residual("net")
    model.summary()
    text = capsys.readouterr().out
    assert "Model: net" in text
    for words in (
        "stem (Conv2D)",
        "(None, 8, 8, 4)",
        "1.00 KiB",
        "112",
        "head (Dense)",
    ):
        assert words in text
    assert f"Total parameters: {model.count_params()}" in text
    assert "Not trainable:    8 (32 B)\n" in text
    nn.Sequential([nn.Dense(3, name="d[red]")]).summary()
    text = capsys.readouterr().out
    assert "d[red] (Dense)" in text
    assert "Not built" in text


def test_a_plan_takes_no_memory(loss):
    model = residual()
    with pytest.raises(RuntimeError, match="no memory plan yet"):
        _ = model.memory_plan
    with pytest.raises(RuntimeError, match="no memory plan yet"):
        model.memory_report()
    model.compile("adam", loss, memory="keep_all")
    big, small = model.plan(16), model.plan(4)
    assert big.method == "keep_all"
    assert big.peak_bytes > small.peak_bytes
    assert mc.config.get_memory_info("CPU:0")["current"] == 0


def test_the_plan_is_what_is_loaded(loss, images):
    x, y = images
    model = residual()
    model.compile("adam", loss, memory=mc.plan.share())
    expected = model.plan(16)
    model.fit(x, y, batch_size=16, verbose=0, validation_split=0.1)
    assert model.memory_plan.actions == expected.actions
    model.evaluate(x, y, verbose=0)
    model.predict(x, verbose=0)
    assert model.memory_plan.actions == expected.actions  # the training step's
    report = model.memory_report()
    assert report.measured_peak_bytes == expected.peak_bytes
    assert "peak" in str(report).lower()


def test_a_model_is_placed_where_it_is_compiled(cpu, loss, images):
    configuration = mc.config.LogicalDeviceConfiguration(memory_limit=None)
    mc.config.set_logical_device_configuration(cpu, [configuration] * 2)
    model = residual()
    with mc.device("/CPU:1"):
        model.compile("sgd", loss)
    model.train_on_batch(*images)
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    assert mc.config.get_memory_info("CPU:1")["current"] > 0
    del model
    assert mc.config.get_memory_info("CPU:1")["current"] == 0


def test_a_model_that_was_refused_disturbs_no_other():
    """Though its error keeps it."""
    with pytest.raises(ValueError, match="dtype policy") as kept:
        nn.Sequential([nn.Input((3,)), nn.Dense(2)], dtype="float31")
    shared, x = nn.Dense(3), nn.Input((3,))
    made = [nn.Model(x, shared(x)) for _ in range(2)]
    assert [model.count_params() for model in made] == [12, 12]
    assert kept.traceback


@pytest.mark.parametrize("how", ["constructor", "add", "build"])
def test_a_chain_is_joined_once_however_long_it_is(monkeypatch, how):
    """Not with each layer: a thousand would take a minute."""
    made = note_networks(monkeypatch)
    layers = [nn.Dense(3) for _ in range(40)]
    start = [] if how == "build" else [nn.Input((3,))]
    model = nn.Sequential([] if how == "add" else [*start, *layers])
    for layer in [*start, *layers] if how == "add" else []:
        model.add(layer)
        assert model.built
        assert "built=True" in repr(model)
    if how == "build":
        model.build((None, 3))
    assert model.count_params() == 40 * 12
    assert len(made) == 1


def several(container):
    x = nn.Input((6,))
    hidden = nn.Dense(5, activation="relu", name="hidden")(x)
    head = nn.Dense(3, name="head")(hidden)
    return nn.Model(x, container([head, hidden, head]))


@pytest.mark.parametrize("container", [list, tuple])
def test_several_outputs_are_predicted_together(container, rows):
    x = rows[0]
    model = several(container)
    kernel, bias, *last = model.get_weights()
    hidden = np.maximum(x @ kernel + bias, 0)
    for made in (model, copy.deepcopy(model)):
        found = made.predict(x, batch_size=7, verbose=0)
        assert type(found) is container
        for one, other in zip(
            found, [hidden @ last[0] + last[1], hidden, found[0]], strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    streamed = model.predict([x[:7], x[7:9]], verbose=0)
    assert type(streamed) is container
    for one, other in zip(streamed, found, strict=True):
        np.testing.assert_allclose(one, other[:9], rtol=1e-5, atol=1e-6)
    one = model.predict_on_batch(x[:2])
    assert [each.shape for each in one] == [(2, 3), (2, 5), (2, 3)]


def test_a_loss_reads_every_output(loss, rows):
    x, y = rows
    model = several(list)
    model.compile(nn.SGD(0.1), loss)
    logs = model.evaluate(x, [y % 3, y % 5, y % 3], verbose=0, return_dict=True)
    assert list(logs) == ["loss", "head_loss", "hidden_loss", "head_1_loss"]
    assert logs["head_loss"] == logs["head_1_loss"]
    with pytest.raises(
        TypeError, match="y must be a list of as many arrays or a dict by name"
    ):
        model.evaluate(x, y)


def test_a_layer_that_is_added_behind_others_at_work(rows):
    """Weights stay, memory goes, and what follows is the longer model's."""
    model = nn.Sequential([nn.Input((6,)), nn.Dense(5, name="first")])
    before = model.predict(rows[0], verbose=0)
    weights = model.get_weights()
    assert mc.config.get_memory_info("CPU:0")["current"] > 0
    model.add(nn.Dense(2))
    assert mc.config.get_memory_info("CPU:0")["current"] == 0
    with pytest.raises(RuntimeError, match="no memory plan yet"):
        model.memory_plan  # noqa: B018
    kernel, bias = model.get_weights()[2:]
    found = model.predict(rows[0], verbose=0)
    np.testing.assert_allclose(found, before @ kernel + bias, rtol=1e-5, atol=1e-6)
    for first, second in zip(weights, model.get_weights(), strict=False):
        assert np.array_equal(first, second)


def test_the_name_of_the_input_is_taken(rows):
    model = nn.Sequential([nn.Input((6,), name="x")])
    layer = nn.Dense(5, name="x")
    with pytest.raises(ValueError, match="'x' is the name of the input"):
        model.add(layer)
    model.add(nn.Dense(5))
    assert nn.Sequential([layer]).predict(rows[0], verbose=0).shape == (30, 5)


def test_a_summary_goes_to_a_function(capsys):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    texts = []
    model.summary(print_fn=texts.append)
    model.summary()
    assert "\n".join([*texts, ""]) == capsys.readouterr().out


def test_weights_of_a_frozen_model_are_not_trained():
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3)])
    assert model.non_trainable_weights == []
    model.trainable = False
    assert len(model.non_trainable_weights) == 2
    assert model.trainable_weights == []


def test_the_shape_of_a_chain_from_its_first_layer():
    for first in (nn.Dense(3, input_dim=4), nn.Dense(3, input_shape=(4,))):
        assert nn.Sequential([first]).input_shape == (None, 4)
    start = nn.Input((4,)).node.layer
    assert nn.Sequential([start, nn.Dense(3)]).input_shape == (None, 4)


def test_weights_of_losses_in_a_list():
    x = nn.Input((4,))
    outputs = [nn.Dense(2, name=name)(x) for name in "abc"]
    rows = np.ones((8, 4), "f4")
    targets = [np.zeros((8, 2), "f4")] * 3
    for losses, weights, counted in (
        (["mse"] * 3, [1, 2, 3], (1, 2, 3)),
        (["mse", None, "mse"], [1, 2, 3], (1, 0, 3)),
        (["mse", None, "mse"], [1, 3], (1, 0, 3)),
    ):
        model = nn.Model(x, outputs)
        model.compile("sgd", losses, loss_weights=weights)
        y = [t for t, loss in zip(targets, losses, strict=True) if loss]
        logs = model.evaluate(rows, y, verbose=0, return_dict=True)
        single = [float((p**2).mean()) for p in model.predict(rows, verbose=0)]
        wanted = sum(c * value for c, value in zip(counted, single, strict=True))
        assert logs["loss"] == pytest.approx(wanted, rel=1e-5)
        model.close()


def test_a_model_may_begin_at_an_inner_tensor():
    """The decoder of an autoencoder shares its layers, and is trained with it."""
    x = nn.Input((6,))
    z = nn.Dense(2, activation="tanh", name="code")(x)
    y = nn.Dense(6, name="out")(nn.Dense(4, activation="relu")(z) * 2.0)
    whole, encoder, decoder = nn.Model(x, y), nn.Model(x, z), nn.Model(z, y)
    assert [each.name for each in decoder.layers][1:] != ["code"]
    assert decoder.input_shape == (None, 2)
    data = np.random.default_rng(0).normal(size=(16, 6)).astype("f4")
    whole.compile("sgd", "mse")
    whole.fit(data, data, epochs=2, verbose=0)
    codes = encoder.predict(data, verbose=0)
    np.testing.assert_array_equal(
        decoder.predict(codes, verbose=0), whole.predict(data, verbose=0)
    )
    for model in (whole, encoder, decoder):
        model.close()


def test_an_inner_tensor_and_an_input_together():
    x, other = nn.Input((3,)), nn.Input((2,))
    z = nn.Dense(2)(x)
    model = nn.Model([z, other], nn.Add()([z, other]))
    a, b = np.ones((4, 2), "f4"), np.full((4, 2), 2, "f4")
    np.testing.assert_array_equal(model.predict([a, b], verbose=0), a + b)


@pytest.mark.parametrize("inputs", [[nn.Input((4,))], []])
def test_building_again(inputs):
    model = nn.Sequential([*inputs, nn.Dense(3)])
    model.build((None, 4))
    weights = model.get_weights()
    model.build((None, 4))
    for one, two in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    with pytest.raises(RuntimeError, match=r"\(None, 4\), and not of \(None, 5\)"):
        model.build((None, 5))


def test_a_summary_lists_inner_layers_what_is_trained_and_a_part(capsys):
    inner = nn.Sequential([nn.Input((8,)), nn.Dense(4, name="a")], name="inner")
    inner.layers[0].trainable = False
    layers = [nn.Dense(8, name="first"), inner, nn.Dense(2, name="last")]
    model = nn.Sequential([nn.Input((8,)), *layers])
    model.summary(expand_nested=True, show_trainable=True)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[3:7]]
    assert [(row[0], row[4]) for row in rows] == [
        *(("first", "yes"), ("inner", "no"), ("a", "no"), ("last", "yes"))
    ]
    model.summary(layer_range=("inn.r", "last"))
    text = capsys.readouterr().out
    assert "first" not in text
    assert "inner" in text
    for wrong in (("none", "last"), ("last",), "last", ("(", "last")):
        with pytest.raises(ValueError, match="layer_range"):
            model.summary(layer_range=wrong)
