"""Results that programs write into arrays of the caller."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from placed import placed

import memcfg as mc
from memcfg import plan as planning
from memcfg.errors import GraphError
from memcfg.graph import Builder, with_results_outside
from memcfg.runtime import Executor


def product(*, reshaped=False, read_again=False):
    """y = x @ w, perhaps in another shape, or with a sum that reads it."""
    builder = Builder("product")
    x = builder.tensor("x", (8, 16), "float32", role="input")
    w = builder.tensor("w", (16, 48), "float32", role="parameter")
    (y,) = builder.apply("matmul", (x, w), name="y")
    if reshaped:
        (y,) = builder.apply("reshape", (y,), {"shape": (8, 6, 8)}, name="shaped")
    keep = [y]
    if read_again:
        keep += builder.apply("add", (y, y), name="twice")
    return builder.build(keep=keep), keep


@pytest.fixture
def values():
    generator = np.random.default_rng(2)
    return (
        generator.standard_normal((8, 16)).astype(np.float32),
        generator.standard_normal((16, 48)).astype(np.float32),
    )


def loaded(graph, w):
    executor = Executor(mc.config.logical_device(), name="model")
    executor.load({"predict": graph}, planning.share(), {"w": w})
    return executor


@pytest.mark.parametrize("reshaped", [False, True])
def test_a_run_writes_into_the_array_and_the_peak_is_without(reshaped, values):
    x, w = values
    plain, keep = product(reshaped=reshaped)
    graph = with_results_outside(plain, keep)
    assert set(keep) < {*graph.outside} if reshaped else graph.outside == (*keep,)
    result = graph.tensors[keep[0]]
    inside, executor = loaded(plain, w), loaded(graph, w)
    array = placed(np.zeros(result.shape, np.float32))
    executor.feed("predict", "x")[...] = x
    executor.lend("predict", result.name, array)
    assert executor.run("predict")
    np.testing.assert_allclose(array.reshape(8, 48), x @ w, rtol=1e-4, atol=1e-5)
    before, after = (each.plans["predict"].peak_bytes for each in (inside, executor))
    assert before - after == array.nbytes
    report = executor.memory_report("predict", verify=True)
    assert report.measured_peak_bytes == report.predicted_peak_bytes


def test_a_run_without_an_array_is_refused(values):
    x, w = values
    graph, keep = product()
    graph = with_results_outside(graph, keep)
    executor = loaded(graph, w)
    executor.feed("predict", "x")[...] = x
    with pytest.raises(RuntimeError, match="have no array: 'y"):
        executor.run("predict")
    name = graph.tensors[keep[0]].name
    executor.lend("predict", name, placed(np.zeros((8, 48), np.float32)))
    executor.finish("predict")
    with pytest.raises(RuntimeError, match="have no array"):
        executor.run("predict")
    with pytest.raises(KeyError):
        executor.fetch("predict", name)


def unwritable():
    result = placed(np.zeros((8, 48), np.float32))
    result.flags.writeable = False
    return result


@pytest.mark.parametrize(
    "array",
    [
        placed(np.zeros((8, 48), np.float32), 4),
        placed(np.zeros((48, 8), np.float32)),
        placed(np.zeros((8, 48), np.float64)),
        placed(np.zeros((8, 96), np.float32))[:, ::2],
        unwritable(),
    ],
    ids=["address", "shape", "dtype", "strides", "unwritable"],
)
def test_another_array_is_refused(array, values):
    _, w = values
    graph, keep = product()
    executor = loaded(with_results_outside(graph, keep), w)
    with pytest.raises(ValueError, match="needs a writable, C-contiguous array"):
        executor.lend("predict", graph.tensors[keep[0]].name, array)


def test_a_result_that_an_op_reads_stays_in_the_arena():
    graph, keep = product(read_again=True)
    assert with_results_outside(graph, keep).outside == (keep[1],)


def test_a_tensor_with_bytes_in_the_arena_is_not_outside():
    graph, keep = product()
    with pytest.raises(GraphError, match="cannot lie outside"):
        replace(graph, outside=(*keep,))
    with pytest.raises(GraphError, match="cannot lie outside"):
        replace(graph, outside=(graph.find("x"),))
