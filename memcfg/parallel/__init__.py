"""Several devices, each under its own limit: ranks, and the models that they share."""

from __future__ import annotations

from memcfg.ops import Communicator, EncodedTotals
from memcfg.parallel._in_process import in_process_group
from memcfg.parallel._ranks_estimate import RanksEstimate, estimate
from memcfg.parallel._wrapper import ParallelWrapper
from memcfg.parallel.encoding import (
    AdaptiveThresholdAlgorithm,
    FixedThresholdAlgorithm,
    ResidualClippingPostProcessor,
    ThresholdAlgorithm,
)
from memcfg.parallel.inference._inference import ParallelInference
from memcfg.parallel.inference._inference_builder import InferenceBuilder
from memcfg.parallel.inference._inference_mode import InferenceMode
from memcfg.parallel.inference._inference_stats import InferenceStats
from memcfg.parallel.inference._load_balance_mode import LoadBalanceMode
from memcfg.parallel.processes._mpi import mpi_communicator, mpi_size

__all__ = [
    "AdaptiveThresholdAlgorithm",
    "Communicator",
    "EncodedTotals",
    "FixedThresholdAlgorithm",
    "InferenceBuilder",
    "InferenceMode",
    "InferenceStats",
    "LoadBalanceMode",
    "ParallelInference",
    "ParallelWrapper",
    "RanksEstimate",
    "ResidualClippingPostProcessor",
    "ThresholdAlgorithm",
    "estimate",
    "in_process_group",
    "mpi_communicator",
    "mpi_size",
]
