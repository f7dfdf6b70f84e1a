"""What it takes to add an op; see count_files.py."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a compiler")
def test_an_element_wise_op_is_one_file_and_another_op_two():
    count = runpy.run_path(str(Path(__file__).parents[1] / "count_files.py"))["count"]
    element_wise, other = count()
    assert element_wise == ["memcfg/ops/pointwise.py"]
    assert other == ["_native/src/kernels/mirror.cpp", "memcfg/ops/mirror.py"]
