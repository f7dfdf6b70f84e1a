"""The wait policy is set for the load of OpenMP alone, and never over a user's."""

from __future__ import annotations

import os
import platform
import sys

import pytest

from memcfg._core._openmp import short_spin

NAMES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.fixture
def clean(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_it_is_set_inside_and_gone_afterwards(clean):
    with short_spin():
        assert int(os.environ["GOMP_SPINCOUNT"]) > 0
    assert "GOMP_SPINCOUNT" not in os.environ


def test_it_is_gone_after_a_failed_load_too(clean):
    with pytest.raises(ImportError), short_spin():
        raise ImportError
    assert "GOMP_SPINCOUNT" not in os.environ


@pytest.mark.parametrize(
    ("kernels", "system", "spins"),
    [
        ("", ("linux", "x86_64"), True),
        ("onednn", ("linux", "aarch64"), True),
        ("reference", ("darwin", "arm64"), True),
        ("blas", ("linux", "x86_64"), False),
        ("auto", ("linux", "aarch64"), False),
        ("", ("darwin", "arm64"), False),
    ],
)
def test_beside_the_threads_of_a_blas_none_spins(clean, kernels, system, spins):
    clean.setenv("MEMCFG_KERNELS", kernels)
    clean.setattr(sys, "platform", system[0])
    clean.setattr(platform, "machine", lambda: system[1])
    with short_spin():
        assert (int(os.environ["GOMP_SPINCOUNT"]) > 0) == spins


@pytest.mark.parametrize("name", NAMES)
def test_a_users_choice_stands(clean, name):
    clean.setenv(name, "7")
    before = dict(os.environ)
    with short_spin():
        assert dict(os.environ) == before
    assert dict(os.environ) == before
