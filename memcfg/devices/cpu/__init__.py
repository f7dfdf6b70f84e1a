"""The CPU: logical devices over host memory, and their kernels."""

from __future__ import annotations

from memcfg.devices.cpu._device import CpuDevice, CpuHardware
from memcfg.devices.cpu._table import kernel_table

__all__ = ["CpuDevice", "CpuHardware", "kernel_table"]
