"""What nvcc has compiled, kept on the disk: whole or not at all. pycuda is a fake."""

from __future__ import annotations

import os
import re
import resource
import signal
import stat
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import pytest

from memcfg.devices import _file_cache
from memcfg.devices._file_cache import find_file_cache
from memcfg.devices.cuda import _nvcc
from memcfg.devices.cuda._nvcc import IMAGES, compile_with_nvcc
from memcfg.errors import KernelError, MissingDependencyError

BYTES = 200_000  # of an image


class Pycuda(types.ModuleType):
    """A compiler whose images are their sources, again and again."""

    def __init__(self):
        super().__init__("pycuda.compiler")
        self.compiled = []
        self.version = "release 13.0"

    def get_nvcc_version(self, nvcc):
        assert nvcc.endswith("/bin/nvcc")
        return self.version

    def compile(self, text, *, nvcc, no_extern_c, arch, options, cache_dir):
        assert nvcc.endswith("/bin/nvcc")
        assert no_extern_c
        assert options == ["--fmad=false", "-w"]
        assert cache_dir is False  # None would be pycuda's own
        if text == "wrong":
            error = ValueError("nvcc compilation of /tmp/kernel.cu failed")
            error.stderr = "kernel.cu(1): error: a\n   context\nkernel.cu(2): error: b"
            raise error
        self.compiled.append((text, arch))
        return (f"{arch} {text} " * BYTES)[:BYTES].encode()


@pytest.fixture
def pycuda(monkeypatch, tmp_path):
    fake, package = Pycuda(), types.ModuleType("pycuda")
    package.compiler = fake
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.compiler", fake)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nexit 1\n")  # pycuda calls it, and this one is a fake
    nvcc.chmod(0o700)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
    monkeypatch.setattr(_file_cache, "_told", set())
    return fake


@pytest.fixture
def folder(monkeypatch, tmp_path):
    found = tmp_path / "caches" / "images"
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", str(found))
    return found


def image(text, arch="sm_90"):
    return (f"{arch} {text} " * BYTES)[:BYTES].encode()


