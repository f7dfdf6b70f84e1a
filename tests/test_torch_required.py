"""memcfg.torch says which PyTorch it needs, and nothing else needs one."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
from types import ModuleType
torch = ModuleType("torch")
torch.__version__ = {version!r}
sys.modules["torch"] = torch if {version!r} else None
try:
    import memcfg.torch
except ImportError as error:
    print(type(error).__name__, error)
"""


def said(version: str | None) -> str:
    """What the import says where that version is installed; None: none is."""
    command = [sys.executable, "-c", SCRIPT.format(version=version)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_an_absent_pytorch_is_named_with_the_command_that_installs_it():
    text = said(None)
    assert text.startswith("MissingDependencyError memcfg.torch needs PyTorch 2.8 or")
    assert "`pip install torch`" in text


@pytest.mark.parametrize("version", ["1.13.1", "2.7.1+cpu", "2.0", "odd"])
def test_an_old_pytorch_is_refused_by_its_version(version):
    text = said(version)
    assert f"{version} is installed" in text
    assert "`pip install --upgrade torch`" in text


@pytest.mark.always
def test_importing_memcfg_imports_no_pytorch():
    script = (
        "import sys, memcfg\n"
        "for name in memcfg.__all__: getattr(memcfg, name)\n"
        "print('torch' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
