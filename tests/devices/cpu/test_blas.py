"""Products by NumPy's BLAS: what they compute, where, and within which limit."""

from __future__ import annotations

import tracemalloc
from math import prod

import numpy as np
import pytest

import memcfg as mc
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table

CONVOLUTIONS = [  # images, kernel, strides, dilation, padding
    ((2, 7, 6, 3), (3, 3, 3, 5), (1, 1), (1, 1), ((1, 1), (1, 1))),
    ((2, 8, 9, 3), (3, 2, 3, 4), (2, 3), (1, 1), ((0, 1), (2, 0))),
    ((1, 9, 9, 2), (3, 3, 2, 4), (1, 2), (2, 3), ((2, 2), (0, 3))),
    ((3, 4, 4, 6), (1, 1, 6, 5), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ((2, 5, 5, 3), (1, 1, 3, 2), (2, 2), (1, 1), ((0, 0), (0, 0))),
    ((2, 9, 8, 6), (3, 2, 6, 4), (2, 1), (1, 2), ((0, 0), (0, 0))),  # all inside
    ((2, 7, 8, 20), (3, 3, 20, 4), (1, 2), (2, 1), ((1, 2), (0, 1))),
    ((2, 5, 6, 5, 5), (2, 3, 2, 5, 3), (1, 2, 2), (2, 1, 1), ((0, 0),) * 3),
    ((1, 2, 2, 1), (5, 5, 1, 2), (1, 1), (1, 1), ((4, 4), (4, 4))),
    ((2, 4, 5, 3, 2), (2, 3, 2, 2, 3), (1, 2, 1), (1, 1, 1), ((1, 0), (1, 1), (0, 1))),
    ((3, 60, 60, 32), (3, 3, 32, 8), (1, 1), (1, 1), ((1, 1), (1, 1))),  # in parts
    ((2, 62, 62, 32), (3, 3, 32, 8), (1, 1), (1, 1), ((0, 0), (0, 0))),
    ((2, 210, 200, 3), (3, 3, 3, 2), (1, 1), (1, 1), ((1, 1), (1, 1))),
    ((5, 30, 30, 32), (3, 3, 32, 8), (1, 1), (1, 1), ((1, 1), (1, 1))),  # of images
]


def spec(array):
    return OperandSpec(array.shape, "float32")


def run(table, op_type, attributes, inputs, shape):
    """Run an op; return its output and the bytes that were taken from the heap."""
    output = np.full(shape, np.nan, np.float32)
    kernel = table.make(op_type, attributes, [*map(spec, inputs)], [spec(output)])
    scratch = np.full(kernel.scratch_bytes // 4 + 1, np.nan, np.float32)
    places = [each.ctypes.data for each in (*inputs, output)]
    kernel.run(places, scratch.ctypes.data)  # once before what is counted
    output[...] = scratch[:-1] = np.nan
    tracemalloc.start()
    try:
        kernel.run(places, scratch.ctypes.data)
        _, taken = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert np.isnan(scratch[-1])
    return output, taken


def agree(op_type, attributes, inputs, shape):
    """Compare with the definition in NumPy, and look at the heap."""
    found, taken = run(kernel_table("blas"), op_type, attributes, inputs, shape)
    wanted, _ = run(kernel_table("reference"), op_type, attributes, inputs, shape)
    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-4)
    assert taken < 200_000  # views and what NumPy buffers, not arrays


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_and_its_gradients(case):
    x, kernel, strides, dilation, padding = case
    rank, rng = len(strides), np.random.default_rng(0)
    how = {"strides": strides, "dilation": dilation, "padding": padding, "groups": 1}
    y = tuple(
        (size + sum(pads) - (taps - 1) * apart - 1) // step + 1
        for size, taps, step, apart, pads in zip(
            x[1:-1], kernel, strides, dilation, padding, strict=False
        )
    )
    y = (x[0], *y, kernel[-1])
    made = [rng.standard_normal(shape, np.float32) for shape in (x, kernel, y)]
    name = f"conv{rank}d"
    agree(name, how, made[:2], y)
    of_kernel = {**how, "kernel_shape": kernel}
    scaled = made[0] / np.float32(prod(y[:-1]) ** 0.5)
    agree(f"{name}_gradient_kernel", of_kernel, [scaled, made[2]], kernel)
    agree(f"{name}_gradient_input", {**how, "input_shape": x}, made[1:], x)


@pytest.mark.parametrize("rows", [(7,), (2, 3)])
def test_a_dense_layer_and_its_gradients(rows):
    rng = np.random.default_rng(0)
    x, kernel = rng.random((*rows, 5), "float32"), rng.random((5, 4), "float32")
    bias, dy = rng.random(4, "float32") - 3, rng.random((*rows, 4), "float32")
    agree("dense", {}, [x, kernel], (*rows, 4))
    agree("dense_bias", {}, [x, kernel, bias], (*rows, 4))
    agree("dense_bias_relu", {}, [x, kernel, bias], (*rows, 4))
    agree("dense_gradient_kernel", {}, [x, dy], (5, 4))
    agree("dense_gradient_input", {}, [kernel, dy], (*rows, 5))


@pytest.mark.parametrize("turned", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_products_of_matrices(turned):
    rng, (ta, tb) = np.random.default_rng(0), turned
    a = rng.random((3, 6, 5) if ta else (3, 5, 6), "float32")
    b = rng.random((3, 4, 6) if tb else (3, 6, 4), "float32")
    how = {"transpose_a": bool(ta), "transpose_b": bool(tb)}
    agree("matmul", how, [a, b], (3, 5, 4))
    if not ta:
        agree("matmul", how, [a, b[0].copy()], (3, 5, 4))


@pytest.fixture
def kernels(monkeypatch):
    """Return a function that chooses the kernels of devices."""

    def choose(name):
        monkeypatch.setenv("MEMCFG_KERNELS", name)
        mc.config.reset()

    yield choose
    monkeypatch.undo()
    mc.config.reset()


def trained(limit):
    mc.nn.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x, y = rng.random((32, 10, 10, 3), "float32"), np.arange(32) % 4
    nn = mc.nn
    conv = [nn.Conv2D(8, 3, padding="same", activation="relu") for _ in range(3)]
    ends = [nn.MaxPooling2D(), nn.SeparableConv2D(8, 3), nn.Flatten(), nn.Dense(4)]
    model = nn.Sequential([nn.Input((10, 10, 3)), *conv, *ends])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    mc.config.set_memory_limit("CPU:0", limit)
    losses = model.fit(x, y, batch_size=16, epochs=3, verbose=0).history["loss"]
    report = model.memory_report(verify=True)
    weights = model.get_weights()
    model.close()
    return losses, report, weights


def test_a_network_trains_as_planned_within_a_limit(kernels):
    kernels("reference")
    wanted, *_ = trained(None)
    kernels("blas")
    assert mc.config.logical_device().describe_kernels().startswith("BLAS of NumPy")
    whole, report, weights = trained(None)
    np.testing.assert_allclose(whole, wanted, rtol=1e-3)
    assert report.measured_peak_bytes == report.predicted_peak_bytes
    limit = report.predicted_peak_bytes * 95 // 100
    losses, report, limited = trained(limit)
    assert report.measured_peak_bytes == report.predicted_peak_bytes <= limit
    assert losses == whole
    for a, b in zip(weights, limited, strict=True):
        np.testing.assert_array_equal(a, b)
