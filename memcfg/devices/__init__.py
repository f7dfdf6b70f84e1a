"""Devices: the hardware, and logical devices with their pools and kernels."""

from __future__ import annotations

from memcfg.devices._contract import (
    Device,
    Hardware,
    KernelTable,
    OperandSpec,
    Packing,
    UnboundKernel,
)
from memcfg.devices._tiers import (
    LANE_TIMEOUT,
    Space,
    Spill,
    SpillPlace,
    TierLimit,
    TierSpace,
)
from memcfg.devices.cpu import CpuDevice, CpuHardware
from memcfg.devices.simulated import SimulatedDevice, SimulatedHardware

__all__ = [
    "LANE_TIMEOUT",
    "CpuDevice",
    "CpuHardware",
    "Device",
    "Hardware",
    "KernelTable",
    "OperandSpec",
    "Packing",
    "SimulatedDevice",
    "SimulatedHardware",
    "Space",
    "Spill",
    "SpillPlace",
    "TierLimit",
    "TierSpace",
    "UnboundKernel",
]
