"""Ops in mixed precision: cases of float32 whose activations become bfloat16."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from bfloat16 import round_to_bfloat16, widen
from kernel_cases import Room

from memcfg import ops
from memcfg.devices import OperandSpec

BIT = 2.0**-8  # half of the distance of neighbours, relative
# No operand of these can be rounded.
FLOAT32_ONLY = {"constant", "fill", "random_uniform", "one_hot"}
FLOAT32_ONLY |= {"order", "take_along", "put_along", "fourier", "next_after"}
FLOAT32_ONLY |= {"ctc_loss", "ctc_loss_gradient", "ctc_beam_search"}
FLOAT32_ONLY |= {
    "cholesky",
    "solve_triangular",
    "solve",
    "matrix_inverse",
    "determinant",
}
FLOAT32_ONLY |= {"cofactors", "slogdet", "lu_factor", "qr", "eigh", "svd"}
FLOAT32_ONLY |= {"dequantize"}
FLOAT32_ONLY.add("pseudo_inverse")


def run(table, op_type, attributes, inputs, dtypes, outputs):
    """Run one op on arrays, of bfloat16 their bits, between guards; twice."""
    specs = [
        OperandSpec(x.shape, dtype) for x, dtype in zip(inputs, dtypes, strict=True)
    ]
    made = table.make(op_type, attributes, specs, outputs)
    found = []
    for garbage in (0xFF, 0x5A):
        rooms = [Room(x.nbytes, garbage, 64) for x in inputs]
        for room, x in zip(rooms, inputs, strict=True):
            room.bytes[:] = np.ascontiguousarray(x).reshape(-1).view(np.uint8)
        rooms += [Room(spec.nbytes, garbage, 128) for spec in outputs]
        scratch = Room(made.scratch_bytes, garbage, 192)
        made.run([room.address for room in rooms], scratch.address)
        for room in [*rooms, scratch]:
            room.check_guards()
        for room, x in zip(rooms, inputs, strict=False):
            assert room.bytes.tobytes() == x.tobytes()
        found.append([room.bytes.tobytes() for room in rooms[len(inputs) :]])
    assert found[0] == found[1], "the bits depend on something else than the inputs"
    return [
        np.frombuffer(each, stored(spec.dtype)).reshape(spec.shape)
        for each, spec in zip(found[0], outputs, strict=True)
    ]


def stored(dtype):
    return np.uint16 if dtype == "bfloat16" else dtype


@dataclass
class Mixed:
    """A case of float32 in mixed precision; None if the op type has none."""

    op_type: str
    attributes: dict
    inputs: list
    dtypes: list
    outputs: list

    @staticmethod
    def of(case, more=()):
        kind = ops.op_type(case.op_type)
        own = kind.float32_inputs
        if own is None:
            return None
        pairs = [
            (round_to_bfloat16(x), "bfloat16")
            if x.dtype == np.float32 and i not in {*own, *more}
            else (x, x.dtype.name)
            for i, x in enumerate(case.inputs)
        ]
        inputs, dtypes = [x for x, _ in pairs], [dtype for _, dtype in pairs]
        specs = [ops.Spec(x.shape, d) for x, d in pairs]
        made = kind.infer(specs, case.attributes)
        outputs = [OperandSpec(tuple(each.shape), each.dtype) for each in made]
        return Mixed(case.op_type, case.attributes, inputs, dtypes, outputs)

    def meaning(self):
        """The outputs in float64, before they are rounded."""
        inputs = [
            widen(x).astype(np.float64)
            if dtype == "bfloat16"
            else x.astype(np.float64)
            if dtype == "float32"
            else x.copy()
            for x, dtype in zip(self.inputs, self.dtypes, strict=True)
        ]
        outputs = [
            np.zeros(each.shape, np.float64 if "float" in each.dtype else each.dtype)
            for each in self.outputs
        ]
        with np.errstate(all="ignore"):
            ops.op_type(self.op_type).numpy(self.attributes, inputs, outputs)
        return outputs

    def check(self, table):
        found = run(
            table, self.op_type, self.attributes, self.inputs, self.dtypes, self.outputs
        )
        for array, spec, expected in zip(
            found, self.outputs, self.meaning(), strict=True
        ):
            if spec.dtype == "bfloat16":
                size = np.nanmax(
                    np.abs(expected), initial=0, where=np.isfinite(expected)
                )
                np.testing.assert_allclose(
                    widen(array), expected, rtol=BIT * 1.02, atol=2e-5 * max(size, 1)
                )
            elif "float" in spec.dtype:
                np.testing.assert_allclose(array, expected, rtol=2e-4, atol=2e-4)
            else:
                np.testing.assert_array_equal(array, expected)


def kept(case):
    """What an op of backward, or a composite, reads in float32: parameters."""
    if case.op_type.startswith("scaled_dot_product_attention_gradient"):
        return 4, 5, *range(7, 16)
    if not case.op_type.startswith(
        ("batch_norm", "layer_norm", "bias_relu", "conv2d_", "dense_")
    ):
        return ()
    most = max(x.ndim for x in case.inputs)
    few = case.op_type == "layer_normalization_gradient"
    return [
        i
        for i, x in enumerate(case.inputs)
        if (x.ndim == 1 < most) or (few and i in (3, 4))
    ]
