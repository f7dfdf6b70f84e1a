"""The choice of a CPU's kernels: oneDNN with memcfg's own, or the NumPy reference.

See docs/decisions/0005-onednn-and-own-loops.md.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from memcfg._core import OneDNN
from memcfg.devices.cpu._native import NativeKernels
from memcfg.devices.cpu._onednn_library import find_onednn
from memcfg.devices.cpu._reference import ReferenceKernels
from memcfg.errors import KernelError, MissingDependencyError

if TYPE_CHECKING:
    from memcfg.devices._contract import KernelTable
    from memcfg.memory import Pool

_VARIABLE = "MEMCFG_KERNELS"
_CHOICES = ("auto", "onednn", "reference")


def kernel_table(name: str | None = None, *, pool: Pool | None = None) -> KernelTable:
    """Return the requested table of kernels.

    Parameters
    ----------
    name : {"auto", "onednn", "reference"}, optional
        The table; by default the value of ``MEMCFG_KERNELS``, or ``"auto"``.
    pool : Pool or None, default None
        The pool in which kernels are measured; None to measure nothing.

    Returns
    -------
    KernelTable
        oneDNN with memcfg's own kernels, or the NumPy reference.

    Raises
    ------
    KernelError
        If the name or the variable is not ``auto``, ``onednn`` or ``reference``; if the
        library that it requires, or that ``MEMCFG_ONEDNN_LIBRARY`` names, cannot be
        loaded; or if ``MEMCFG_MEASURE`` is neither ``0`` nor ``1``.
    MissingDependencyError
        If oneDNN is required and not found.

    Warns
    -----
    RuntimeWarning
        If the choice is ``auto`` and oneDNN is not installed, since the reference is
        slow.
    """
    choice = name or os.environ.get(_VARIABLE, "") or "auto"
    if choice not in _CHOICES:
        raise KernelError(
            f"{_VARIABLE} is {choice!r}; it takes one of {', '.join(_CHOICES)}"
        )
    if choice == "reference":
        return ReferenceKernels(pool)
    if choice == "onednn":
        return NativeKernels(OneDNN(find_onednn()), pool)
    return _onednn_or_reference(pool)


def _onednn_or_reference(pool: Pool | None) -> KernelTable:
    try:
        path = find_onednn()
    except MissingDependencyError as error:
        warnings.warn(
            f"{error} The slow NumPy reference kernels are used instead; "
            f"{_VARIABLE}=reference asks for them without this warning.",
            RuntimeWarning,
            stacklevel=3,
        )
        return ReferenceKernels(pool)
    return NativeKernels(OneDNN(path), pool)
