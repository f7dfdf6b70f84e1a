"""Products by cuBLASLt: its C ABI, on a double that checks it and computes."""

from __future__ import annotations

import ctypes
import gc
import importlib.metadata
import os
import re
import warnings
from pathlib import Path

import cublaslt_stand_in as double
import cuda_stand_in
import cudnn_stand_in
import gpus
import numpy as np
import pytest

import memcfg as mc
import memcfg.workspaces  # before `logical_device`, which it imports, is replaced
from memcfg import plan as planning
from memcfg._core import CudaInfo, CudaStream
from memcfg.devices import OperandSpec
from memcfg.devices.cuda.libraries import _cublaslt
from memcfg.devices.cuda.libraries._cublaslt import (
    CONSTANTS,
    Choice,
    describe_product,
    find_cublaslt,
)
from memcfg.errors import KernelError, MissingDependencyError
from memcfg.ops import op_type


@pytest.fixture
def device():
    """A GPU of a fresh library."""
    yield gpus.made(gpus.fresh(load_products=double.load))
    double.fail(False)
    cuda_stand_in.late(0)


def op_of(kind, attributes, shapes):
    *inputs, output = (OperandSpec(shape, "float32") for shape in shapes)
    return kind, attributes, inputs, [output]


DENSE = op_of("dense", {}, [(4, 8), (8, 4), (4, 4)])
DEEP = op_of("dense", {}, [(5, 70), (70, 6), (5, 6)])  # which needs scratch


