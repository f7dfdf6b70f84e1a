"""Recurrent layers against loops in NumPy, in one op and unrolled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
KINDS = {"simple": nn.SimpleRNN, "lstm": nn.LSTM, "gru": nn.GRU}
LOSS = nn.SparseCategoricalCrossentropy(from_logits=True)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def relu(x):
    return np.maximum(x, 0)


FUNCTIONS = {"tanh": np.tanh, "sigmoid": sigmoid, "relu": relu}


def step(kind, z, h, states, recurrent, bias, options):
    """One step in NumPy; `z` is the product with the input's kernel."""
    act = FUNCTIONS[options.get("activation", "tanh")]
    gate = FUNCTIONS[options.get("recurrent_activation", "sigmoid")]
    if kind == "simple":
        return (act(z + h @ recurrent + bias),)
    if kind == "lstm":
        i, f, g, o = np.split(z + h @ recurrent + bias, 4, -1)
        c = gate(f) * states[1] + gate(i) * act(g)
        return gate(o) * act(c), c
    xz, xr, xh = np.split(z, 3, -1)
    n = len(recurrent)
    if options.get("reset_after", True):
        xz, xr, xh = np.split(z + bias[0], 3, -1)
        rz, rr, rh = np.split(h @ recurrent + bias[1], 3, -1)
        update, reset = gate(xz + rz), gate(xr + rr)
        candidate = act(xh + reset * rh)
    else:
        xz, xr, xh = np.split(z + bias, 3, -1)
        rz, rr = np.split(h @ recurrent[:, : 2 * n], 2, -1)
        update, reset = gate(xz + rz), gate(xr + rr)
        candidate = act(xh + (reset * h) @ recurrent[:, 2 * n :])
    return (update * h + (1 - update) * candidate,)


def expected(kind, x, weights, options, states=None, mask=None):
    """All outputs in the order of the steps, and the last states."""
    kernel, recurrent, *rest = (w.astype(np.float64) for w in weights)
    bias = rest[0] if rest else np.zeros((2, kernel.shape[1]))
    if kind != "gru" or not options.get("reset_after", True):
        bias = rest[0] if rest else np.zeros(kernel.shape[1])
    zeros = np.zeros((len(x), len(recurrent)))
    output, states = zeros, states or [zeros] * (1 + (kind == "lstm"))
    order = range(x.shape[1])
    outputs = []
    for t in reversed(order) if options.get("go_backwards") else order:
        new = step(kind, x[:, t] @ kernel, states[0], states, recurrent, bias, options)
        keep = np.ones((len(x), 1), bool) if mask is None else mask[:, t, None]
        output = np.where(keep, new[0], output)
        states = [np.where(keep, a, b) for a, b in zip(new, states, strict=True)]
        outputs.append(output)
    return np.stack(outputs, 1), states


def randomized(model, seed=0):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=w.shape).astype("f4") * 0.5 for w in model.get_weights()]
    model.set_weights(weights)
    return weights


