"""Several devices, each under its own limit: ranks, and the models that they share."""

from __future__ import annotations

from memcfg.ops import Communicator
from memcfg.parallel._in_process import in_process_group
from memcfg.parallel._mpi import mpi_communicator, mpi_size
from memcfg.parallel._wrapper import ParallelWrapper

__all__ = [
    "Communicator",
    "ParallelWrapper",
    "in_process_group",
    "mpi_communicator",
    "mpi_size",
]
