"""One op on the native kernels, on arrays of its own."""

from __future__ import annotations

import numpy as np
import pytest

from memcfg import ops
from memcfg._core import Kernel, OneDNN
from memcfg.devices import OperandSpec
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.errors import MissingDependencyError

ON_LIBRARY = ("conv2d", "dense", "matmul", "lstm", "gru", "simple_rnn")


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
