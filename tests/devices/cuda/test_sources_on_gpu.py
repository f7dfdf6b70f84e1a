"""The CUDA of all ops on a GPU; and of some on the driver that stands in for one."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
from cuda_compiler import compile_on_host, compile_with_nvcc
from cuda_stand_in import stand_in
from elementwise_cases import ATTRIBUTES, ROUGH, bits, count_outputs, operands_of
from family_cases import EXACT, all_cases, source_of
from kernel_cases import Case, check, execute

from memcfg import ops
from memcfg._core import CudaContext, CudaDriver, CudaModule, CudaStream
from memcfg.devices.cuda._sources import cuda_source
from memcfg.errors import MissingDependencyError
from memcfg.memory import Pool

PLAIN = [kind.name for kind in ops.op_types() if kind.formula is None]
ELEMENTWISE = [kind.name for kind in ops.op_types() if kind.formula is not None]


class Table:
    """Kernels that copy their operands to a device and back."""

    def __init__(self, path):
        self.driver = CudaDriver(path)
        self.capability = self.driver.info(0).capability
        self.context = CudaContext(self.driver, 0)
        self.stream = CudaStream(self.context)
        self.pool = Pool(self.context.resource())
        self.functions = {}

    def load(self, sources, compile_):
        """Compile sources, all at once."""
        text = "".join(dict.fromkeys(source.text for source in sources))
        module = CudaModule(self.context, compile_(text))
        for source in sources:
            for launch in source.launches:
                self.functions[launch.function] = module.function(launch.function)

    def make(self, op_type, attributes, inputs, outputs):
        source = cuda_source(op_type, attributes, inputs, outputs)
        return Kernel(self, source, [spec.nbytes for spec in (*inputs, *outputs)])


class Kernel:
    """One of them."""

    def __init__(self, table, source, sizes):
        self.table, self.source, self.sizes = table, source, sizes
        self.scratch_bytes = source.scratch_bytes

    def instruction(self):
        return self

    def run(self, addresses, scratch):
        table, stream = self.table, self.table.stream
        rows = [*zip(addresses, self.sizes, strict=True), (scratch, self.scratch_bytes)]
        blocks = {}  # operands at one address are one
        for address, size in rows:
            blocks.setdefault(address, table.pool.allocate(max(size, 1)))
            stream.copy(blocks[address].address, address, size)
        places = [blocks[address].address for address in addresses]
        for launch in self.source.launches:
            function = table.functions[launch.function]
            packed = launch.pack(places, blocks[scratch].address)
            stream.launch(
                function, launch.grid, launch.block, launch.shared_bytes, *packed
            )
        for address, size in rows:
            stream.copy(address, blocks[address].address, size)
        stream.synchronize()


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
        with np.errstate(all="ignore"):
            check(table, each, exact=op_type in EXACT)
            for source, target in ops.op_type(op_type).in_place:
                check(table, replace(each, pairs={target: source}))


@pytest.fixture(scope="module")
def gpu():
    """A table of everything on the GPU of this machine."""
    try:
        ctypes.CDLL("libcuda.so.1")
        table = Table("libcuda.so.1")
    except (OSError, MissingDependencyError) as error:
        pytest.skip(f"needs a GPU: {error}")
    cases = [each for rows in all_cases().values() for each in rows]
    cases += [elementwise_case(name) for name in ELEMENTWISE]
    sources = [source_of(each) for each in cases]
    table.load(sources, lambda text: compile_with_nvcc(text, f"sm_{table.capability}"))
    return table


def failures(check_one, names):
    """Check all of them; return what those that fail say."""
    found = {}
    for name in names:
        try:
            check_one(name)
        except AssertionError as error:
            found[name] = str(error)[-500:]
    return found


@pytest.mark.gpu
def test_ops_on_a_gpu(gpu):
    assert failures(lambda name: check_family(gpu, name), PLAIN) == {}


@pytest.mark.gpu
def test_elementwise_ops_on_a_gpu(gpu):
    def check_one(name):
        check_elementwise(gpu, elementwise_case(name))

    assert failures(check_one, ELEMENTWISE) == {}


def test_some_ops_on_what_stands_in_for_one():
    """So that what runs on a GPU has been run."""
    plain = ("softmax", "batch_normalization", "norm", "cast", "conv2d", "lstm")
    named = [elementwise_case(name, 70) for name in ("adam", "gelu", "add")]
    with stand_in() as path:
        table = Table(path)
        cases = [each for name in plain for each in all_cases()[name][:2]]
        table.load(
            [source_of(each) for each in (*cases, *named)],
            lambda text: bytes(compile_on_host(text)),
        )
        for each in cases:
            with np.errstate(all="ignore"):
                check(table, each)
        for each in named:
            check_elementwise(table, each)
        del table
