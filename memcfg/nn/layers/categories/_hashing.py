"""`Hashing` and `HashedCrossing`: categories to numbers without a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import taken
from memcfg.nn.layers.categories._data_layer import MODES, _DataLayer, encoded, mode_of
from memcfg.nn.layers.categories._fingerprints import combined, fingerprint, siphash
from memcfg.nn.layers.categories._preparing import _Preparing

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn.layers._layer import Shape

_CROSS_KEY = 0xDECAFCAFFE  # TensorFlow's default


class Hashing(_Preparing):
    """Hash categories into bins, as TensorFlow does.

    Parameters
    ----------
    num_bins : int
        The number of bins.
    mask_value : str or int, optional
        The category of bin 0; others have the bins from 1.
    salt : int or (int, int), optional
        The key of SipHash. None: FarmHash.
    output_mode : {"int", "one_hot", "multi_hot", "count"}, default "int"
        Bins as int64 numbers, or float32 rows with a one for each, for those of the
        last axis, or with counts.
    sparse : bool, default False
        Must be False: arrays are dense.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> mc.nn.layers.Hashing(num_bins=3)(["A", "B", "C", "D"])
    array([1, 0, 1, 1])
    """

    __slots__ = ("mask_value", "num_bins", "output_mode", "salt")

    def __init__(
        self,
        num_bins: int,
        mask_value: Any = None,
        salt: Any = None,
        output_mode: str = "int",
        sparse: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        taken("Hashing", (), {"sparse": sparse})
        self.num_bins = integer(num_bins, "Hashing: num_bins")
        self.mask_value = mask_value
        self.salt = key_of(salt, "Hashing")
        self.output_mode = mode_of(output_mode, MODES, "Hashing")
        super().__init__(name)

    def call(self, inputs: Any) -> np.ndarray:
        """Return the bins of categories.

        Parameters
        ----------
        inputs : array_like of str, bytes or int
            The categories. Floats are cut to integers.

        Returns
        -------
        numpy.ndarray
            The bins, in the output mode.

        Raises
        ------
        TypeError
            If the categories are neither text nor numbers.
        """
        values = np.asarray(inputs)
        masked = self.mask_value is not None and self.num_bins > 1
        bins = self.num_bins - masked
        numbers = hashed(values, bins, self.salt)
        if masked:
            mask = self.mask_value
            if values.dtype.kind == "S" and isinstance(mask, str):
                mask = mask.encode()
            numbers = np.where(values == mask, 0, numbers + 1)
        dtype = np.int64 if self.output_mode == "int" else np.float32
        return encoded(numbers, self.output_mode, self.num_bins, dtype)

    def _prepared(self, shape: Shape) -> tuple[Shape, str]:
        return self._rows(shape, self.output_mode, self.num_bins)


class HashedCrossing(_DataLayer):
    """Hash combinations of categories into bins, as TensorFlow does.

    Parameters
    ----------
    num_bins : int
        The number of bins.
    output_mode : {"int", "one_hot"}, default "int"
        Bins as int64 numbers, or float32 rows with a one.
    sparse : bool, default False
        Must be False: arrays are dense.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is unknown.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.HashedCrossing(num_bins=5)
    >>> layer((["A", "B", "A"], [101, 101, 102]))
    array([1, 4, 3])
    """

    __slots__ = ("num_bins", "output_mode")

    def __init__(
        self,
        num_bins: int,
        output_mode: str = "int",
        sparse: bool = False,
        *,
        name: str | None = None,
    ) -> None:
        taken("HashedCrossing", (), {"sparse": sparse})
        self.num_bins = integer(num_bins, "HashedCrossing: num_bins")
        self.output_mode = mode_of(output_mode, ("int", "one_hot"), "HashedCrossing")
        super().__init__(name)

    def call(self, inputs: Any) -> np.ndarray:
        """Return the bins of combinations.

        Parameters
        ----------
        inputs : tuple or list of array_like of str, bytes or int
            At least two arrays of one shape: (), (n,) or (n, 1).

        Returns
        -------
        numpy.ndarray
            The bins, in the output mode.

        Raises
        ------
        TypeError, ValueError
            If the arrays are fewer, or differ in shape, or have another shape or dtype.
        """
        if not isinstance(inputs, tuple | list) or len(inputs) < 2:
            raise ValueError("HashedCrossing takes a tuple of at least two arrays")
        columns = [np.asarray(each) for each in inputs]
        shape = columns[0].shape
        if any(each.shape != shape for each in columns):
            raise ValueError(
                "HashedCrossing takes arrays of one shape, not "
                f"{[each.shape for each in columns]}"
            )
        if len(shape) > 2 or (len(shape) == 2 and shape[1] != 1):
            raise ValueError(
                f"HashedCrossing takes shapes (), (n,) and (n, 1), not {shape}"
            )
        words = [_crossed_words(each) for each in columns]
        bins = []
        for row in zip(*words, strict=True):
            key = _CROSS_KEY
            for word in row:
                key = combined(key, word)
            bins.append(key % self.num_bins)
        dtype = np.int64 if self.output_mode == "int" else np.float32
        numbers = np.array(bins, np.int64).reshape(shape)
        return encoded(numbers, self.output_mode, self.num_bins, dtype)


def key_of(salt: Any, layer: str) -> tuple[int, int] | None:
    """Return the two words of a salt; None: there is none."""
    if salt is None:
        return None
    pair = salt if isinstance(salt, tuple | list) else (salt, salt)
    if len(pair) != 2:
        raise ValueError(f"{layer}: salt is one integer or two, not {salt!r}")
    first, second = (integer(each, f"{layer}: salt", 0) for each in pair)
    return first, second


def hashed(values: np.ndarray, bins: int, key: tuple[int, int] | None) -> np.ndarray:
    """Return the bins of values, whose text is hashed."""
    function: Callable[[bytes], int] = (
        fingerprint if key is None else lambda text: siphash(text, key)
    )
    known: dict[Any, int] = {}  # categories repeat
    numbers = []
    for value in _texts(values):
        if value not in known:
            known[value] = function(value) % bins
        numbers.append(known[value])
    return np.array(numbers, np.int64).reshape(values.shape)


def _texts(values: np.ndarray) -> list[bytes]:
    kind = values.dtype.kind
    if kind == "f":
        values, kind = values.astype(np.int64), "i"
    if kind in "iu":
        return [b"%d" % value for value in values.ravel().tolist()]
    if kind == "b":
        raise TypeError("categories are text or numbers, not bool")
    if kind not in "OSU":
        raise TypeError(f"categories are text or numbers, not {values.dtype}")
    return [
        each.encode() if isinstance(each, str) else bytes(each)
        for each in values.ravel().tolist()
    ]


def _crossed_words(values: np.ndarray) -> list[int]:
    if values.dtype.kind in "iu":
        return [value % 2**64 for value in values.ravel().tolist()]
    if values.dtype.kind not in "OSU":
        raise TypeError(f"HashedCrossing takes text and integers, not {values.dtype}")
    return [fingerprint(text) for text in _texts(values)]
