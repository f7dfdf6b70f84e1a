"""`StringLookup` and `IntegerLookup`: tokens to numbers by a vocabulary."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg.nn.layers.categories._vocabulary import _Vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping


class StringLookup(_Vocabulary):
    """Replace strings by their numbers in a vocabulary.

    Parameters
    ----------
    max_tokens : int, optional
        The largest size of the vocabulary, special tokens included.
    num_oov_indices : int, default 1
        The numbers of strings that are not in the vocabulary, which hashing chooses; 0:
        such a string is an error.
    mask_token : str, optional
        The string of number 0, which other output modes than ``"int"`` drop.
    oov_token : str, default "[UNK]"
        What stands for unknown strings.
    vocabulary : array_like of str or path, optional
        The strings, or a text file with one a line. None: `adapt` finds them.
    idf_weights : array_like of float, optional
        The weights of the strings, for ``"tf_idf"``.
    invert : bool, default False
        Whether numbers are replaced by strings instead.
    output_mode : str, default "int"
        ``"int"``; or int64 rows: ``"one_hot"``, ``"multi_hot"`` or ``"count"`` of the
        last axis; or ``"tf_idf"``, float32 counts times weights.
    pad_to_max_tokens : bool, default False
        Whether rows have `max_tokens` elements.
    sparse : bool, default False
        Must be False: arrays are dense.
    encoding : str, default "utf-8"
        The encoding of byte strings.
    salt : int or (int, int), optional
        The key of SipHash, which hashes unknown strings. None: FarmHash.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, or contradicts another.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.StringLookup()
    >>> layer.adapt(["b", "a", "b", "c"])
    >>> layer.get_vocabulary()
    ['[UNK]', 'b', 'c', 'a']
    >>> layer(["a", "b", "z"])
    array([3, 1, 0])
    """

    __slots__ = ("encoding",)

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: str | None = None,
        oov_token: str = "[UNK]",
        vocabulary: Any = None,
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        pad_to_max_tokens: bool = False,
        sparse: bool = False,
        encoding: str = "utf-8",
        *,
        salt: Any = None,
        name: str | None = None,
    ) -> None:
        self.encoding = encoding
        self._begin(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            pad_to_max_tokens,
            sparse,
            "farmhash",
            salt,
        )
        super().__init__(name)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create a layer; Keras names how strings are hashed, which is the same."""
        known = {"oov_method": ("floormod", "farmhash"), "vocabulary_dtype": "string"}
        left = {
            name: each
            for name, each in config.items()
            if name not in known or each not in known[name]
        }
        return super().from_config(left)

    def _keys(self, values: Any) -> list[Any]:
        array = np.asarray(values)
        if array.dtype.kind not in "OSU" and array.size:
            raise TypeError(f"{type(self).__name__} takes text, not {array.dtype}")
        return [
            each.decode(self.encoding, "surrogateescape")
            if isinstance(each, bytes)
            else each
            for each in array.ravel().tolist()
        ]


class IntegerLookup(_Vocabulary):
    """Replace integers by their numbers in a vocabulary.

    Parameters
    ----------
    max_tokens : int, optional
        The largest size of the vocabulary, special tokens included.
    num_oov_indices : int, default 1
        The numbers of integers that are not in the vocabulary; 0: such an integer is an
        error.
    mask_token : int, optional
        The integer of number 0, which other output modes than ``"int"`` drop.
    oov_token : int, default -1
        What stands for unknown integers.
    vocabulary : array_like of int or path, optional
        The integers, or a text file with one a line. None: `adapt` finds them.
    vocabulary_dtype : str, default "int64"
        Must be ``"int64"``.
    idf_weights : array_like of float, optional
        The weights of the integers, for ``"tf_idf"``.
    invert : bool, default False
        Whether numbers are replaced by integers of the vocabulary instead.
    output_mode : str, default "int"
        ``"int"``; or int64 rows: ``"one_hot"``, ``"multi_hot"`` or ``"count"`` of the
        last axis; or ``"tf_idf"``, float32 counts times weights.
    sparse : bool, default False
        Must be False: arrays are dense.
    pad_to_max_tokens : bool, default False
        Whether rows have `max_tokens` elements.
    oov_method : {"floormod", "farmhash"}, default "floormod"
        How the number of an unknown integer is chosen.
    salt : int or (int, int), optional
        The key of SipHash, for ``"farmhash"``.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, or contradicts another.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.IntegerLookup(vocabulary=[12, 36, 1138])
    >>> layer([[12, 1138], [36, 7]])
    array([[1, 3],
           [2, 0]])
    """

    __slots__ = ("vocabulary_dtype",)

    def __init__(
        self,
        max_tokens: int | None = None,
        num_oov_indices: int = 1,
        mask_token: int | None = None,
        oov_token: int = -1,
        vocabulary: Any = None,
        vocabulary_dtype: str = "int64",
        idf_weights: Any = None,
        invert: bool = False,
        output_mode: str = "int",
        sparse: bool = False,
        pad_to_max_tokens: bool = False,
        oov_method: str = "floormod",
        salt: Any = None,
        *,
        name: str | None = None,
    ) -> None:
        if vocabulary_dtype != "int64":
            raise ValueError(
                f"IntegerLookup: vocabulary_dtype is int64, not {vocabulary_dtype!r}"
            )
        if salt is not None and oov_method != "farmhash":
            raise ValueError("IntegerLookup: salt goes with oov_method='farmhash'")
        self.vocabulary_dtype = vocabulary_dtype
        self._begin(
            max_tokens,
            num_oov_indices,
            mask_token,
            oov_token,
            vocabulary,
            idf_weights,
            invert,
            output_mode,
            pad_to_max_tokens,
            sparse,
            oov_method,
            salt,
        )
        super().__init__(name)

    def _keys(self, values: Any) -> list[Any]:
        array = np.asarray(values)
        if array.dtype.kind in "SU":  # of a file
            array = array.astype(np.int64)
        if array.dtype.kind not in "iu" and array.size:
            raise TypeError(f"{type(self).__name__} takes integers, not {array.dtype}")
        keys: list[Any] = array.ravel().tolist()
        return keys
