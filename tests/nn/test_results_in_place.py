"""Outputs that programs write straight into the arrays that `predict` returns."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc
from memcfg.errors import FallbackWarning

nn = mc.nn

WIDE = 1031  # numbers of a row: a page and more, and no multiple of 64 bytes
ROW_BYTES = 4 * WIDE


def wide(width=WIDE, *, reshaped=False, softmax=False):
    """A model whose output takes much more than everything else in its arena."""
    nn.set_random_seed(5)
    layers = [nn.Input((3,)), nn.Dense(7, activation="tanh"), nn.Dense(width)]
    if reshaped:
        layers.append(nn.Reshape((1, width)))
    if softmax:
        layers.append(nn.Activation("softmax"))
    return nn.Sequential(layers)


def expected(model, x):
    """The rows of the output, each batch by NumPy."""
    kernel, bias, last, more = [w.astype(np.float64) for w in model.get_weights()]
    y = np.tanh(x @ kernel + bias) @ last + more
    if "softmax" in str(model.get_config()):
        y = np.exp(y - y.max(-1, keepdims=True))
        y /= y.sum(-1, keepdims=True)
    return y.reshape((len(x), *model.output_shape[1:]))


def samples(count):
    return np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)


@pytest.mark.parametrize("reshaped", [False, True])
@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("batch_size", [1, 5, 16, 40])
def test_rows_at_any_address_are_right(reshaped, softmax, batch_size):
    model, x = wide(reshaped=reshaped, softmax=softmax), samples(37)
    y = model.predict(x, batch_size, 0)
    np.testing.assert_allclose(y, expected(model, x), rtol=1e-4, atol=1e-6)


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 12),
    width=st.sampled_from([1024, 1031, 1040]),
)
@settings(deadline=None, max_examples=30)
def test_batches_give_the_bits_of_batches_alone(count, batch_size, width):
    model, x = wide(width), samples(count)
    y = model.predict(x, batch_size, 0)
    starts = range(0, count, batch_size)
    alone = [model.predict_on_batch(x[at : at + batch_size]) for at in starts]
    assert y.tobytes() == np.concatenate(alone).tobytes()


@pytest.mark.parametrize("batch_size", [8, 32])
def test_the_arena_has_no_bytes_for_the_result(batch_size):
    model = wide()
    y = model.predict_on_batch(samples(batch_size))
    plan = model.plan(batch_size, program="predict")
    state = sum(-(-w.nbytes // 64) * 64 for w in model.get_weights())
    assert y.nbytes == batch_size * ROW_BYTES
    assert plan.peak_bytes < state + y.nbytes
    report = model.memory_report(verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes == plan.peak_bytes
    assert report.verified


def test_rows_that_an_op_reads_stay_in_the_arena():
    x = nn.Input((3,))
    first = nn.Dense(WIDE)(x)
    model = nn.Model(x, [first, nn.Dense(4)(first)])
    given = samples(20)
    one, other = model.predict(given, 8, 0)
    assert model.plan(8, program="predict").peak_bytes > 8 * ROW_BYTES
    kernel, bias, last, more = [w.astype(np.float64) for w in model.get_weights()]
    np.testing.assert_allclose(one, given @ kernel + bias, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(other, one @ last + more, rtol=1e-4, atol=1e-5)


def test_several_outputs_have_a_place_each():
    x = nn.Input((3,))
    model = nn.Model(x, [nn.Dense(WIDE)(x), nn.Dense(2)(x), nn.Dense(2 * WIDE)(x)])
    given = samples(23)
    found = model.predict(given, 5, 0)
    weights = model.get_weights()
    for y, kernel, bias in zip(found, weights[::2], weights[1::2], strict=True):
        np.testing.assert_allclose(y, given @ kernel + bias, rtol=1e-4, atol=1e-5)


def test_results_of_calls_are_arrays_of_their_own():
    model, x = wide(), samples(6)
    first = model.predict_on_batch(x)
    before = first.copy()
    second = model.predict_on_batch(2 * x)
    assert not np.shares_memory(first, second)
    assert first.tobytes() == before.tobytes()
    first[...] = 0
    assert model.predict_on_batch(x).tobytes() == before.tobytes()
    assert model(x).tobytes() == before.tobytes()


def test_a_workspace_receives_the_rows():
    model, x = wide(), samples(11)
    right = model.predict(x, 4, 0)
    with mc.workspace("results") as results:
        y = model.predict(x, 4, 0, workspace=results)
        assert mc.workspace_of(y) is results
        assert y.tobytes() == right.tobytes()
        del y
    results.destroy()


def test_batches_of_unknown_number_are_joined():
    model, x = wide(), samples(11)
    batches = (x[at : at + 4] for at in range(0, 11, 4))
    assert (
        model.predict(batches, verbose=0).tobytes() == model.predict(x, 4, 0).tobytes()
    )


def test_parts_of_a_batch_write_their_rows():
    nn.set_random_seed(5)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(515), nn.Dense(WIDE)])
    x = samples(4001)
    once = model.plan(4001, program="predict").peak_bytes
    limit = (once + model.plan(1, program="predict").peak_bytes) // 2
    mc.config.set_memory_limit("CPU:0", limit)
    with pytest.warns(FallbackWarning, match="runs as 2 x 2001"):
        y = model.predict(x, 4001, 0)
    assert mc.config.get_memory_info("CPU:0")["peak"] <= limit
    kernel, bias, last, more = [w.astype(np.float64) for w in model.get_weights()]
    right = (x @ kernel + bias) @ last + more
    np.testing.assert_allclose(y, right, rtol=1e-3, atol=1e-4)


def test_callbacks_see_the_rows_of_their_batch():
    seen = []

    class Keep(nn.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.extend(each.copy() for each in logs["outputs"])

    model, x = wide(), samples(11)
    y = model.predict(x, 4, 0, callbacks=Keep())
    assert np.concatenate(seen).tobytes() == y.tobytes()


@pytest.mark.parametrize("mode", ["none", "separate", "single"])
def test_modes_without_a_plan_copy_their_results(mode):
    model, x = wide(), samples(11)
    right = model.predict(x, 4, 0)
    model.compile(inference_workspace_mode=mode)
    assert model.predict(x, 4, 0).tobytes() == right.tobytes()