def in_a_child(act):
    """Run it in a fork of this process; return how that ended."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_source_is_compiled_once(pycuda, folder):
    for _ in range(3):
        assert compile_with_nvcc("a", 90) == image("a")
    assert pycuda.compiled == [("a", "sm_90")]
    (made,) = folder.iterdir()
    assert made.stat().st_size > BYTES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_source_gpu_or_nvcc_is_another_image(pycuda, folder):
    compile_with_nvcc("a", 90)
    assert compile_with_nvcc("b", 90) == image("b")
    assert compile_with_nvcc("a", 80) == image("a", "sm_80")
    pycuda.version = "release 13.1"
    compile_with_nvcc("a", 90)
    assert len(pycuda.compiled) == len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("part", ["magic", "digest", "image", "short", "empty", "long"])
def test_a_damaged_file_is_compiled_again(pycuda, folder, part):
    compile_with_nvcc("a", 90)
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    places = {"magic": 3, "digest": 20, "image": len(data) - 5}
    if part in places:
        data[places[part]] ^= 1
    sizes = {"short": -1, "empty": 0}
    path.write_bytes(data[: sizes.get(part, len(data))] + b"x" * (part == "long"))
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_killed_process_leaves_no_image(pycuda, folder, moment):
    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def act():
        if moment == "fsync":
            os.fsync = die
        else:
            Path.replace = die
        compile_with_nvcc("a", 90)

    assert in_a_child(act) == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.suffix != ".cuda"
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 1


def test_several_processes_at_once(pycuda, folder):
    def act():
        for number in range(20):
            if compile_with_nvcc(str(number), 90) != image(str(number)):
                os._exit(1)

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            act()
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    act()
    assert pycuda.compiled == []  # here
    assert len(list(folder.iterdir())) == 20


def test_a_full_disk_is_told_once(pycuda, folder):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(RuntimeWarning, match="are not kept on the disk") as told:
            assert [compile_with_nvcc(text, 90) for text in "aba"] == [
                *map(image, "aba")
            ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(told) == 1
    assert "MEMCFG_CUDA_CACHE" in str(told[0].message)
    assert list(folder.iterdir()) == []
    assert len(pycuda.compiled) == 3


def test_a_folder_that_cannot_be_made_is_told_once(pycuda, folder):
    folder.parent.write_text("a file")
    with pytest.warns(RuntimeWarning, match="are not kept on the disk") as told:
        assert [compile_with_nvcc(text, 90) for text in "ab"] == [*map(image, "ab")]
    assert len(told) == 1


def test_the_oldest_make_way_and_nothing_else(pycuda, folder, monkeypatch):
    limit = 3 * BYTES + BYTES // 2
    monkeypatch.setattr(_nvcc, "IMAGES", replace(IMAGES, limit=limit))
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700)
    other = folder / "thesis.tex"
    other.write_bytes(bytes(2 * BYTES))
    left = folder / f".memcfg-{'0' * 16}"  # by a process that was killed
    left.write_bytes(bytes(BYTES))
    os.utime(other, (0, 0))
    os.utime(left, (1, 1))
    for age, text in enumerate("abc"):
        compile_with_nvcc(text, 90)
        for path in folder.glob("*.cuda"):
            if path.stat().st_mtime > 1e6:
                os.utime(path, (10 + age, 10 + age))
    assert not left.exists()
    compile_with_nvcc("a", 90)  # it is the newest now
    compile_with_nvcc("d", 90)
    assert other.exists()
    pycuda.compiled.clear()
    for text in "acd":
        compile_with_nvcc(text, 90)
    assert pycuda.compiled == []
    compile_with_nvcc("b", 90)
    assert pycuda.compiled == [("b", "sm_90")]


def test_none_turns_it_off(pycuda, monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", "none")
    for _ in range(2):
        assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2


def test_the_folder_is_the_users(monkeypatch):
    monkeypatch.delenv("MEMCFG_CUDA_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    for value, folder in [
        ("/caches", "/caches/memcfg/cuda"),
        ("caches", "/somebody/.cache/memcfg/cuda"),  # as if it were not set
        ("", "/somebody/.cache/memcfg/cuda"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert find_file_cache(IMAGES).folder == Path(folder)


def test_without_a_home_it_is_told_once(pycuda, monkeypatch, tmp_path):
    def nobody(number):
        raise KeyError(number)

    for name in ("MEMCFG_CUDA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.warns(RuntimeWarning, match="no home directory.*MEMCFG_CUDA_CACHE"):
        assert compile_with_nvcc("kernel", 90) == image("kernel")
    assert compile_with_nvcc("kernel", 90) == image("kernel")
    assert len(pycuda.compiled) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_what_nvcc_refuses_is_told_in_a_line(pycuda, folder):
    told = re.escape(
        "nvcc cannot compile a kernel: kernel.cu(1): error: a; kernel.cu(2): error: b"
    )
    with pytest.raises(KernelError, match=f"^{told}$"):
        compile_with_nvcc("wrong", 90)
    assert not folder.exists()


def test_what_is_missing_is_told_in_a_sentence(monkeypatch, pycuda, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nvcc, "_TOOLKIT", str(tmp_path / "cuda"))
    with pytest.raises(MissingDependencyError, match=r"by nvcc, .* nor in .*/cuda: it"):
        compile_with_nvcc("", 90)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(MissingDependencyError, match=r"pip install pycuda"):
        compile_with_nvcc("", 90)


def test_nvcc_is_found_in_the_toolkit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(_nvcc, "_TOOLKIT", str(tmp_path / "usual"))
    assert _nvcc.find_nvcc() is None
    for name in ("usual", "path", "home"):  # each before the one above
        nvcc = tmp_path / name / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.touch(0o700)
        if name != "usual":
            monkeypatch.setenv(f"CUDA_{name.upper()}", str(tmp_path / name))
        assert _nvcc.find_nvcc() == str(nvcc)
    monkeypatch.setenv("PATH", str(tmp_path / "usual" / "bin"))
    assert _nvcc.find_nvcc() == str(tmp_path / "usual" / "bin" / "nvcc")


def test_looking_for_it_writes_nothing(folder):
    text = "from memcfg.devices._file_cache import find_file_cache as find\n"
    text += "from memcfg.devices.cuda._nvcc import IMAGES\n"
    text += "assert find(IMAGES).read('0' * 64) is None\n"
    subprocess.run([sys.executable, "-c", text], check=True)
    assert not folder.exists()
