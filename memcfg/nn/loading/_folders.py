"""The files of a folder, with the labels that its subfolders or a caller give."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count, flag, unknown
from memcfg.data import AUTOTUNE, Dataset
from memcfg.nn._argument_checks import integer, real

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy.typing as npt

_MODES = ("int", "categorical", "binary")
_SUBSETS = ("training", "validation", "both")


class FolderDataset(Dataset):
    """A dataset of files, with the names of the classes and of the files.

    A dataset that is made of it by a method lacks these attributes, as in Keras.

    Parameters
    ----------
    dataset : Dataset
        The elements.
    file_paths : list of str
        The files, in the order of their labels.
    class_names : list of str or None
        The names of the classes.
    """

    def __init__(
        self, dataset: Dataset, file_paths: list[str], class_names: list[str] | None
    ) -> None:
        super().__init__(dataset._node, dataset.options())
        self.file_paths = file_paths
        self.class_names = class_names


@dataclass
class Folder:
    """Files and their labels, and how elements are made of them."""

    paths: list[str]
    labels: npt.NDArray[np.int32] | None  # None: elements have none
    class_names: list[str] | None
    mode: str | None
    batch_size: int | None
    shuffle: bool
    seed: int
    padded: bool = False  # whether batches have elements of several lengths

    def datasets(
        self,
        load: Callable[[str], Any],
        split: float | None,
        subset: str | None,
        what: str,
    ) -> Any:
        """Return the dataset of a subset, or a list of those of both."""
        if subset is None:
            return self._dataset(load, self.paths, self.labels, shuffle=self.shuffle)
        held = int((split or 0) * len(self.paths))
        at = len(self.paths) - held
        sizes = {"training": slice(0, at), "validation": slice(at, None)}
        both: list[FolderDataset] = []
        for name, part in sizes.items():
            if subset not in (name, "both"):
                continue
            paths = self.paths[part]
            if not paths:
                raise ValueError(f"there are no {what} for {name}")
            both.append(
                self._dataset(
                    load,
                    paths,
                    None if self.labels is None else self.labels[part],
                    shuffle=self.shuffle and not (subset == "both" and both),
                )
            )
        return both if subset == "both" else both[0]

    def _dataset(
        self,
        load: Callable[[str], Any],
        paths: list[str],
        labels: npt.NDArray[np.int32] | None,
        *,
        shuffle: bool,
    ) -> FolderDataset:
        nest: Any = np.array(paths)
        if labels is not None:
            nest = (nest, self._encoded(labels))
        data = Dataset.from_tensor_slices(nest)
        if shuffle:
            size = 1024 if self.batch_size is None else 8 * self.batch_size
            data = data.shuffle(size, seed=self.seed)

        def loaded(path: str, *label: Any) -> Any:
            return (load(str(path)), *label) if label else load(str(path))

        data = data.map(loaded, num_parallel_calls=AUTOTUNE)
        if self.batch_size is not None and self.padded:
            data = data.padded_batch(self.batch_size)
        elif self.batch_size is not None:
            data = data.batch(self.batch_size)
        return FolderDataset(data.prefetch(AUTOTUNE), paths, self.class_names)

    def _encoded(self, labels: npt.NDArray[np.int32]) -> npt.NDArray[Any]:
        if self.mode == "binary":
            return labels[:, None].astype(np.float32)
        if self.mode == "categorical":
            classes = len(self.class_names or ())
            result: npt.NDArray[Any] = (labels[:, None] == np.arange(classes)).astype(
                np.float32
            )
            return result
        return labels


def folder(
    directory: Any,
    formats: tuple[str, ...],
    *,
    labels: Any,
    label_mode: Any,
    class_names: Any,
    batch_size: Any,
    shuffle: Any,
    seed: Any,
    validation_split: Any,
    subset: Any,
    follow_links: Any,
    verbose: Any,
) -> Folder:
    """List the files of a folder, from the arguments that Keras's functions take."""
    if label_mode not in (*_MODES, None):
        raise unknown("label_mode", str(label_mode), _MODES)
    if labels is None or label_mode is None:
        labels = label_mode = None
    _check_subset(validation_split, subset, shuffle, seed)
    start = os.fspath(directory)
    folders = _class_names(start, labels, class_names)
    names: list[str] | None = folders
    number = int(np.random.default_rng().integers(10**6)) if seed is None else seed
    paths, found = _files(start, formats, folders, follow=flag(follow_links, "links"))
    numbers = np.array(found, np.int32)
    if labels is None:
        names = None
    elif labels != "inferred":
        numbers = _given_labels(labels, len(paths), start)
        names = [str(label) for label in sorted(set(numbers.tolist()))]
    if not paths:
        raise ValueError(
            f"there are no files of {', '.join(formats)} in {start!r}"
            + ("" if names is None else ", with a folder for each class")
        )
    if label_mode == "binary" and len(names or ()) != 2:
        raise ValueError(f"label_mode='binary' needs two classes, not {names}")
    if flag(verbose, "verbose"):
        classes = "" if names is None else f" belonging to {len(names)} classes"
        print(f"Found {len(paths)} files{classes}.")
    if flag(shuffle, "shuffle"):
        # As in Keras, to the same order; both are shuffled alike.
        order = np.arange(len(paths))
        np.random.RandomState(number).shuffle(order)
        paths, numbers = [paths[i] for i in order], numbers[order]
    size = None if batch_size is None else count(batch_size, "batch_size")
    given = None if labels is None else numbers
    return Folder(paths, given, names, label_mode, size, shuffle, number)


