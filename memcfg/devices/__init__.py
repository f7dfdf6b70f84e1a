"""Devices: what hands out pools and kernels.

Owns the classes of devices and their discovery. Refuses to know the limits a user
configured (`memcfg.config` passes them in), graphs and plans.
"""

from __future__ import annotations

from memcfg.devices.cpu import (
    BoundlessKernel,
    CpuDevice,
    KernelTable,
    OperandSpec,
    discover_cpus,
)

__all__ = [
    "BoundlessKernel",
    "CpuDevice",
    "KernelTable",
    "OperandSpec",
    "discover_cpus",
]
