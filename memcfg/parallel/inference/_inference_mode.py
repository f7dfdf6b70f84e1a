"""How requests reach the workers of a `ParallelInference`."""

from __future__ import annotations

from memcfg.config._workspace_config import Word

__all__ = ["InferenceMode"]


class InferenceMode(Word):
    """How requests reach the workers; a word in any case is accepted, too.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.parallelism.inference.InferenceMode``.
    """

    SEQUENTIAL = "sequential"
    """A worker computes one request at a time, as `predict_on_batch` does."""
    BATCHED = "batched"
    """Requests that wait are computed as one batch."""
    INPLACE = "inplace"
    """The caller's thread computes its request, as soon as a worker is free."""
