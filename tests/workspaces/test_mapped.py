"""Workspaces in files: F1 to F7 of ND4J's tests, and that a file is never damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import WorkspaceConfigError

MIB = 2**20
MAPPED = mc.WorkspaceConfig(location="mmap", learning="none", initial_size=1_000_000)


@pytest.fixture
def make(pool):
    return lambda config=MAPPED, name="file": mc.workspace(name, config, resource=pool)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "pages"


def test_f1_the_same_bytes_again(make):
    ws = make()
    with ws:
        array = ws.full(100, 10.0)
        assert array.sum() == 1000
        del array
    with ws:
        array = np.empty(100)
        assert mc.workspace_of(array) is ws
        assert array.sum() == 1000
        del array


def test_f2_a_file_that_is_there(make, path):
    path.write_bytes(np.arange(12_500.0).tobytes())
    ws = make(MAPPED.replace(path=path, initial_size=0))
    with ws:
        array = np.empty(100)
        assert mc.workspace_of(array) is ws
        assert array.tolist() == list(range(100))
        array[:] = -1.0
        del array
    ws.flush()
    ws.destroy()
    assert path.stat().st_size == 100_000
    assert np.fromfile(path)[98:102].tolist() == [-1, -1, 100, 101]


def test_f3_more_than_the_file_goes_to_memory(make, pool, path):
    ws = make(MAPPED.replace(path=path, initial_size=200 * MIB))
    with ws:
        array = np.empty(52_428_800 + 1_000, np.float32)
        array[-1] = 1
        assert mc.is_attached(array)
        assert ws.stats().spilled_count == 1
        assert pool.stats().current_bytes >= array.nbytes
        del array
    assert pool.stats().current_bytes < 100 * MIB


def test_f4_a_long_name(make, tmp_path):
    path = tmp_path / ("long_file_name_" + "9" * 200)
    with make(MAPPED.replace(path=path)) as ws:
        array = np.ones(10)
        assert mc.workspace_of(array) is ws
        del array
    assert path.exists()


def test_f5_after_destruction_the_file_is_only_a_file(make, path):
    with make(MAPPED.replace(path=path)):
        array = np.full(100, 3.0)
        del array
    mc.destroy_all_workspaces()
    assert str(path) not in Path("/proc/self/maps").read_text(encoding="utf-8")
    path.unlink()
    assert not path.exists()


def test_f6_a_file_cannot_learn(path):
    with pytest.raises(WorkspaceConfigError, match="learning"):
        mc.WorkspaceConfig(location="mmap", path=path, initial_size=1000)
    with pytest.raises(WorkspaceConfigError, match="learning"):
        MAPPED.replace(learning="over_time")


def test_f7_a_file_needs_a_size(make, path):
    with pytest.raises(WorkspaceConfigError):
        MAPPED.replace(initial_size=0)
    nobody = MAPPED.replace(initial_size=0, path=path)
    with pytest.raises(WorkspaceConfigError, match="Name an initial_size"):
        make(nobody)
    assert not path.exists()
    path.write_bytes(b"")
    with pytest.raises(WorkspaceConfigError, match="0 bytes"):
        make(nobody)
    assert path.stat().st_size == 0
    assert not mc.workspaces.workspace_exists("file")


def mapped_files() -> set[str]:
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.split(maxsplit=5)[5] for line in lines if "/" in line}


def test_a_temporary_file_is_gone_afterwards(make):
    before = mapped_files()
    ws = make()
    with ws:
        array = np.ones(10)
        del array
    (name,) = mapped_files() - before
    ws.destroy()
    assert mapped_files() == before
    assert not Path(name.removesuffix(" (deleted)")).exists()


def test_arrays_keep_a_file_that_is_destroyed(make, path):
    with make(MAPPED.replace(path=path)) as ws:
        array = np.full(100, 3.0)
    ws.destroy()
    assert array.tolist() == [3.0] * 100
    array[:] = 4.0
    assert mc.detach(array).sum() == 400
