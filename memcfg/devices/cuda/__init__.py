"""NVIDIA GPUs; CUDA libraries are loaded only when a GPU is first used."""

from __future__ import annotations

from memcfg.devices.cuda._detect import FoundGpus, find_gpus

__all__ = ["FoundGpus", "find_gpus"]
