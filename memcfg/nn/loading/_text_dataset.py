"""`text_dataset_from_directory`: the contents of a folder's text files in batches."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from memcfg._checks import count
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.loading._folders import folder


@takes_arguments
def text_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Any = None,
    batch_size: int | None = 32,
    max_length: int | None = None,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    *,
    verbose: bool = True,
) -> Any:
    """Make a dataset of the ``.txt`` files in a folder.

    Parameters
    ----------
    directory : path
        The folder. With inferred labels, it has a folder for each class.
    labels : "inferred", None or list of int, default "inferred"
        The labels of the files, in the order of their sorted paths. None: no labels.
    label_mode : {"int", "categorical", "binary", None}, default "int"
        Labels are int32 numbers, float32 rows with a one, or float32 numbers 0 and 1 of
        shape ``(1,)``. None: no labels.
    class_names : list of str, optional
        The folders of the classes, in their order. None: all folders, sorted.
    batch_size : int or None, default 32
        Texts of a batch. None: elements are single texts.
    max_length : int, optional
        Bytes after which a text is cut.
    shuffle : bool, default True
        Whether the files are in random order, another one in each pass.
    seed : int, optional
        The seed of the order.
    validation_split : float, optional
        The fraction of the files that is for validation.
    subset : {"training", "validation", "both"}, optional
        The part of the files; ``"both"`` gives a list of two datasets.
    follow_links : bool, default False
        Whether links to folders are followed.
    verbose : bool, default True
        Whether the numbers of files and classes are printed.

    Returns
    -------
    Dataset
        Texts as NumPy byte strings, or texts and labels. It has the attributes
        `class_names` and `file_paths`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or contradicts another, or there
        are no files.
    OSError
        If the folder, or during a pass a file, cannot be read.
    """
    most = None if max_length is None else count(max_length, "max_length")
    files = folder(
        directory,
        (".txt",),
        labels=labels,
        label_mode=label_mode,
        class_names=class_names,
        batch_size=batch_size,
        shuffle=shuffle,
        seed=seed,
        validation_split=validation_split,
        subset=subset,
        follow_links=follow_links,
        verbose=verbose,
    )
    load = partial(_loaded, most=most)
    return files.datasets(load, validation_split, subset, "text files")


def _loaded(path: str, *, most: int | None) -> np.bytes_:
    return np.bytes_(Path(path).read_bytes()[:most])
