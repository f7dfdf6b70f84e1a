"""`audio_dataset_from_directory`: the sounds of a folder's WAV files in batches."""

from __future__ import annotations

import wave
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import count
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn.loading._folders import folder

if TYPE_CHECKING:
    import numpy.typing as npt

_BYTES = 2  # of a sample


@takes_arguments
def audio_dataset_from_directory(
    directory: Any,
    labels: Any = "inferred",
    label_mode: str | None = "int",
    class_names: Any = None,
    batch_size: int | None = 32,
    sampling_rate: int | None = None,
    output_sequence_length: int | None = None,
    ragged: bool = False,
    shuffle: bool = True,
    seed: int | None = None,
    validation_split: float | None = None,
    subset: str | None = None,
    follow_links: bool = False,
    *,
    verbose: bool = True,
) -> Any:
    """Make a dataset of the ``.wav`` files in a folder, of 16 bits a sample.

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
        Sounds of a batch. None: elements are single sounds.
    sampling_rate : int, optional
        Samples per second, which all files must have: sounds are not resampled.
    output_sequence_length : int, optional
        The samples of all sounds, which are cut, or get zeros behind them. None: those
        of a batch get zeros up to the longest.
    ragged : bool, default False
        Must be False: arrays are dense.
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
        Sounds as float32 from -1 to 1 of shape (samples, channels), or sounds and
        labels. It has the attributes `class_names` and `file_paths`.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown or contradicts another, or there
        are no files; during a pass, if a file is not of 16 bits, or has another rate.
    OSError
        If the folder, or during a pass a file, cannot be read.
    """
    if ragged:
        raise ValueError(
            "ragged must be False: arrays are dense. Sounds of a batch get zeros at "
            "their ends, or pass output_sequence_length"
        )
    rate, length = (
        None if value is None else count(value, name)
        for name, value in (
            ("sampling_rate", sampling_rate),
            ("output_sequence_length", output_sequence_length),
        )
    )
    files = folder(
        directory,
        (".wav",),
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
    files.padded = length is None
    load = partial(_loaded, rate=rate, length=length)
    return files.datasets(load, validation_split, subset, "audio files")


def _loaded(
    path: str, *, rate: int | None, length: int | None
) -> npt.NDArray[np.float32]:
    """Read a sound."""
    try:
        with wave.open(path) as file:
            width, channels = file.getsampwidth(), file.getnchannels()
            own, frames = file.getframerate(), file.readframes(file.getnframes())
    except (wave.Error, EOFError) as error:
        raise ValueError(f"{path} is no WAV file of PCM: {error}") from error
    if width != _BYTES:
        raise ValueError(f"{path} has {8 * width} bits a sample, not {8 * _BYTES}")
    if rate not in (None, own):
        raise ValueError(
            f"{path} has {own} samples per second, not {rate}: resample it in "
            "Dataset.map, as with scipy.signal.resample_poly"
        )
    whole = np.frombuffer(frames, "<i2").reshape(-1, channels)
    sound = whole[:length].astype(np.float32) / np.float32(32768)
    if length is None:
        return sound
    return np.pad(sound, ((0, length - len(sound)), (0, 0)))
