"""Picking examples out of a data set.

Owns rows: batches, parts, samples, orders. What stands one behind the other is a view,
what does not is a copy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from memcfg.data._checks import count, flag

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    import numpy.typing as npt

    from memcfg.data.dl4j._example_arrays import Array, Arrays

__all__ = ["ExampleRows", "SplitTestAndTrain"]


class SplitTestAndTrain(NamedTuple):
    """The two parts of a data set.

    Parameters
    ----------
    train : DataSet or MultiDataSet
        The examples to train on.
    test : DataSet or MultiDataSet
        The rest.
    """

    train: Any
    test: Any


class ExampleRows(ABC):
    """Arrays whose first axes count the same examples."""

    _arrays: Arrays  # the first are features

    @abstractmethod
    def _with(self, arrays: Sequence[Array | None]) -> Self:
        """Make another one of the same form."""

    @property
    def num_examples(self) -> int:
        """How many examples there are."""
        return len(cast("Array", self._arrays[0]))

    def batch_by(self, size: int) -> list[Self]:
        """Cut it into batches.

        Parameters
        ----------
        size : int
            Examples of each; the last may have fewer.

        Returns
        -------
        list of DataSet or MultiDataSet
            Views, in order.

        Raises
        ------
        TypeError
            If `size` is not an integer.
        ValueError
            If it is not positive.
        """
        return self._cut(range(0, self.num_examples, count(size, "size")))

    def as_list(self) -> list[Self]:
        """Cut it into single examples.

        Returns
        -------
        list of DataSet or MultiDataSet
            Views, each of one example; the first axis stays.
        """
        return self.batch_by(1)

    def split_test_and_train(
        self, train: float, seed: int | None = None
    ) -> SplitTestAndTrain:
        """Cut it in two.

        Parameters
        ----------
        train : int or float
            The number of examples to train on, or their share, between 0 and 1.
        seed : int, optional
            Decides the order in which they are taken. None: as they stand.

        Returns
        -------
        SplitTestAndTrain
            Two views; with a seed, views of one copy.

        Raises
        ------
        TypeError
            If `train` is no number, or `seed` no seed of NumPy's.
        ValueError
            If a part would be empty.
        """
        number = _number_of(train, self.num_examples)
        if not 0 < number < self.num_examples:
            raise ValueError(
                f"train={train!r} of {self.num_examples} examples leaves a part empty"
            )
        source = self if seed is None else self.shuffle(seed)
        return SplitTestAndTrain(*source._cut([0, number]))

    def sample(
        self, size: int, seed: int | None = None, with_replacement: bool = False
    ) -> Self:
        """Draw examples at random.

        Parameters
        ----------
        size : int
            How many.
        seed : int, optional
            Decides which. None: others each time.
        with_replacement : bool, default False
            Whether an example may be drawn twice.

        Returns
        -------
        DataSet or MultiDataSet
            A copy.

        Raises
        ------
        TypeError
            If an argument is of another type.
        ValueError
            If `size` is not positive, or there are not so many examples to draw from.
        """
        size = count(size, "size")
        replace = flag(with_replacement, "with_replacement")
        generator = np.random.default_rng(seed)
        return self._rows(generator.choice(self.num_examples, size, replace=replace))

    def shuffle(self, seed: int | None = None) -> Self:
        """Put the examples in a random order.

        Parameters
        ----------
        seed : int, optional
            Decides the order. None: another one each time.

        Returns
        -------
        DataSet or MultiDataSet
            A copy; this one stays as it is.

        Raises
        ------
        TypeError, ValueError
            If `seed` is no seed of NumPy's.
        """
        return self._rows(np.random.default_rng(seed).permutation(self.num_examples))

    def _rows(self, rows: npt.NDArray[np.intp]) -> Self:
        return self._with([None if a is None else a[rows] for a in self._arrays])

    def _cut(self, starts: Sequence[int]) -> list[Self]:
        return [
            self._with([None if a is None else a[begin:end] for a in self._arrays])
            for begin, end in pairwise([*starts, self.num_examples])
        ]

    def __len__(self) -> int:
        return self.num_examples


def _number_of(train: Any, examples: int) -> int:
    if isinstance(train, float | np.floating):
        return int(round(float(train) * examples, 6))  # 0.29 of 100 is 29
    return count(train, "train", 0)
