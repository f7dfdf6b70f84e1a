"""Every op on every kind of kernel, in every dtype, computes what it means in NumPy.

A column is a table of kernels and a dtype. In each cell outputs are compared with the
op's meaning, each byte of an output is written, none is read before, nothing else is
touched, and an op in place has the same bits. Which columns agree to the bit:

- compiled and interpreted element-wise loops, on any number of threads;
- bfloat16 and float32, of the same numbers and rounded, for element-wise ops.
"""

from __future__ import annotations

from dataclasses import replace

import gpus
import machine
import numpy as np
import pytest
from bfloat16 import round_to_bfloat16, widen
from cuda_compiler import HostCuda
from elementwise_cases import (
    ATTRIBUTES,
    ELEMENTWISE,
    ROUGH,
    bits,
    count_outputs,
    operands_of,
    sources_of_formulas,
)
from family_cases import CPU_ONLY, EXACT, all_cases, sources_of_all
from kernel_cases import Case, check, execute
from narrow_cases import FLOAT32_ONLY, Mixed, kept, run

from memcfg import ops
from memcfg.devices import OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import MissingDependencyError
from memcfg.ops.sections import BESIDE

PLAIN = [
    kind.name
    for kind in ops.op_types()
    if kind.formula is None and kind.name not in (*CPU_ONLY, *BESIDE)
]
COUNTS = [0, 1, 7, 1003, 8192, 50001]  # elements
SHARED = 8192  # elements that several threads share
SELECTING = (  # formulas whose results are operands, constants or one rounded sum
    *("relu", "relu_gradient", "relu6", "relu6_gradient", "absolute", "masked"),
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "choose"),
    *("maximum_gradient_a", "maximum_gradient_b", "less", "less_equal", "equal"),
    *("not_equal", "where", "where_gradient_a", "where_gradient_b", "where_not"),
    *("maximum_number", "minimum_number", "less_number", "equal_number", "unequal"),
    *("clip", "clip_by_value", "hard_tanh", "hard_shrink", "prelu", "is_most"),
)


class Table:
    """A GPU's kernels, for operands of the host: they are copied there and back."""

    name = "GPU"

    def __init__(self, device):
        self.device = device
        self.algorithm = None  # the default

    def load(self, cases):
        """Compile what all of them need, at once."""
        launches = []
        for each in cases:
            specs = specs_of(each)
            for name in self.algorithms(each):
                kernel = self.device.kernels.make(*specs, name)
                launches += kernel.bind([0] * len(kernel.sizes), 0)
        self.device.kernels.load(launches)

    def algorithms(self, each):
        """The names of those of a case."""
        return [name for name, *_ in self.device.kernels.algorithms(*specs_of(each))]

    def make(self, *op):
        return Kernel(self.device, self.device.kernels.make(*op, self.algorithm))


class Kernel:
    """One of them."""

    def __init__(self, device, made):
        self.device, self.made = device, made
        self.scratch_bytes = made.scratch_bytes

    def instruction(self):
        return self

    def run(self, addresses, scratch):
        device, sizes = self.device, [nbytes for nbytes, _ in self.made.sizes]
        rows = [*zip(addresses, sizes, strict=True), (scratch, self.scratch_bytes)]
        blocks = {}  # operands at one address are one
        for address, size in rows:
            blocks.setdefault(address, device.pool.allocate(max(size, 1)))
            device._copy(blocks[address].address, address, size)
        places = [blocks[address].address for address in addresses]
        self.made.run(places, blocks[scratch].address)
        for address, size in rows:
            device._copy(address, blocks[address].address, size)


def specs_of(each):
    """An op as a table of kernels takes it."""
    inputs = [OperandSpec(x.shape, x.dtype.name) for x in each.inputs]
    outputs = [OperandSpec(*spec) for spec in each.outputs]
    return each.op_type, each.attributes, inputs, outputs


