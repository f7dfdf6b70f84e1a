"""What a `ParallelInference` has answered."""

from __future__ import annotations

from typing import NamedTuple

from memcfg._html import report_of_fields

__all__ = ["InferenceStats"]


class InferenceStats(NamedTuple):
    """What a `ParallelInference` has answered since it was made or updated.

    Parameters
    ----------
    requests : tuple of int
        Requests that each worker has answered.
    batches : tuple of int
        Batches that each worker has computed.
    samples : int
        Samples of all requests.
    padding : int
        Samples of zeros with which batches were filled up.
    waiting : int
        Requests that wait now.
    """

    requests: tuple[int, ...]
    batches: tuple[int, ...]
    samples: int
    padding: int
    waiting: int

    def _repr_html_(self) -> str:
        """Return the numbers as an HTML table."""
        return report_of_fields(type(self).__name__, self._asdict())
