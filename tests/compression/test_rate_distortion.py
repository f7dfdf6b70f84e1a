"""Quantisation by rate: beside rounding, every other choice, and a coder's bytes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.compression import encode, prune, quantize_by_rate, rate_distortion

nn = mc.nn


def bits_of(levels):
    """The bits of integers under the statistics of all of them, written plainly."""
    flags, sizes = {0: [0.5, 0.5], 1: [0.5, 0.5], 2: [0.5, 0.5]}, {}
    contexts = []
    for place, level in enumerate(levels):
        before = levels[max(place - 2, 0) : place]
        contexts.append(sum(each != 0 for each in before))
        flags[contexts[-1]][level != 0] += 1
        if level:
            sizes[abs(level)] = sizes.get(abs(level), 0.5) + 1
    largest = max([*sizes, 1])
    total = sum(sizes.get(each, 0.5) for each in range(1, largest + 1))
    bits = 0.0
    for context, level in zip(contexts, levels, strict=True):
        counts = flags[context]
        bits -= np.log2(counts[level != 0] / sum(counts))
        if level:
            bits += 1 - np.log2(sizes[abs(level)] / total)
    return bits


NUMBERS = st.lists(st.integers(-24, 24).map(lambda n: n / 8), min_size=1, max_size=30)


@given(NUMBERS, st.sampled_from([0.0, 0.05, 0.2, 1.0]))
def test_bits_and_errors_are_as_said_and_no_worse_than_of_rounding(values, weight):
    found = rate_distortion(values, 1.0, weight)
    x = np.asarray(values)
    assert found.levels.dtype == np.int32
    assert found.bits == pytest.approx(bits_of(found.levels.tolist()))
    assert found.distortion == pytest.approx(np.square(x - found.levels).sum())
    nearest = np.rint(x).astype(int)
    rounding = np.square(x - nearest).sum() + weight * bits_of(nearest.tolist())
    assert found.distortion + weight * found.bits <= rounding + 1e-9
    assert (np.sign(found.levels) * np.sign(x) >= 0).all()
    if not weight:
        np.testing.assert_array_equal(found.levels, nearest)


def test_more_weight_of_bits_means_fewer_of_them():
    x = np.random.default_rng(0).laplace(size=20_000)
    found = [rate_distortion(x, 0.5, weight) for weight in (0, 0.05, 0.1, 0.3)]
    for before, after in itertools.pairwise(found):
        assert after.bits < before.bits
        assert after.distortion > before.distortion
        assert np.count_nonzero(after.levels) < np.count_nonzero(before.levels)


def test_it_beats_wider_steps_of_as_many_bits():
    """The point of it: at equal bits, errors are smaller than by rounding."""
    x = np.random.default_rng(1).laplace(size=20_000)
    by_rate = rate_distortion(x, 1.0, 0.15)
    for step in np.linspace(1.0, 2.0, 41):
        rounded = rate_distortion(x, step, 0)
        if rounded.bits <= by_rate.bits:
            assert by_rate.distortion < rounded.distortion * step**2
            break
    else:
        pytest.fail("no step has as few bits")


@pytest.mark.parametrize("coder", ["huffman", "range"])
def test_estimated_bits_are_nearly_those_of_a_file(coder):
    pytest.importorskip("constriction")
    rng = np.random.default_rng(2)
    x = rng.laplace(size=50_000) * (rng.random(50_000) < 0.2)
    found = rate_distortion(x, 0.7, 0.1)
    coded = encode(np.float32(found.levels) * np.float32(0.7), coder=coder)
    assert 8 * coded.nbytes == pytest.approx(found.bits, rel=0.04)


def network(optimizer="adam"):
    nn.set_random_seed(0)
    layers = [nn.Dense(40, activation="relu", name="a"), nn.Dense(3, name="b")]
    model = nn.Sequential([nn.Input((12,)), *layers])
    model.compile(optimizer, nn.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_a_model_has_multiples_of_a_step_which_training_changes():
    model = prune(network(), {"a": 0.9})
    before = model.layers[0].kernel.numpy()
    made = quantize_by_rate(model, 0.5, 0.1)
    after = made.layers[0].kernel.numpy()
    step = 0.5 * np.sqrt(np.square(before[before != 0]).mean())
    np.testing.assert_allclose(after / step, np.rint(after / step), atol=1e-4)
    assert not after[before == 0].any()
    assert (after == 0).sum() > (before == 0).sum()
    rng = np.random.default_rng(0)
    x, y = np.float32(rng.normal(size=(32, 12))), rng.integers(0, 3, 32)
    losses = made.fit(x, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    trained = made.layers[0].kernel.numpy()
    for value in np.unique(after):
        assert len(np.unique(trained[after == value])) == 1


def test_one_weight_at_least_is_left():
    made = quantize_by_rate(network(), 0.5, 1e6)
    assert [np.count_nonzero(w) for w in made.get_weights()[::2]] == [1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate_distortion([1.0], 0, 0.1), "step must be above 0"),
        (lambda: rate_distortion([1.0], 1, -1), "rate_weight must be zero or more"),
        (lambda: rate_distortion([np.inf], 1, 0), "finite"),
        (lambda: rate_distortion([1.0], 1e-30, 0), "too small"),
        (lambda: quantize_by_rate(network(), {"c": 1}), "'c' is none of"),
        (lambda: quantize_by_rate(network(), -1), "above 0"),
    ],
)
def test_what_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