@pytest.mark.parametrize("kind", KINDS)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)),
    units=st.integers(1, 5),
    options=st.fixed_dictionaries(
        {},
        optional={
            "activation": st.sampled_from(["tanh", "relu"]),
            "unroll": st.booleans(),
            "go_backwards": st.booleans(),
            "return_sequences": st.booleans(),
            "use_bias": st.booleans(),
        },
    ),
    masked=st.booleans(),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_predictions_are_those_of_a_loop(kind, shape, units, options, masked, data):
    if kind == "gru" and data.draw(st.booleans()):
        options["reset_after"] = False
    if kind != "simple" and data.draw(st.booleans()):
        options["recurrent_activation"] = "relu"
    rng = np.random.default_rng(units)
    x = rng.normal(size=shape).astype("f4")
    mask = None
    inputs = nn.Input(shape[1:])
    h = inputs
    if masked:
        mask = rng.random(shape[:2]) < 0.6
        x[~mask] = 0
        h = nn.Masking()(h)
    model = nn.Model(inputs, KINDS[kind](units, **options)(h))
    weights = randomized(model)
    wanted, _ = expected(kind, x, weights, options, mask=mask)
    found = model.predict(x, verbose=0)
    if not options.get("return_sequences"):
        wanted = wanted[:, -1]
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unroll", [False, True])
def test_training_in_one_op_and_unrolled_is_the_same(kind, unroll):
    x = np.random.default_rng(0).normal(size=(24, 5, 3)).astype("f4")
    x[:, 3:][x[:, 0, 0] > 0] = 0
    y = (x.sum((1, 2)) > 0).astype("i4")
    models = []
    for policy in ("share", "keep_all", "sqrt_checkpoint"):
        nn.set_random_seed(1)
        inputs = nn.Input((5, 3))
        h = KINDS[kind](4, return_sequences=True, unroll=unroll)(nn.Masking()(inputs))
        h = KINDS[kind](3, dropout=0.2, unroll=unroll, go_backwards=True)(h)
        model = nn.Model(inputs, nn.Dense(2)(h))
        model.compile(nn.Adam(0.02), LOSS, memory=policy)
        history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=0)
        report = model.memory_report()
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        models.append((history.history["loss"], *model.get_weights()))
    for other in models[1:]:
        for one, two in zip(models[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_weights_have_keras_shapes_and_first_values():
    inputs = nn.Input((5, 3))
    for layer, shapes in (
        (nn.SimpleRNN(4), [(3, 4), (4, 4), (4,)]),
        (nn.LSTM(4), [(3, 16), (4, 16), (16,)]),
        (nn.GRU(4), [(3, 12), (4, 12), (2, 12)]),
        (nn.GRU(4, reset_after=False), [(3, 12), (4, 12), (12,)]),
        (nn.LSTM(4, use_bias=False), [(3, 16), (4, 16)]),
    ):
        model = nn.Model(inputs, layer(inputs))
        assert [w.shape for w in model.get_weights()] == shapes
        recurrent = model.get_weights()[1]
        np.testing.assert_allclose(recurrent @ recurrent.T, np.eye(4), atol=1e-5)
    model = nn.Model(inputs, nn.LSTM(2)(inputs))
    assert model.get_weights()[2].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: nn.LSTM(0), ValueError, "units must be positive"),
        (lambda: nn.LSTM(3, dropout=1), ValueError, "dropout must be in"),
        (lambda: nn.LSTM(3, unroll=1), TypeError, "True or False"),
        (lambda: nn.GRU(3, kernel_constraint="x"), ValueError, "unknown constraint"),
        (
            lambda: nn.GRU(3, activation="magic"),
            ValueError,
            "unknown activation 'magic'",
        ),
        (lambda: nn.GRU(3)(nn.Input((4,))), ValueError, "sequences"),
        (
            lambda: nn.LSTM(3)(nn.Input((4, 2)), initial_state=nn.Input((3,))),
            ValueError,
            "2 initial states",
        ),
        (
            lambda: nn.GRU(3)(nn.Input((4, 2)), initial_state=nn.Input((2,))),
            ValueError,
            "an initial state must have shape",
        ),
    ],
)
def test_what_cannot_be_honoured_raises(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_recurrent_dropout_drops_the_same_features_at_all_steps():
    """With an identity and ones, the state is a product of what is kept."""
    inputs = nn.Input((3, 1))
    layer = nn.SimpleRNN(
        200,
        None,
        kernel_initializer="ones",
        recurrent_initializer="identity",
        recurrent_dropout=0.5,
        return_sequences=True,
    )
    model = nn.Model(inputs, nn.Dense(2)(nn.Flatten()(layer(inputs))))
    model.compile(nn.SGD(0.1), LOSS)
    graph = model.graph(2)
    assert sum(op.type == "dropout" for op in graph.ops) == 1
    model.train_on_batch(np.ones((2, 3, 1), "f4"), np.zeros(2, "i4"))


@pytest.mark.parametrize("merge", ["concat", "sum", "mul", "ave"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sequences", [False, True])
def test_both_directions(merge, kind, sequences):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 5, 3)).astype("f4")
    mask = rng.random((4, 5)) < 0.7
    x[~mask] = 0
    inputs = nn.Input((5, 3))
    inner = KINDS[kind](2, return_sequences=sequences)
    h = nn.Bidirectional(inner, merge)(nn.Masking()(inputs))
    model = nn.Model(inputs, h)
    weights = randomized(model)
    there, _ = expected(kind, x, weights[:3], {}, mask=mask)
    back, _ = expected(kind, x[:, ::-1], weights[3:], {}, mask=mask[:, ::-1])
    if sequences:
        keep = mask[..., None]
        ends = np.where(keep, there, 0), np.where(keep, back[:, ::-1], 0)
    else:
        ends = there[:, -1], back[:, -1]
    wanted = {
        "concat": lambda a, b: np.concatenate([a, b], -1),
        "sum": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "ave": lambda a, b: (a + b) / 2,
    }[merge](*ends)
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_both_directions_apart():
    x = np.random.default_rng(0).normal(size=(4, 5, 3)).astype("f4")
    inputs = nn.Input((5, 3))
    layer = nn.LSTM(2, return_sequences=True, return_state=True)
    made = nn.Bidirectional(layer, merge_mode=None)(inputs)
    assert [each.shape for each in made] == [(None, 5, 2)] * 2 + [(None, 2)] * 4
    model = nn.Model(inputs, list(made))
    weights = randomized(model)
    there, ends = expected("lstm", x, weights[:3], {})
    back, others = expected("lstm", x[:, ::-1], weights[3:], {})
    wanted = [there, back[:, ::-1], *ends, *others]
    for one, two in zip(model.predict(x, verbose=0), wanted, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_last_state_alone_has_the_gradients_of_differences(kind):
    """What LSTM remembers depends on weights, though no output is read."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(6, 5, 3)).astype("f4"), np.ones((6, 1), "f4")
    inputs = nn.Input((5, 3))
    *_, state = KINDS[kind](4, return_state=True)(inputs)
    model = nn.Model(inputs, nn.Dense(1)(state))
    model.compile(nn.SGD(1.0), "mse")
    before = randomized(model)
    model.train_on_batch(x, y)
    after = model.get_weights()

    def loss(number, step):
        weights = [each.copy() for each in before]
        weights[number].flat[0] += step
        model.set_weights(weights)
        return model.evaluate(x, y, verbose=0)

    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        slope = (loss(number, 1e-2) - loss(number, -1e-2)) / 2e-2
        assert (old - new).flat[0] == pytest.approx(slope, rel=2e-2, abs=2e-3)
    model.close()


def test_a_layer_at_every_step():
    x = np.random.default_rng(0).normal(size=(4, 3, 5, 5, 2)).astype("f4")
    inputs = nn.Input((3, 5, 5, 2))
    model = nn.Model(inputs, nn.TimeDistributed(nn.Conv2D(2, 3))(inputs))
    single = nn.Input((5, 5, 2))
    inner = nn.Model(single, nn.Conv2D(2, 3)(single))
    inner.set_weights(randomized(model))
    wanted = [inner.predict(x[:, t], verbose=0) for t in range(3)]
    found = model.predict(x, verbose=0)
    np.testing.assert_allclose(found, np.stack(wanted, 1), rtol=1e-5, atol=1e-6)


def test_wrappers_train_and_refuse_in_words():
    nn.set_random_seed(0)
    inputs = nn.Input((5, 3))
    h = nn.TimeDistributed(nn.Dense(4, "relu"))(inputs)
    h = nn.Bidirectional(nn.LSTM(3, return_sequences=True))(h)
    h = nn.Bidirectional(nn.GRU(3, dropout=0.1), "sum")(h)
    model = nn.Model(inputs, nn.Dense(2)(h))
    model.compile(nn.Adam(0.05), LOSS)
    x = np.random.default_rng(0).normal(size=(64, 5, 3)).astype("f4")
    y = (x[:, :, 0].sum(1) > 0).astype("i4")
    losses = model.fit(x, y, epochs=10, verbose=0, seed=0).history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    for call, words in (
        (lambda: nn.Bidirectional(nn.LSTM(2), "max"), "got 'max'"),
        (lambda: nn.Bidirectional(nn.LSTM(2), backward_layer=nn.LSTM(2)), "backwards"),
        (
            lambda: nn.TimeDistributed(nn.Dense(2))(nn.Input((3,))),
            "steps and features",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            call()
    with pytest.raises(TypeError, match="got <Dense"):
        nn.Bidirectional(nn.Dense(2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("unroll", [False, True])
def test_states_go_on_from_batch_to_batch(kind, unroll):
    """Two batches of four steps are one of eight, in every mode, until a reset."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3, 8, 2)).astype("f4")
    inputs = nn.Input((4, 2), batch_size=3)
    layer = KINDS[kind](5, stateful=True, return_sequences=True, unroll=unroll)
    model = nn.Model(inputs, layer(inputs))
    weights = randomized(model)
    assert len(weights) == 3
    whole, _ = expected(kind, x, weights, {})
    outer = nn.Sequential([nn.Input((4, 2), batch_size=3), model])
    for reset in (layer.reset_states, model.reset_states, outer.reset_states):
        parts = [outer.predict(x[:, i : i + 4], 3, verbose=0) for i in (0, 4)]
        found = np.concatenate(parts, 1)
        np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-5)
        reset()
    around = nn.Bidirectional(KINDS[kind](5, stateful=True))
    both = nn.Model(inputs, around(inputs))
    first, second, third = (
        both.predict(x[:, :4], 3, verbose=0)
        for i in range(3)
        if i < 2 or around.reset_state() is None
    )
    assert not np.allclose(first, second)
    np.testing.assert_array_equal(first, third)
    with pytest.raises(ValueError, match="batches of 3 samples, got 2"):
        model.predict(x[:2, :4], verbose=0)
    with pytest.raises(ValueError, match="needs a fixed batch size"):
        KINDS[kind](5, stateful=True)(nn.Input((4, 2)))


def test_training_and_evaluation_carry_states_too():
    def make():
        nn.set_random_seed(2)
        inputs = nn.Input((4, 2), batch_size=8)
        layer = nn.LSTM(5, stateful=True)
        model = nn.Model(inputs, nn.Dense(2)(layer(inputs)))
        model.compile(nn.SGD(0.0), LOSS)
        return model, layer

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(8, 4, 2)).astype("f4"), rng.integers(0, 2, 8).astype("i4")
    model, layer = make()
    kernel, recurrent, bias, *_ = model.get_weights()
    assert len(model.get_weights()) == 5
    _, states = expected("lstm", x, (kernel, recurrent, bias), {})
    again, _ = expected("lstm", x, (kernel, recurrent, bias), {}, states)
    losses = [
        [step(x, y) for _ in range(2)]
        for step in (model.train_on_batch, model.test_on_batch)
        if layer.reset_states() is None
    ]
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)
    model, _ = make()
    model.train_on_batch(x, y)
    head = model.get_weights()[3:]
    found = model.predict(x, 8, verbose=0)
    np.testing.assert_allclose(found, again[:, -1] @ head[0] + head[1], 1e-4, 1e-5)


