"""Devices: what hands out pools and kernels.

Owns the kinds of hardware and of logical devices. Refuses to know what a user
configured (`memcfg.config` passes it in), graphs and plans.
"""

from __future__ import annotations

from memcfg.devices._contract import (
    Device,
    Hardware,
    KernelTable,
    OperandSpec,
    Space,
    UnboundKernel,
)
from memcfg.devices.cpu import CpuDevice, CpuHardware
from memcfg.devices.simulated import SimulatedDevice, SimulatedHardware

__all__ = [
    "CpuDevice",
    "CpuHardware",
    "Device",
    "Hardware",
    "KernelTable",
    "OperandSpec",
    "SimulatedDevice",
    "SimulatedHardware",
    "Space",
    "UnboundKernel",
]
