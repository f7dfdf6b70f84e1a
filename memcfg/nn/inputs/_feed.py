"""Epochs as parts of passes over data."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from memcfg._caller import outside
from memcfg.nn.inputs._run_limits import limited, max_steps_per_epoch

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from typing import Self

    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.inputs._reading import Source
    from memcfg.nn.inputs._stream_source import StreamPass

__all__ = ["Feed"]


class Feed:
    """Context manager that supplies a loop with the batches of each epoch."""

    def __init__(
        self,
        source: Source,
        steps: int | None,
        name: str,  # of the argument for `steps`, for messages
        *,
        epochs: int = 1,
        anew: bool = False,
    ) -> None:
        self.source = source
        self._anew = anew and source.restartable
        most = max_steps_per_epoch()
        if steps is not None:
            steps = limited(steps, most, "steps_per_epoch")
        self._steps = steps
        # Without a number of steps, an epoch is a pass, or its beginning.
        self._most = most if steps is None else steps
        self._name = name
        self._wanted = (1 if self._anew else epochs) * (self._steps or 0)
        self._counted: int | None = None  # batches of a completed pass
        self._pass: Generator[Batch] | StreamPass | None = None
        self._from_pass = 0  # batches taken from the pass
        self._taken = 0  # batches counted towards `_wanted`
        self.ran_out = self._warned = False
        self._check(epochs)

    @property
    def steps(self) -> int | None:
        """The number of batches in an epoch, or None if it is unknown."""
        if self._steps is not None:
            return self._steps
        known = self._counted if self.source.steps is None else self.source.steps
        if known is None or self._most is None:
            return known
        return min(known, self._most)

    def epoch(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        count = 0
        batch = self._first()
        while batch is not None and count != self._most:
            count += 1
            yield batch
            if count != self._most and self._pass is not None:
                batch = next(self._pass, None)
        self._from_pass += count
        self._taken = count if self._anew else self._taken + count
        if batch is None:
            self._tell()
        if self._steps is None:
            self._counted = count
        if self._steps is None or self._anew or self._from_pass == self.source.steps:
            self.close()

    def close(self) -> None:
        """End the current pass."""
        found, self._pass = self._pass, None
        self._from_pass = 0
        if found is not None:
            found.close()
        self.source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _first(self) -> Batch | None:
        """Return an epoch's first batch, from a new pass if the current one is over."""
        again = self._from_pass > 0 and self.source.restartable
        batch = self._next()
        if batch is None and again:
            self.close()
            batch = self._next()
        return batch

    def _next(self) -> Batch | None:
        if self._pass is None:
            self._pass = self.source.begin()
        return next(self._pass, None)

    def _tell(self) -> None:
        """Raise if there was no batch; warn if the data ended too early."""
        if not (self._taken or self._warned):
            raise ValueError("the data is empty: it has no batch")
        self.ran_out = self._steps is not None
        if self.ran_out and not self._warned:
            self._warned = True
            warnings.warn(
                f"the data ended after {self._taken} of {self._wanted} batches, and no "
                f"more are read. Lower {self._name}, or have the data go on: "
                "dataset.repeat()",
                RuntimeWarning,
                stacklevel=outside(),
            )

    def _check(self, epochs: int) -> None:
        if self._most is None and self.source.endless:
            raise ValueError(f"the data has no end: say {self._name}")
        if self._steps is None and epochs > 1 and not self.source.restartable:
            raise ValueError(
                f"this data can be read only once, for {epochs} epochs: pass a "
                "memcfg.data.Dataset or an iterable that starts again with each "
                f"iter(), or pass {self._name}, which cuts one pass into epochs"
            )