class Interpreted:
    """The CPU's kernels, whose element-wise loops run block by block."""

    def __init__(self, native):
        self.native = native

    def make(self, op_type, attributes, inputs, outputs):
        more = {**attributes, "interpreted": 1}
        return self.native.make(op_type, more, inputs, outputs)


def native():
    try:
        return kernel_table("onednn")
    except MissingDependencyError as error:
        pytest.skip(str(error))


def table_of_gpu():
    """A table of everything on the GPU of this machine."""
    table = Table(gpus.made(gpus.real()))
    cases = [each for rows in all_cases().values() for each in rows]
    named = [each for n in ELEMENTWISE for each in elementwise_cases(n, COUNTS[-1])]
    table.load([*cases, *named])
    return table


TABLES = {
    "native": native,
    "interpreted": lambda: Interpreted(native()),
    "CUDA on the host": lambda: HostCuda(sources_of_all()),
    "CUDA of formulas on the host": lambda: HostCuda(sources_of_formulas()),
    "GPU": table_of_gpu,
}
GPU = pytest.param("GPU", "float32", marks=pytest.mark.gpu)


@pytest.fixture(scope="module")
def tables():
    """Tables by their names, made when they are first asked for."""
    made = {}

    def get(name):
        if name not in made:
            made[name] = TABLES[name]()
        return made[name]

    return get


def elementwise_cases(name, count):
    """An op over so many elements, with each setting of its own."""
    kind = ops.op_type(name)
    outputs = [((count,), "float32")] * count_outputs(kind)
    for nesterov in (False, True) if name.startswith("sgd_momentum") else (False,):
        attributes = {**ATTRIBUTES, "nesterov": nesterov}
        yield Case(name, operands_of(kind, count), outputs, attributes)


def pairs_in_place(kind):
    """Which outputs may take the place of which inputs, at once."""
    if kind.formula.state:
        return [{output: source for source, output in kind.in_place}]
    return [{output: source} for source, output in kind.in_place]


def floats(outputs):
    return [np.frombuffer(each, np.float32) for each in outputs]


def check_elementwise(table, each):
    kind = ops.op_type(each.op_type)
    results = floats(execute(table, each, 0xFF, 64))
    expected = [np.empty_like(x) for x in results]
    with np.errstate(all="ignore"):
        kind.numpy(each.attributes, each.inputs, expected)
    rough = each.op_type.startswith(ROUGH)
    rtol, atol = (1e-4, 1e-5) if rough else (1e-5, 1e-30)
    if each.op_type.startswith("ftrl"):
        atol = 1e-4  # it subtracts powers of nearly equal sums
    for one, meaning in zip(results, expected, strict=True):
        if each.op_type in SELECTING:
            np.testing.assert_array_equal(one, meaning)
        else:
            np.testing.assert_allclose(one, meaning, rtol=rtol, atol=atol)
    return results


def check_bits(table, each):
    """Compare the bits of one thread with those of three, also in place."""
    results = floats(execute(table, each, 0xFF, 64))
    with machine.threads(3):
        for pairs in [{}, *pairs_in_place(ops.op_type(each.op_type))]:
            again = floats(execute(table, replace(each, pairs=pairs), 0x5A, 0))
            assert [*map(bits, again)] == [*map(bits, results)]


def check_narrow_elementwise(table, each):
    """Compare with the float32 loop on the same numbers, rounded."""
    known = ops.op_type(each.op_type).formula.defaults
    own = {name: each.attributes.get(name, value) for name, value in known.items()}
    mixed = Mixed.of(replace(each, attributes=own))
    narrow = run(table, each.op_type, own, mixed.inputs, mixed.dtypes, mixed.outputs)
    wide = [
        widen(x) if dtype == "bfloat16" else x
        for x, dtype in zip(mixed.inputs, mixed.dtypes, strict=True)
    ]
    outputs = [OperandSpec(spec.shape, "float32") for spec in mixed.outputs]
    dtypes = [x.dtype.name for x in wide]
    expected = run(table, each.op_type, own, wide, dtypes, outputs)
    for array, value in zip(narrow, expected, strict=True):
        np.testing.assert_array_equal(widen(array), widen(round_to_bfloat16(value)))


