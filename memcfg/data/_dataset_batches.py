"""Elements of a dataset put together, and taken apart."""

from __future__ import annotations

from typing import Any, Self

from memcfg.data._dataset_core import DatasetCore
from memcfg.data.ops._batch import Batch
from memcfg.data.ops._padded_batch import PaddedBatch
from memcfg.data.ops._unbatch import Unbatch

__all__ = ["DatasetBatches"]


class DatasetBatches(DatasetCore):
    """Steps that stack elements or take stacks apart."""

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        num_parallel_calls: int | None = None,
        deterministic: bool | None = None,
        name: str | None = None,
    ) -> Self:
        """Stack elements along a new first axis.

        Parameters
        ----------
        batch_size : int
            How many a batch has; the last one may have fewer.
        drop_remainder : bool, default False
            Whether to leave out a last batch that has fewer.
        num_parallel_calls : int, optional
            Threads that make batches, or `AUTOTUNE`. None: one batch after the other.
        deterministic : bool, optional
            False: batches come as they are ready. None: as the options say.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Its arrays are the reader's own.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range.
        ValueError
            In the pass, if elements of one batch differ in shape.

        Examples
        --------
        >>> import memcfg as mc
        >>> list(mc.data.Dataset.range(5).batch(3))
        [array([0, 1, 2]), array([3, 4])]
        """
        node = Batch(
            self._node,
            batch_size,
            drop_remainder,
            num_parallel_calls,
            deterministic,
            name or "batch",
        )
        return self._then(node)

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        name: str | None = None,
    ) -> Self:
        """Stack elements of differing sizes, filled up to one size.

        Parameters
        ----------
        batch_size : int
            How many a batch has; the last one may have fewer.
        padded_shapes : nest of shape, optional
            The size to fill up to, where None or -1 is the largest of the batch. None:
            what `element_spec` knows, and the largest of the batch elsewhere.
        padding_values : nest, optional
            What to fill up with, of the dtype of the leaf. None: zeros and empty text.
        drop_remainder : bool, default False
            Whether to leave out a last batch that has fewer.
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            Its arrays are the reader's own.

        Raises
        ------
        TypeError, ValueError
            If an argument is of the wrong kind or out of range.
        ValueError
            In the pass, if an element is larger than what it is to be filled up to.

        Examples
        --------
        >>> import numpy as np
        >>> import memcfg as mc
        >>> data = mc.data.Dataset.range(1, 4).map(lambda n: np.full(n, n))
        >>> for batch in data.padded_batch(3):
        ...     print(batch)
        [[1 0 0]
         [2 2 0]
         [3 3 3]]
        """
        node = PaddedBatch(
            self._node,
            batch_size,
            padded_shapes,
            padding_values,
            drop_remainder,
            name or "padded_batch",
        )
        return self._then(node)

    def unbatch(self, name: str | None = None) -> Self:
        """Take elements apart along their first axis.

        Parameters
        ----------
        name : str, optional
            For messages and reports.

        Returns
        -------
        Dataset
            The slices.

        Raises
        ------
        ValueError
            If a leaf has no axis; in the pass, if leaves differ in length.

        Examples
        --------
        >>> import memcfg as mc
        >>> [int(x) for x in mc.data.Dataset.range(5).batch(3).unbatch()]
        [0, 1, 2, 3, 4]
        """
        return self._then(Unbatch(self._node, name or "unbatch"))
