"""The CPU: logical devices over host memory, and their kernels.

Owns everything that is particular to this kind of device. Refuses everything that
`memcfg.devices` refuses.
"""

from __future__ import annotations

from memcfg.devices.cpu._device import CpuDevice
from memcfg.devices.cpu._hardware import CpuHardware
from memcfg.devices.cpu._table import kernel_table

__all__ = ["CpuDevice", "CpuHardware", "kernel_table"]
