"""Rows of arrays on their way into programs: every layout, no memory of their own."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn
LAYOUTS = {
    "contiguous": lambda x: x,
    "columns first": np.asfortranarray,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "every other": lambda x: np.repeat(x, 2, axis=0)[::2],
    "read only": lambda x: np.broadcast_to(x, x.shape),
    "unaligned": lambda x: (
        np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:]
        .view(np.float32)
        .reshape(x.shape)
    ),
}


def numbers(samples, width):
    generator = np.random.default_rng(3)
    return generator.standard_normal((samples, width)).astype(np.float32)


def made(width, rate=0.1):
    nn.set_random_seed(5)
    model = nn.Sequential([nn.Input((width,)), nn.Dense(3)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(rate), loss, metrics=["accuracy"])
    return model


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_rows_of_any_layout(layout, shuffle):
    x, y = numbers(20, 5), np.arange(20) % 3
    found = []
    for source in (x, LAYOUTS[layout](x)):
        model = made(5)
        history = model.fit(source, y, 6, 2, 0, shuffle=shuffle, seed=3).history
        weights = [weight.tobytes() for weight in model.get_weights()]
        found.append((history, weights, model.predict(source, 6, 0).tobytes()))
    assert found[0] == found[1]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_no_memory_is_taken(layout, shuffle):
    x, y = LAYOUTS[layout](numbers(256, 1024)), np.arange(256) % 3
    model = made(1024)
    model.fit(x, y, 128, 1, 0, shuffle=shuffle)  # 512 KiB a batch
    tracemalloc.start()
    try:
        model.fit(x, y, 128, 1, 0, shuffle=shuffle)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * 1024


@settings(deadline=None, max_examples=30)
@given(
    samples=st.integers(1, 60), batch_size=st.integers(1, 70), shuffled=st.booleans()
)
def test_batches_meet_every_sample_once(samples, batch_size, shuffled):
    x, y = numbers(samples, 4), np.arange(samples) % 3
    model = made(4, rate=0.0)
    expected = model.evaluate(x, y, samples, 0, return_dict=True)
    history = model.fit(x, y, batch_size, 2, 0, shuffle=shuffled).history
    for name, value in expected.items():
        assert history[name] == pytest.approx([value] * 2, rel=1e-5)
    full, rest = divmod(samples, batch_size)
    assert model.optimizer.iterations == 2 * (full + bool(rest))
