"""The allocator's file is compiled once against the installed PyTorch, and kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import memcfg.torch as mt

SCRIPT = """
import warnings
import memcfg.torch as mt
import torch
try:
    mt.limit_cpu("1MiB")
except Exception as error:
    print(type(error).__name__, error)
else:
    x = torch.ones(100)
    print(mt.get_memory_info()["current"])
"""


def said(cache: Path | str, **environment: str) -> str:
    """What a process prints with that cache and environment."""
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", SCRIPT],
        env=os.environ | {"MEMCFG_TORCH_CACHE": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    """A copy of the cache of this run, which has what was compiled."""
    folder = tmp_path_factory.mktemp("compiled") / "cache"
    mt.limit_cpu("1MiB")
    mt.limit_cpu(None)
    shutil.copytree(os.environ["MEMCFG_TORCH_CACHE"], folder)
    return folder


def test_what_was_compiled_is_used_where_there_is_no_compiler(cache):
    (file,) = cache.iterdir()
    written = file.stat().st_ino
    assert said(cache, PATH="") == "448\n"
    (file,) = cache.iterdir()
    assert file.stat().st_ino == written


@pytest.mark.slow
def test_a_damaged_file_is_compiled_again(cache):
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + b"12345")
    assert "there is no C++ compiler" in said(cache, PATH="")
    assert said(cache) == "448\n"
    (file,) = cache.iterdir()
    assert len(file.read_bytes()) == len(whole)
    assert said(cache, PATH="") == "448\n"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"PATH": ""}, "there is no C++ compiler: install g++ 10 or later"),
        ({"CXX": "no-such-compiler -O3"}, "CXX names 'no-such-compiler': install g++"),
    ],
)
def test_an_absent_compiler_is_named(tmp_path, environment, words):
    text = said(tmp_path, **environment)
    assert text.startswith("MissingDependencyError memcfg.torch.limit_cpu compiles a")
    assert words in text


def test_a_compiler_that_refuses_is_quoted(tmp_path):
    compiler = tmp_path / "refuses"
    compiler.write_text("#!/bin/sh\necho 'a.cpp:1: error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    text = said(tmp_path / "cache", CXX=str(compiler))
    assert text.startswith(f"KernelError {compiler} cannot compile the allocator for")
    assert "a.cpp:1: error: no such thing" in text
    assert not (tmp_path / "cache").exists()


def test_another_librarys_allocator_is_not_replaced(tmp_path, cache):
    """One that was registered with a higher priority stays, and it is said."""
    source = tmp_path / "other.cpp"
    source.write_text(
        "#include <c10/core/CPUAllocator.h>\n"
        'extern "C" void take() {'
        " c10::SetCPUAllocator(c10::GetDefaultCPUAllocator(), 9); }\n"
    )
    home = Path(torch.__file__).parent
    library = tmp_path / "other.so"
    flags = ["-std=c++20", "-w", "-shared", "-fPIC", f"-I{home / 'include'}"]
    flags += [f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"]
    subprocess.run(
        ["c++", *flags, source, "-o", library, f"-L{home / 'lib'}", "-lc10"], check=True
    )
    script = (
        f"import ctypes, torch\nctypes.PyDLL({str(library)!r}).take()\n"
        f"{SCRIPT}\nprint(mt.cpu_pool().limit, torch.ones(5).sum().item())"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"MEMCFG_TORCH_CACHE": str(cache)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith("KernelError PyTorch has another library's CPU")
    assert done.stdout.endswith("\nNone 5.0\n")