@pytest.mark.parametrize("network", ["recurrent", "attention"])
def test_every_workspace_mode_has_the_same_bits(network):
    """States that stay between batches among them."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 5, 4)).astype("f4")
    y = rng.integers(0, 2, 16).astype("i4")
    found = []
    for mode in mc.WorkspaceMode:
        nn.set_random_seed(4)
        inputs = nn.Input((5, 4), batch_size=8)
        if network == "recurrent":
            h = nn.Bidirectional(nn.LSTM(3, return_sequences=True))(inputs)
            h = nn.GRU(3, stateful=True, recurrent_dropout=0.3)(h)
        else:
            h = nn.MultiHeadAttention(2, 3, dropout=0.2)(inputs, inputs)
            h = nn.Flatten()(nn.Attention(use_scale=True)([h, h]))
        model = nn.Model(inputs, nn.Dense(2)(h))
        model.compile(
            nn.Adam(0.02),
            LOSS,
            training_workspace_mode=mode,
            inference_workspace_mode=mode,
        )
        history = model.fit(x, y, batch_size=8, epochs=3, verbose=0, shuffle=False)
        numbers = history.history["loss"], model.predict(x, 8, verbose=0)
        found.append((*numbers, *model.get_weights()))
        model.close()
    for other in found[1:]:
        for one, two in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(one, two)


def test_penalties_reach_the_weights_that_they_name():
    x = nn.Input((5, 4))
    for make, wanted in (
        (
            lambda: nn.LSTM(3, recurrent_regularizer="l2", bias_regularizer="l1")(x),
            {"recurrent_kernel": "L2", "bias": "L1"},
        ),
        (
            lambda: nn.MultiHeadAttention(1, 2, kernel_regularizer="l2")(x, x),
            dict.fromkeys(
                [f"{n}_kernel" for n in ("query", "key", "value", "attention_output")],
                "L2",
            ),
        ),
    ):
        specs = make().node.layer.weight_specs
        found = {
            spec.name: type(spec.regularizer).__name__
            for spec in specs
            if spec.regularizer is not None
        }
        assert found == wanted
