"""All kernels on a GPU; and some on the driver that stands in for one."""

from __future__ import annotations

from dataclasses import replace

import gpus
import numpy as np
import pytest
from elementwise_cases import ATTRIBUTES, ROUGH, bits, count_outputs, operands_of
from family_cases import CPU_ONLY, EXACT, all_cases
from kernel_cases import Case, check, execute

from memcfg import ops
from memcfg.devices import OperandSpec

PLAIN = [
    kind.name
    for kind in ops.op_types()
    if kind.formula is None and kind.name not in CPU_ONLY
]
ELEMENTWISE = [kind.name for kind in ops.op_types() if kind.formula is not None]


class Table:
    """A GPU's kernels, for operands of the host: they are copied there and back."""

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


def elementwise_case(name, count=1000):
    kind = ops.op_type(name)
    outputs = [((count,), "float32")] * count_outputs(kind)
    return Case(name, operands_of(kind, count), outputs, ATTRIBUTES)


def check_elementwise(table, each):
    kind = ops.op_type(each.op_type)
    found = [np.frombuffer(x, np.float32) for x in execute(table, each, 0xFF, 64)]
    expected = [np.empty_like(x) for x in found]
    with np.errstate(all="ignore"):
        kind.numpy(each.attributes, each.inputs, expected)
    for one, meaning in zip(found, expected, strict=True):
        rough = each.op_type.startswith(ROUGH)
        rtol, atol = (1e-4, 1e-5) if rough else (1e-5, 1e-30)
        np.testing.assert_allclose(one, meaning, rtol=rtol, atol=atol)
    pairs = {output: source for source, output in reversed(kind.in_place)}
    again = execute(table, replace(each, pairs=pairs), 0x5A, 0)
    assert [bits(np.frombuffer(x, np.float32)) for x in again] == list(map(bits, found))


def check_family(table, op_type):
    for each in all_cases()[op_type]:
        for algorithm in table.algorithms(each):
            table.algorithm = algorithm
            exact = op_type in EXACT
            with np.errstate(all="ignore"):
                check(table, each, exact=exact)
                for source, target in ops.op_type(op_type).in_place:
                    check(table, replace(each, pairs={target: source}))


@pytest.fixture(scope="module")
def gpu():
    """A table of everything on the GPU of this machine."""
    table = Table(gpus.made(gpus.real()))
    cases = [each for rows in all_cases().values() for each in rows]
    table.load([*cases, *map(elementwise_case, ELEMENTWISE)])
    return table


@pytest.mark.gpu
@pytest.mark.parametrize("op_type", PLAIN)
def test_an_op_on_a_gpu_computes_what_it_means(gpu, op_type):
    check_family(gpu, op_type)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_an_elementwise_op_on_a_gpu_computes_what_it_means(gpu, name):
    gpu.algorithm = None
    check_elementwise(gpu, elementwise_case(name))


def test_some_ops_on_what_stands_in_for_one():
    """So that what runs on a GPU has been run."""
    normalization = ("batch_moments", "batch_normalization")
    plain = ("softmax", *normalization, "norm", "cast", "conv2d", "lstm")
    named = [elementwise_case(name, 70) for name in ("adam", "gelu", "add")]
    table = Table(gpus.made(gpus.stand_in()))
    table.load([*(each for name in plain for each in all_cases()[name]), *named])
    for name in plain:
        check_family(table, name)
    table.algorithm = None
    for each in named:
        check_elementwise(table, each)
    assert table.device.pool.stats().current_bytes == 0
