"""`Dataset`: a pipeline as a value, with tf.data's names."""

from __future__ import annotations

from memcfg.data._dataset_batches import DatasetBatches
from memcfg.data._dataset_selection import DatasetSelection
from memcfg.data._dataset_sources import DatasetSources
from memcfg.data._dataset_work import DatasetWork

__all__ = ["Dataset"]


class Dataset(DatasetSources, DatasetSelection, DatasetBatches, DatasetWork):
    """Elements, and how they are made: tf.data's `Dataset`, of NumPy arrays.

    A dataset is made by `from_tensor_slices` and its like, and never changes: each
    method returns another one. Nothing runs before it is iterated, and each iteration
    is a pass of its own. An element is an array, a NumPy scalar, or a tuple or dict of
    these.

    Parameters
    ----------
    node : Node
        The last step; the makers know it.
    options : Options, optional
        Of the whole pipeline.

    Notes
    -----
    Arrays come from the pool of the current device, and are under its limit. Those that
    are the dataset's own memory, such as rows of the user's arrays, are read-only; all
    others are the reader's. An element that is kept is never overwritten.

    Text stays NumPy's, where tf.data makes bytes of it.

    Examples
    --------
    >>> import numpy as np
    >>> import memcfg as mc
    >>> x, y = np.zeros((100, 4), "float32"), np.arange(100)
    >>> data = mc.data.Dataset.from_tensor_slices((x, y)).shuffle(100).batch(32)
    >>> data = data.prefetch(mc.data.experimental.AUTOTUNE)
    >>> [len(labels) for features, labels in data]
    [32, 32, 32, 4]
    """
