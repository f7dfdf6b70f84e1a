"""Which worker of a `ParallelInference` computes next."""

from __future__ import annotations

from memcfg.config._workspace_config import Word

__all__ = ["LoadBalanceMode"]


class LoadBalanceMode(Word):
    """Which worker computes next; a word in any case is accepted, too.

    References
    ----------
    Deeplearning4j 1.0.0-M1,
    ``org.deeplearning4j.parallelism.inference.LoadBalanceMode``.
    """

    FIFO = "fifo"
    """The worker that has been free longest."""
    ROUND_ROBIN = "round_robin"
    """Each worker in its turn, even if another one is free."""
