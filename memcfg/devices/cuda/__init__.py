"""NVIDIA GPUs. Nothing of CUDA is imported or loaded before it is asked for."""

from __future__ import annotations

from memcfg.devices.cuda._detect import FoundGpus, find_gpus

__all__ = ["FoundGpus", "find_gpus"]
