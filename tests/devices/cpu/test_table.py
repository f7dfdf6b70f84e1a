"""Which kernels are chosen, and what is said when they cannot be."""

from __future__ import annotations

import importlib.metadata

import numpy as np
import pytest
from kernels import onednn

from memcfg.devices import CpuDevice, OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError, MissingDependencyError


@pytest.fixture
def without_onednn(monkeypatch):
    def files(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.delenv("MEMCFG_ONEDNN_LIBRARY", raising=False)
    monkeypatch.setattr(importlib.metadata, "files", files)


def test_the_reference_can_be_asked_for(monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "reference")
    assert kernel_table().name == "reference"
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    assert kernel_table("reference").name == "reference"


@pytest.mark.parametrize("choice", ["auto", "onednn", ""])
def test_onednn_is_used_where_it_is_found(monkeypatch, choice):
    onednn()
    monkeypatch.setenv("MEMCFG_KERNELS", choice)
    assert kernel_table().name == "onednn"


def test_an_unknown_choice_is_refused(monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "mkl")
    with pytest.raises(KernelError, match="'mkl'; it takes one of auto, onednn"):
        kernel_table()


@pytest.mark.usefixtures("without_onednn")
def test_auto_falls_back_with_a_warning_that_says_what_to_install(monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "auto")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.warns(RuntimeWarning, match="pip install onednn-cpu-gomp"):
        assert kernel_table().name == "blas"


@pytest.mark.usefixtures("without_onednn")
def test_where_there_is_no_onednn_blas_needs_no_warning(monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "auto")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert kernel_table().name == "blas"


@pytest.mark.usefixtures("without_onednn")
def test_onednn_that_is_required_and_absent_is_an_error(monkeypatch):
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    with pytest.raises(MissingDependencyError, match="pip install onednn-cpu-gomp"):
        kernel_table()


@pytest.mark.parametrize("choice", ["auto", "onednn"])
def test_a_named_file_that_is_not_there_is_never_replaced(monkeypatch, choice):
    monkeypatch.setenv("MEMCFG_KERNELS", choice)
    monkeypatch.setenv("MEMCFG_ONEDNN_LIBRARY", "/nowhere/libdnnl.so.3")
    with pytest.raises(KernelError, match="not a file"):
        kernel_table()


def test_a_named_file_that_is_no_library_is_refused(monkeypatch, tmp_path):
    path = tmp_path / "libdnnl.so.3"
    path.write_text("not a library")
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")
    monkeypatch.setenv("MEMCFG_ONEDNN_LIBRARY", str(path))
    with pytest.raises(KernelError, match="cannot load oneDNN"):
        kernel_table()


def test_the_reference_runs_in_an_arena_and_lets_nan_pass():
    specs = [OperandSpec((2, 3), "float32"), OperandSpec((3,), "float32")]
    made = kernel_table("reference").make("bias", {}, specs, specs[:1])
    assert (made.algorithm, made.scratch_bytes) == ("reference", 0)
    device = CpuDevice("/device:CPU:0")
    arena = device.pool.arena(tag="test")
    arena.grow(256)
    view = np.frombuffer(arena, np.uint8)
    view[:24].view(np.float32)[:] = [0, 1, 2, 3, np.inf, np.nan]
    view[64:76].view(np.float32)[:] = [10, -np.inf, 30]
    program = device.program(arena, {})
    kernel = made.instruction()
    program.compute(kernel, [0, 64, 128], [24, 12, 24], None)
    program.run()
    found = view[128:152].view(np.float32)
    np.testing.assert_array_equal(found, [10, -np.inf, 32, 13, np.nan, np.nan])


@pytest.mark.parametrize("choice", ["onednn", "blas", "reference"])
def test_a_kernel_runs_on_operands_anywhere(monkeypatch, choice):
    monkeypatch.setenv("MEMCFG_KERNELS", choice)
    try:
        table = kernel_table()
    except MissingDependencyError as error:
        pytest.skip(str(error))
    x, b = np.arange(6, dtype="f4").reshape(2, 3), np.array([10, 20, 30], "f4")
    y = np.empty_like(x)
    specs = [OperandSpec(x.shape, "float32"), OperandSpec(b.shape, "float32")]
    kernel = table.make("bias", {}, specs, specs[:1])
    kernel.run([array.ctypes.data for array in (x, b, y)], 0)
    np.testing.assert_array_equal(y, x + b)
    assert x.tolist() == [[0, 1, 2], [3, 4, 5]]


def test_the_reference_refuses_unknown_types():
    with pytest.raises(KernelError, match="no kernel of type 'nothing'"):
        kernel_table("reference").make("nothing", {}, [], [])
