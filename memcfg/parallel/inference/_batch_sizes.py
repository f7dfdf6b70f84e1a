"""The sizes of batches for which programs are loaded."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["BatchSizes"]

_MAX_SIZES = 12  # as many programs of a model stay loaded beside each other


class BatchSizes:
    """The numbers of samples that batches are padded to, up to a limit.

    They are the powers of two and the numbers halfway between, so that at most a third
    of a batch of three or more samples is padding; powers of two alone, if there would
    be more sizes than a model keeps programs for. Without rounding, any size is one.
    """

    def __init__(self, limit: int, *, rounds: bool = True) -> None:
        self.limit = limit  # samples
        powers = [1 << i for i in range((limit - 1).bit_length())]
        halfway = [3 * each // 2 for each in powers[1:] if 3 * each // 2 < limit]
        every = sorted({*powers, *halfway, limit})
        if len(every) > _MAX_SIZES:
            every = [*powers, limit]
        self.sizes = tuple(every) if rounds else ()
        self._exact = frozenset(self.sizes)

    def is_exact(self, count: int) -> bool:
        """Return whether a batch of so many samples needs no padding."""
        return count in self._exact or (not self.sizes and 0 < count <= self.limit)

    def round_up(self, count: int) -> int:
        """Return the size of the batch for so many samples, at most the limit."""
        return self.sizes[bisect_left(self.sizes, count)] if self.sizes else count

    def up_to(self, count: int) -> tuple[int, ...]:
        """Return the sizes that batches of at most so many samples need."""
        if not self.sizes:
            return (min(count, self.limit),)
        return self.sizes[: self.sizes.index(self.round_up(min(count, self.limit))) + 1]
