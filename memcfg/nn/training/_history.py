"""What training found, epoch by epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.data import PipelineReport

__all__ = ["History"]


class History:
    """The numbers of each epoch, as `Model.fit` returns them.

    Attributes
    ----------
    epoch : list of int
        The epochs that were finished, from 0.
    history : dict of str to list of float
        ``loss``, the metrics, and the same with ``val_`` before them; one number
        an epoch.
    pipeline : PipelineReport or None
        What AUTOTUNE chose for the training data in its last pass, how long was waited
        for it, and what it held. None where it was no `memcfg.data.Dataset`.
    """

    def __init__(self) -> None:
        self.pipeline: PipelineReport | None = None
        self.epoch: list[int] = []
        self.history: dict[str, list[float]] = {}

    def add(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Note a finished epoch.

        Parameters
        ----------
        epoch : int
            Its number, from 0.
        logs : mapping of str to float
            Its numbers.
        """
        self.epoch.append(epoch)
        for name, value in logs.items():
            self.history.setdefault(name, []).append(value)

    def __repr__(self) -> str:
        return f"<History of {len(self.epoch)} epochs: {', '.join(self.history)}>"
