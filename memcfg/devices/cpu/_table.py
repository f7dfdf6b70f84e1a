"""The choice of a CPU's kernels: memcfg's own with oneDNN or BLAS, or the reference.

See docs/decisions/0005-onednn-and-own-loops.md.
"""

from __future__ import annotations

import os
import platform
import sys
import warnings
from typing import TYPE_CHECKING

from memcfg._core import OneDNN
from memcfg.devices.cpu._blas import BlasKernels
from memcfg.devices.cpu._native import NativeKernels
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.errors import KernelError, MissingDependencyError

if TYPE_CHECKING:
    from memcfg.devices._contract import KernelTable
    from memcfg.memory import Pool

_VARIABLE = "MEMCFG_KERNELS"
_CHOICES = ("auto", "onednn", "blas", "reference")


def kernel_table(name: str | None = None, *, pool: Pool | None = None) -> KernelTable:
    """Return the requested table of kernels.

    Parameters
    ----------
    name : {"auto", "onednn", "blas", "reference"}, optional
        The table; by default the value of ``MEMCFG_KERNELS``, or ``"auto"``.
    pool : Pool or None, default None
        The pool in which kernels are measured; None to measure nothing.

    Returns
    -------
    KernelTable
        oneDNN or NumPy's BLAS with memcfg's own kernels, or the NumPy reference.

    Raises
    ------
    KernelError
        If the name or the variable is not ``auto``, ``onednn``, ``blas`` or
        ``reference``; if the library that it requires, or that
        ``MEMCFG_ONEDNN_LIBRARY`` names, cannot be loaded; or if ``MEMCFG_MEASURE`` is
        neither ``0`` nor ``1``.
    MissingDependencyError
        If oneDNN is required and not found.

    Warns
    -----
    RuntimeWarning
        If the choice is ``auto`` and oneDNN, which is faster, is not installed on Linux
        for x86-64.
    """
    choice = name or os.environ.get(_VARIABLE, "") or "auto"
    if choice not in _CHOICES:
        raise KernelError(
            f"{_VARIABLE} is {choice!r}; it takes one of {', '.join(_CHOICES)}"
        )
    if choice == "reference":
        return ReferenceKernels(pool)
    if choice == "blas":
        return BlasKernels(pool)
    if choice == "onednn":
        return NativeKernels(OneDNN(find_onednn()), pool)
    return _onednn_or_blas(pool)


def _onednn_or_blas(pool: Pool | None) -> KernelTable:
    try:
        path = find_onednn()
    except MissingDependencyError as error:
        if sys.platform == "linux" and platform.machine() == "x86_64":
            warnings.warn(
                f"{error} NumPy's BLAS computes products instead, more slowly; "
                f"{_VARIABLE}=blas asks for it without this warning.",
                RuntimeWarning,
                stacklevel=3,
            )
        return BlasKernels(pool)
    return NativeKernels(OneDNN(path), pool)
