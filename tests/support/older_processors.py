"""Tests that run again as on a processor whose widest vectors are those of AVX2."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_VARIABLE, _AVX2 = "ONEDNN_MAX_CPU_ISA", "AVX2"

HAS_ONLY_AVX2 = os.environ.get(_VARIABLE) == _AVX2


def check_with_avx2(test: Callable[..., object], count: int) -> None:
    """Run all cases of a test in a process that is kept to AVX2; `count` pass."""
    name = f"{sys.modules[test.__module__].__file__}::{test.__name__}"
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", name],
        env=os.environ | {_VARIABLE: _AVX2},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert f"{count} passed" in run.stdout
