"""One op on the native kernels, on arrays of its own."""

from __future__ import annotations

from functools import cache

import machine
import numpy as np
import pytest
from internals import find_onednn

from memcfg import ops
from memcfg._core import Kernel, OneDNN, list_algorithms, make_packing
from memcfg.devices import OperandSpec
from memcfg.errors import MissingDependencyError

__all__ = [
    "check_on_threads",
    "list_algorithms",
    "make_packing",
    "onednn",
    "products_depend_on_threads",
    "run_kernel",
]
ON_LIBRARY = ("conv2d", "conv3d", "dense", "matmul", "lstm", "gru", "simple_rnn")


def onednn():
    """The library, or a skip."""
    try:
        return OneDNN(find_onednn())
    except MissingDependencyError as error:
        pytest.skip(str(error))


def run_kernel(name, inputs, shapes, attributes=(), pairs=(), dtypes=()):
    """Return the outputs; `pairs` has input -> output that share their memory."""
    library = onednn() if name.startswith(ON_LIBRARY) else None
    dtypes = [*dtypes, *["float32"] * (len(shapes) - len(dtypes))]
    kernel = Kernel(
        name,
        ops.op_type(name).kernel_attributes(dict(attributes)),
        [OperandSpec(x.shape, x.dtype.name) for x in inputs],
        [OperandSpec(*each) for each in zip(shapes, dtypes, strict=True)],
        library,
    )
    arrays = [np.array(x) for x in inputs]
    outputs = [
        np.full(shape, np.nan if dtype.startswith("float") else 77, dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    for place, output in dict(pairs).items():
        outputs[output] = arrays[place]
    scratch = np.full(kernel.scratch_bytes + 64, 0xFF, np.uint8)
    start = -scratch.ctypes.data % 64
    operands = [*arrays, *outputs]
    kernel.run([x.ctypes.data for x in operands], scratch.ctypes.data + start)
    return outputs


@cache
def products_depend_on_threads():
    """Whether oneDNN divides the sums of a product by threads here, as with AVX2."""
    generator = np.random.default_rng(0)
    found = []
    for m, k, n in ((40, 132, 33), (280, 132, 33), (600, 90, 3000)):
        a, b = (
            generator.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n))
        )
        for threads in (1, 2, 3):
            with machine.threads(threads):
                found.append(run_kernel("matmul", [a, b], [(m, n)])[0])
    groups = (found[place : place + 3] for place in range(0, len(found), 3))
    return any(not np.array_equal(group[0], each) for group in groups for each in group)


def check_on_threads(found, expected):
    """Compare outputs of other numbers of threads: as equal as products are."""
    for a, b in zip(found, expected, strict=True):
        if products_depend_on_threads():
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())
        else:
            np.testing.assert_array_equal(a, b)
