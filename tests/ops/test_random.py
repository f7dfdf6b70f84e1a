"""Random kernels: NumPy's bits, and the distributions they are drawn from."""

from __future__ import annotations

import numpy as np
import pytest
from kernels import run_kernel

from memcfg import ops


def uniform(count, step=3, key=12345):
    attributes = {"shape": (count,), "key": key}
    step = np.array(step, np.int64)
    (found,) = run_kernel("random_uniform", [step], [(count,)], attributes)
    return found


@pytest.mark.parametrize("count", [1, 5, 8192, 100_001])
def test_uniform_numbers_are_those_of_numpys_meaning(count):
    meaning = np.empty(count, np.float32)
    attributes = {"shape": (count,), "key": 12345}
    step = np.array(3, np.int64)
    ops.op_type("random_uniform").numpy(attributes, [step], [meaning])
    assert uniform(count).tobytes() == meaning.tobytes()


def test_uniform_numbers_lie_evenly_between_0_and_1():
    x = np.sort(uniform(200_000))
    assert x[0] > 0
    assert x[-1] < 1
    distance = np.abs(x - np.linspace(0, 1, len(x))).max()
    assert distance < 1.95 / np.sqrt(len(x))  # Kolmogorov and Smirnov, 0.1 %
    assert not np.array_equal(uniform(64, step=3), uniform(64, step=4))


def test_gaussian_noise_is_normal():
    u = uniform(200_000)
    (z,) = run_kernel(
        "gaussian_noise", [np.zeros_like(u), u], [u.shape], {"stddev": 2.0}
    )
    assert abs(z.mean()) < 0.02
    assert abs(z.std() - 2) < 0.02
    for sigmas, part in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert abs(np.mean(np.abs(z) < 2 * sigmas) - part) < 0.004
    assert np.isfinite(z).all()


def test_the_quantile_of_the_normal_distribution():
    u = np.array([2.0**-24, 0.001, 0.025, 0.5, 0.8413447, 0.975, 1 - 2.0**-24], "f4")
    zero = np.zeros_like(u)
    (z,) = run_kernel("gaussian_noise", [zero, u], [u.shape], {"stddev": 1.0})
    known = [-5.29480, -3.090232, -1.959964, 0, 1.0, 1.959964, 5.29480]
    np.testing.assert_allclose(z, known, rtol=2e-4, atol=1e-6)


def part_of(kind, x, step, first, attributes):
    """Run a kernel on rows of a batch, with the numbers of their place in it."""
    step = np.array([step, first, len(x)], np.int64)
    inputs = [step] if kind == "random_uniform" else [x, step]
    if kind == "random_uniform":
        attributes = {**attributes, "shape": x.shape}
    (result,) = run_kernel(kind, inputs, [x.shape], attributes)
    return result


@pytest.mark.parametrize("kind", ["dropout", "random_uniform"])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (2, 3, 129), (4, 1000)])
def test_the_numbers_of_a_part_are_those_of_its_rows_in_the_batch(kind, shape):
    rows, step = 12, 5
    a = {"key": 99} | ({"rate": 0.4} if kind == "dropout" else {})
    x = np.ones((rows * shape[0], *shape[1:]), np.float32)
    whole = part_of(kind, x, step, 0, a)
    parts = [
        part_of(kind, x[i : i + shape[0]], step, i, a)
        for i in range(0, len(x), shape[0])
    ]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