def check_family(table, op_type):
    exact = op_type in EXACT
    for each in all_cases()[op_type]:
        if table.name == "onednn" and (op_type, each.outputs[0][1]) == (
            "fill",
            "int32",
        ):
            continue  # the CPU fills floats
        on_gpu = table.name == "GPU"
        for algorithm in table.algorithms(each) if on_gpu else [None]:
            if on_gpu:
                table.algorithm = algorithm
            with np.errstate(all="ignore"):
                check(table, each, exact=exact)
                for source, target in ops.op_type(op_type).in_place:
                    check(table, replace(each, pairs={target: source}), exact=exact)


@pytest.mark.parametrize("op_type", PLAIN)
@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        ("native", "float32"),
        ("native", "bfloat16"),
        ("CUDA on the host", "float32"),
        GPU,
    ],
)
def test_an_op_computes_what_it_means(tables, op_type, kernels, dtype):
    table = tables(kernels)
    if dtype == "float32":
        check_family(table, op_type)
    elif op_type not in FLOAT32_ONLY:
        for case in all_cases()[op_type]:
            mixed = Mixed.of(case, kept(case))
            if mixed is not None:
                mixed.check(table)


def is_absent(cell):
    """Whether there is no such kernel, or no need to ask a GPU for it.

    Updates are of float32, and the CPU's kernels have elements. A GPU's sources are
    the ones that run on the host with every count.
    """
    if cell["kernels"] == "GPU" and cell["count"] != 1003:
        return True
    if cell["dtype"] == "bfloat16" and ops.op_type(cell["op_type"]).formula.state:
        return True
    return cell["count"] == 0 and cell["kernels"] in ("native", "interpreted")


@pytest.mark.strength(2, unless=is_absent)
@pytest.mark.parametrize("op_type", ELEMENTWISE)
@pytest.mark.parametrize(
    ("kernels", "dtype"),
    [
        ("native", "float32"),
        ("native", "bfloat16"),
        ("interpreted", "float32"),
        ("CUDA of formulas on the host", "float32"),
        GPU,
    ],
)
@pytest.mark.parametrize("count", COUNTS)
def test_an_elementwise_op_computes_what_it_means(
    tables, op_type, kernels, dtype, count
):
    table = tables(kernels)
    if kernels == "GPU":
        table.algorithm = None  # the default
    for each in elementwise_cases(op_type, count):
        if dtype == "bfloat16":
            check_narrow_elementwise(table, each)
            continue
        results = check_elementwise(table, each)
        check_bits(table, each)
        if kernels == "interpreted":
            compiled = floats(execute(tables("native"), each, 0xFF, 64))
            assert [*map(bits, compiled)] == [*map(bits, results)]
    if kernels in ("native", "interpreted") and dtype == "float32" and count < SHARED:
        for each in elementwise_cases(op_type, SHARED):
            check_bits(table, each)


def test_some_ops_on_what_stands_in_for_a_gpu():
    """So that what runs on a GPU has been run."""
    normalization = ("batch_moments", "batch_normalization")
    plain = ("softmax", *normalization, "norm", "cast", "conv2d", "lstm")
    named = [
        each
        for name in ("adam", "gelu", "add")
        for count in (0, 70)
        for each in elementwise_cases(name, count)
    ]
    table = Table(gpus.made(gpus.stand_in()))
    table.load([*(each for name in plain for each in all_cases()[name]), *named])
    for name in plain:
        check_family(table, name)
    table.algorithm = None
    for each in named:
        check_elementwise(table, each)
    assert table.device.pool.stats().current_bytes == 0
