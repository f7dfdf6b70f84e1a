"""Workers that train on their own parts of batches, and average their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.nn.training.ranks._sharding import share_of
from memcfg.parallel._weighted_mean import WeightedMean

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from memcfg.nn.inputs._batches import Batch
    from memcfg.nn.optimizers import Optimizer
    from memcfg.nn.training._tracing import ProgramKey
    from memcfg.parallel._members import Member, Members

__all__ = ["Averaging"]

Row = tuple[int, bool, tuple[Any, ...] | None]  # samples, finished, results


class Averaging:
    """Parameter averaging: a `Distribution` of steps of the workers' own.

    Every `frequency` batches each weight becomes the mean of all workers', weighted by
    the samples that each has seen since the mean before. With plain gradient descent
    and a frequency of 1, that is the step of the whole batch.
    """

    def __init__(
        self,
        members: Members,
        frequency: int,
        *,
        updaters: bool,
        report: Callable[[float], None],
    ) -> None:
        self._members = members
        self._frequency = frequency
        self._updaters = updaters
        self._report = report
        self._seen = [0] * members.size  # samples since the last mean, by rank
        self._rounds = 0
        self._means = self._new_means()

    def _new_means(self) -> list[WeightedMean]:
        return [WeightedMean() for _ in self._seen]

    def require(self, wanted: Sequence[ProgramKey], promised: int) -> None:
        """Load the programs of each worker's part of batches."""
        size = self._members.size

        def load(member: Member) -> None:
            rank = member.communicator.rank
            keys = []
            for key in wanted:
                begin, end = share_of(key.batch_size, size)[rank]
                if end > begin:
                    trains = key.kind == "train"
                    keys.append(key._replace(batch_size=end - begin, is_part=trains))
            if keys:
                member.session.require_alone(keys, promised)

        self._members.call(load)

    def step(
        self, kind: str, batch: Batch, optimizer: Optimizer | None, guard: bool
    ) -> tuple[bool, tuple[Any, ...]]:
        """Run each worker's part of a batch, and average when it is time."""
        if kind != "train":
            self.finish(self._members)
        ranges = share_of(batch.size, self._members.size)

        def run(member: Member) -> list[Row]:
            begin, end = ranges[member.communicator.rank]
            row: Row = (0, True, None)
            if end > begin:
                part = batch.part(begin, end)
                ran = member.session.step(
                    kind, part, optimizer, guard=guard, begin=begin
                )
                row = (end - begin, *ran)
            return member.communicator.exchange(row)

        rows = self._members.call(run)[0]
        finished = all(each[1] for each in rows)
        results = self._combined(rows)
        if kind == "train":
            for rank, (samples, ended, _) in enumerate(rows):
                self._seen[rank] += samples * ended
            if optimizer is not None and finished:
                optimizer._iterations.advance()
            self._rounds += 1
            if self._rounds == self._frequency:
                self.finish(self._members)
                self._report(results[0])
        return finished, results

    def finish(self, members: Members) -> None:
        """Average what workers have trained since the last mean.

        If an average was interrupted, this goes on with it.
        """
        seen, total = self._seen, sum(self._seen)
        if total:

            def average(member: Member) -> None:
                rank = member.communicator.rank
                self._means[rank].make(
                    member, seen[rank] / total, updaters=self._updaters
                )

            members.call(average)
        # Not if it was interrupted. With no samples seen, nothing is averaged again.
        self._seen, self._rounds = [0] * len(seen), 0
        self._means = self._new_means()

    def _combined(self, rows: Sequence[Row]) -> tuple[Any, ...]:
        """Return the results of a batch: means of losses, and sums of metrics."""
        means = self._members.lead.session.totals().means
        total = sum(samples for samples, _, _ in rows)
        result: list[Any] = []
        for samples, _, values in rows:
            if values is None:
                continue
            weighted = [
                value * (samples / total) if place < means else value
                for place, value in enumerate(values)
            ]
            pairs = zip(result, weighted, strict=True)
            result = [a + b for a, b in pairs] if result else weighted
        return tuple(result)