def _check_subset(split: Any, subset: Any, shuffle: Any, seed: Any) -> None:
    if (split is None) != (subset is None):
        raise ValueError("validation_split and subset are given together")
    if subset is None:
        return
    if not 0 < real(split, "validation_split") < 1:
        raise ValueError(f"validation_split must be between 0 and 1, not {split}")
    if subset not in _SUBSETS:
        raise unknown("subset", str(subset), _SUBSETS)
    if shuffle and seed is None:
        raise ValueError(
            "with validation_split and shuffle=True a seed is needed, so that the "
            "subsets do not overlap"
        )


def _class_names(start: str, labels: Any, given: Any) -> list[str]:
    """Return the folders of the classes; the folder itself is the one named ""."""
    if labels != "inferred":
        if labels is not None and not isinstance(labels, list | tuple):
            raise TypeError(
                f"labels must be 'inferred', None or a list of int, not {labels!r:.60}"
            )
        if given is not None:
            raise ValueError("class_names can be given only with labels='inferred'")
        return [""]
    with os.scandir(start) as entries:
        names = sorted(
            each.name
            for each in entries
            if each.is_dir() and not each.name.startswith(".")
        )
    if given is None:
        return names
    missing = [name for name in given if name not in names]
    if missing:
        raise ValueError(
            f"class_names has {missing}, and the folders of {start!r} are {names}"
        )
    return list(given)


def _files(
    start: str, formats: tuple[str, ...], names: Sequence[str], *, follow: bool
) -> tuple[list[str], list[int]]:
    """List the files of each class and the numbers of the classes, sorted."""
    paths: list[str] = []
    numbers: list[int] = []
    for number, name in enumerate(names):
        for path in _walk(os.path.join(start, name) if name else start, follow):
            if path.lower().endswith(formats):
                paths.append(path)
                numbers.append(number)
    return paths, numbers


def _walk(start: str, follow: bool) -> Iterator[str]:
    for root, _, files in sorted(os.walk(start, followlinks=follow)):
        for file in sorted(files):
            yield os.path.join(root, file)


def _given_labels(labels: Any, files: int, start: str) -> npt.NDArray[np.int32]:
    numbers = np.array([integer(label, "a label", None) for label in labels], np.int32)
    if len(numbers) != files:
        raise ValueError(
            f"there are {len(numbers)} labels, and {files} files in {start!r}"
        )
    return numbers