def multiply(device, op, algorithm=None, values=None):
    """Run an op on random operands in a program: what it gives, and the operands."""
    inputs, outputs = op[2:]
    kernel = device.kernels.make(*op, algorithm)
    rng = np.random.default_rng(0)
    values = values or [
        rng.standard_normal(spec.shape).astype(np.float32) for spec in inputs
    ]
    sizes = [-(-spec.nbytes // 64) * 64 for spec in (*inputs, *outputs)]
    places = [64 + sum(sizes[:i]) for i in range(len(sizes) + 1)]
    arena = device.pool.arena(tag="test")
    arena.grow(places[-1] + -(-kernel.scratch_bytes // 64) * 64)
    for place, value in zip(places, values, strict=False):
        device.write(arena, place, value)
    program = device.program(arena, {})
    scratch = places[-1] if kernel.scratch_bytes else None
    program.compute(kernel.instruction(), places[:-1], sizes, scratch)
    for _ in range(3):  # call by call, and as a graph
        device.zero(arena, places[-2], sizes[-1])
        assert program.run() == -1
    found = np.empty(outputs[0].shape, np.float32)
    device.read(arena, places[-2], found)
    return found, values


PIXELS = {
    "strides": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilation": (1, 2),
    "groups": 1,
}
CASES = [
    ("dense", {}, [(4, 8), (8, 4), (4, 4)]),
    ("dense", {}, [(2, 3, 5), (5, 7), (2, 3, 7)]),
    ("dense", {}, [(1, 70), (70, 1), (1, 1)]),
    ("dense_gradient_kernel", {}, [(6, 3), (6, 5), (3, 5)]),
    ("dense_gradient_kernel", {}, [(20, 4, 3), (20, 4, 5), (3, 5)]),
    ("dense_gradient_input", {}, [(3, 5), (6, 5), (6, 3)]),
    ("dense_gradient_input", {}, [(3, 80), (2, 6, 80), (2, 6, 3)]),
    ("matmul", {}, [(3, 4, 5), (3, 5, 6), (3, 4, 6)]),
    ("matmul", {}, [(2, 3, 4, 65), (2, 3, 65, 2), (2, 3, 4, 2)]),
    ("matmul", {}, [(3, 4, 5), (5, 6), (3, 4, 6)]),
    ("matmul", {"transpose_b": True}, [(3, 4, 5), (6, 5), (3, 4, 6)]),
    ("matmul", {"transpose_a": True}, [(3, 5, 4), (3, 5, 6), (3, 4, 6)]),
    ("matmul", {"transpose_b": True}, [(3, 4, 5), (3, 6, 5), (3, 4, 6)]),
    (
        *("matmul", {"transpose_a": True, "transpose_b": True}),
        [(3, 5, 4), (3, 6, 5), (3, 4, 6)],
    ),
    ("matmul", {"transpose_a": True}, [(5, 4), (5, 6), (4, 6)]),
    ("conv2d", PIXELS, [(2, 3, 5, 4), (1, 1, 4, 6), (2, 3, 5, 6)]),
    ("dense_bias", {}, [(4, 8), (8, 5), (5,), (4, 5)]),
    ("dense_bias", {}, [(2, 3, 70), (70, 6), (6,), (2, 3, 6)]),
    ("conv2d_bias", PIXELS, [(2, 3, 5, 4), (1, 1, 4, 6), (6,), (2, 3, 5, 6)]),
    (
        *("conv2d_gradient_kernel", {**PIXELS, "kernel_shape": (1, 1, 4, 6)}),
        [(2, 7, 5, 4), (2, 7, 5, 6), (1, 1, 4, 6)],
    ),
    (
        *("conv2d_gradient_input", {**PIXELS, "input_shape": (2, 3, 5, 4)}),
        [(1, 1, 4, 6), (2, 3, 5, 6), (2, 3, 5, 4)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_those_of_numpy(device, case):
    op = op_of(*case)
    cuda_stand_in.late(7)
    found, values = multiply(device, op)
    expected = np.empty_like(found)
    op_type(op[0]).numpy(op[1], values, [expected])
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    again, _ = multiply(device, op)
    assert again.tobytes() == found.tobytes()


def test_biases_of_one_shape_are_each_products_own(device):
    """They share a description, which names the bias."""
    op = op_of("dense_bias", {}, [(4, 8), (8, 5), (5,), (4, 5)])
    values = [np.ones(spec.shape, np.float32) for spec in op[2]]
    for number in (1.0, 2.5, np.nan):
        values[2] = np.full(5, number, np.float32)
        found, _ = multiply(device, op, "cublaslt", values)
        np.testing.assert_array_equal(found, np.full((4, 5), 8 + number, np.float32))


@pytest.mark.parametrize("columns", [11, 13], ids=["without a bias", "at all"])
def test_a_bias_that_it_does_not_add_is_a_kernel_of_its_own(device, columns):
    """The double multiplies matrices of 11 columns, of 13 not even that."""
    shapes = [(4, 70), (70, columns), (columns,), (4, columns)]
    op = op_of("dense_bias", {}, shapes)
    listed = device.kernels.algorithms(*op)
    wanted = [
        ("cublaslt+bias", 4 * 4 * columns + 256, 0.0),
        ("cublaslt:0+bias", 0, 0.0),
    ]
    wanted = wanted if columns == 11 else []
    assert listed[:-1] == wanted
    assert listed[-1][0] == "cuda"
    cuda_stand_in.late(7)
    found, values = multiply(device, op)
    expected = values[0] @ values[1] + values[2]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "shapes"),
    [
        ({"strides": (1, 2)}, [(2, 3, 5, 4), (1, 1, 4, 6), (2, 3, 3, 6)]),
        ({"padding": ((0, 0), (0, 1))}, [(2, 3, 5, 4), (1, 1, 4, 6), (2, 3, 6, 6)]),
        ({"groups": 2}, [(2, 3, 5, 4), (1, 1, 2, 6), (2, 3, 5, 6)]),
        ({}, [(2, 3, 5, 4), (2, 1, 4, 6), (2, 2, 5, 6)]),
    ],
    ids=["strides", "padding", "groups", "window"],
)
def test_other_convolutions_are_no_products(device, changes, shapes):
    op = op_of("conv2d", {**PIXELS, **changes}, shapes)
    assert describe_product(*op) is None
    assert device.kernels.make(*op).algorithm == "cuda"


def test_a_convolution_of_pixels_is_cublaslts_before_it_is_cudnns():
    device = gpus.made(
        gpus.fresh(
            load_products=double.load, load_convolutions=cudnn_stand_in.StandIn().load
        )
    )
    op = op_of("conv2d", PIXELS, [(2, 3, 5, 4), (1, 1, 4, 6), (2, 3, 5, 6)])
    names = [name for name, _, _ in device.kernels.algorithms(*op)]
    assert [names[0], names[1][:6], names[-1]] == ["cublaslt", "cudnn:", "cuda"]


def test_algorithms_are_listed_with_their_scratch(device):
    listed = device.kernels.algorithms(*DEEP)
    assert listed[0] == ("cublaslt", 4 * 5 * 6 + 256, 0.0)
    assert listed[1] == ("cublaslt:0", 0, 0.0)
    assert [name for name, _, _ in listed] == ["cublaslt", "cublaslt:0", "cuda"]
    few = device.kernels.algorithms(*DENSE)
    assert few[0] == ("cublaslt", 0, 0.0)
    assert [name for name, _, _ in few] == ["cublaslt", "cuda"]
    deeper = op_of("dense", {}, [(5, 200), (200, 6), (5, 6)])  # only with workspace
    assert [row[0] for row in device.kernels.algorithms(*deeper)] == [
        "cublaslt",
        "cuda",
    ]
    first, values = multiply(device, DEEP)
    frugal, _ = multiply(device, DEEP, "cublaslt:0", values)
    np.testing.assert_allclose(first, frugal, rtol=1e-5, atol=1e-5)
    for op in (DENSE, DEEP):
        by_library, values = multiply(device, op)
        before = double.counted("products")
        generated, _ = multiply(device, op, "cuda", values)
        assert double.counted("products") == before
        np.testing.assert_allclose(by_library, generated, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "op",
    [
        op_of("dense", {}, [(4, 8), (8, 13), (4, 13)]),  # the double has none
        op_of("dense", {}, [(2900, 64), (64, 2900), (2900, 2900)]),  # only with more
        op_of("add", {}, [(4,), (4,), (4,)]),
    ],
    ids=["unsupported", "scratch", "another"],
)
def test_where_it_has_no_algorithm_kernels_are_generated(device, op):
    assert [name for name, _, _ in device.kernels.algorithms(*op)] == ["cuda"]
    assert device.kernels.make(*op).algorithm == "cuda"
    with pytest.raises(KernelError, match="no algorithm 'cublaslt'"):
        device.kernels.make(*op, "cublaslt")


def test_an_empty_product_is_none_of_its():
    assert describe_product(*op_of("dense", {}, [(0, 8), (8, 4), (0, 4)])) is None


def test_an_algorithm_is_chosen_once_for_a_shape(device):
    before = double.counted("searches")
    for _ in range(3):
        device.kernels.make(*DENSE)
        device.kernels.algorithms(*DENSE)
    assert double.counted("searches") == before + 1


@pytest.mark.parametrize(
    ("capability", "mebibytes"), [(75, 4), (80, 4), (89, 4), (90, 32), (120, 32)]
)
def test_its_workspace_is_what_nvidia_recommends(capability, mebibytes):
    gpu = CudaInfo("a GPU", 1 << 34, capability, True)
    assert _cublaslt.workspace_limit(gpu) == mebibytes << 20


def test_all_that_was_made_goes_back():
    gc.collect()  # what earlier tests had
    before = double.counted("alive")
    device = gpus.made(gpus.fresh(load_products=double.load))
    multiply(device, DEEP)
    assert double.counted("alive") == before + 7
    device.kernels.make(*DENSE)
    assert double.counted("alive") == before + 11  # two preferences are enough
    del device
    gc.collect()
    assert double.counted("alive") == before


def test_it_goes_when_its_products_are_done(device):
    """As the collector has it: amid the work of others, and behind its own."""
    context = device.kernels.modules.context
    library = double.load(context)
    (chosen,) = library.choices(describe_product(*DENSE))
    block = device.pool.allocate(1 << 12, tag="test")
    stream = CudaStream(context)
    cuda_stand_in.late(3)
    places = [block.address + 1024 * i for i in range(3)]
    for bound in chosen.bind(places, 0):
        bound.issue(stream)
    before = double.counted("alive")
    del library, chosen, bound
    gc.collect()
    assert double.counted("alive") < before
    stream.synchronize()


def test_a_failure_names_the_call(device):
    kernel = device.kernels.make(*DENSE)
    double.fail(True)
    with pytest.raises(KernelError, match="cublasLtMatmul: CUBLAS_STATUS_EXEC"):
        kernel.run([64, 64, 64], 0)


def test_tf32_is_on_request(monkeypatch, device):
    exact, values = multiply(device, DENSE)
    np.testing.assert_allclose(exact, values[0] @ values[1], rtol=1e-5, atol=1e-5)
    monkeypatch.setenv("MEMCFG_CUDA_TF32", "1")
    other = gpus.made(gpus.fresh(load_products=double.load))
    short, _ = multiply(other, DENSE, values=values)
    error = np.abs(short - exact).max()
    assert 1e-5 < error < 1e-2
    monkeypatch.setenv("MEMCFG_CUDA_TF32", "yes")
    third = gpus.made(gpus.fresh(load_products=double.load))
    with pytest.raises(KernelError, match="MEMCFG_CUDA_TF32 is 'yes'; it takes 0 or 1"):
        third.kernels.make(*DENSE)


# -- training ------------------------------------------------------------


def train(device, monkeypatch, policy):
    monkeypatch.setattr(mc.config, "logical_device", lambda name=None: device)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 12)).astype(np.float32)
    y = rng.integers(0, 3, 48)
    mc.nn.set_random_seed(0)
    layers = [mc.nn.Dense(16, activation="relu") for _ in range(3)]
    model = mc.nn.Sequential([*layers, mc.nn.Dense(3)])
    loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, memory=policy)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0, seed=0)
    found = [np.float32(history.history["loss"]), *model.get_weights()]
    model.close()
    return [each.tobytes() for each in found]


def test_training_has_the_same_bits_in_every_policy(device, monkeypatch):
    before = double.counted("products")
    first = train(device, monkeypatch, planning.share())
    issued = double.counted("products") - before
    # 4 forward, 4 for kernels and 3 for inputs; a run, and a capture
    assert issued == 2 * 11
    for policy in (planning.keep_all(), planning.sqrt_checkpoint()):
        cuda_stand_in.late(3)
        assert train(device, monkeypatch, policy) == first
    monkeypatch.setenv("MEMCFG_CUDA_GRAPHS", "0")
    before = double.counted("products")
    assert train(device, monkeypatch, planning.share()) == first
    assert double.counted("products") - before == 12 * 11


# -- the library ------------------------------------------------------------


@pytest.fixture
def no_library(monkeypatch):
    """No package has it, and the loader finds none."""

    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    def load(name):
        raise OSError(name)

    monkeypatch.setattr(importlib.metadata, "files", missing)
    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.delenv("MEMCFG_CUBLASLT_LIBRARY", raising=False)
    monkeypatch.setattr(_cublaslt, "_told", set())


def test_a_missing_library_is_told_once(no_library):
    devices = [
        gpus.made(gpus.fresh(load_products=_cublaslt.load_cublaslt)) for _ in range(2)
    ]
    with pytest.warns(RuntimeWarning, match="pip install nvidia-cublas`") as told:
        made = [device.kernels.make(*DENSE) for device in devices]
    assert [kernel.algorithm for kernel in made] == ["cuda", "cuda"]
    assert "cuBLASLt" not in devices[0].describe_kernels()
    assert len(told) == 1
    assert "MEMCFG_CUBLASLT_LIBRARY=none" in str(told[0].message)


def test_nothing_is_looked_for_before_the_first_product(no_library):
    device = gpus.made(gpus.fresh(load_products=_cublaslt.load_cublaslt))
    device.kernels.algorithms(*op_of("add", {}, [(4,), (4,), (4,)]))


def test_generated_kernels_can_be_asked_for(no_library, monkeypatch):
    monkeypatch.setenv("MEMCFG_CUBLASLT_LIBRARY", "none")
    device = gpus.made(gpus.fresh(load_products=_cublaslt.load_cublaslt))
    with warnings.catch_warnings(action="error"):
        assert device.kernels.make(*DENSE).algorithm == "cuda"


def test_a_library_can_be_named(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMCFG_CUBLASLT_LIBRARY", double.cublaslt_path())
    device = gpus.made(gpus.fresh(load_products=_cublaslt.load_cublaslt))
    assert device.kernels.make(*DENSE).algorithm == "cublaslt"
    assert "matrix products by cuBLASLt 13.1.2 (" in device.describe_kernels()
    for path, words in ((tmp_path / "no.so", "not a file"), (__file__, "be loaded")):
        monkeypatch.setenv("MEMCFG_CUBLASLT_LIBRARY", str(path))
        device = gpus.made(gpus.fresh(load_products=_cublaslt.load_cublaslt))
        with pytest.raises(KernelError, match=words):
            device.kernels.make(*DENSE)


def test_a_package_has_the_library(monkeypatch, tmp_path):
    class File(type(Path())):
        def locate(self):
            return tmp_path / self

    def files(package):
        if package != "nvidia-cublas-cu12":
            raise importlib.metadata.PackageNotFoundError(package)
        return [File("nvidia/cublas/lib/libcublasLt.so.12")]

    path = tmp_path / "nvidia/cublas/lib/libcublasLt.so.12"
    path.parent.mkdir(parents=True)
    path.touch()
    monkeypatch.setattr(importlib.metadata, "files", files)
    assert find_cublaslt(12040) == str(path)
    with pytest.raises(MissingDependencyError, match="nvidia-cublas-cu12"):
        find_cublaslt(11080)  # of which both are too new


def test_numbers_are_those_of_the_header():
    folders = [
        *os.environ.get("CPATH", "").split(os.pathsep),
        "/usr/local/cuda/include",
    ]
    found = [Path(each) for each in folders if Path(each, "cublasLt.h").is_file()]
    if not found:
        pytest.skip("needs cublasLt.h")
    names = ("cublasLt.h", "cublas_api.h", "library_types.h")
    paths = (Path(folder, name) for name in names for folder in [*found, *folders])
    text = "\n".join(path.read_text() for path in paths if path.is_file())
    for name, value in CONSTANTS.items():
        numbers = re.findall(rf"\b{name}\s*=\s*(\d+)", text)
        assert set(map(int, numbers)) == {value}, name
    assert ctypes.sizeof(Choice) == 96
