"""A vocabulary: the numbers of tokens, found by counting or given."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import taken
from memcfg.nn.layers.categories._data_layer import (
    MODES,
    batches_of,
    encoded,
    mode_of,
)
from memcfg.nn.layers.categories._hashing import hashed, key_of
from memcfg.nn.layers.categories._preparing import _Preparing

if TYPE_CHECKING:
    from collections.abc import Iterable

    from memcfg.nn.layers._layer import Shape

_OUTSIDE = np.iinfo(np.int64).max  # a number that no row counts


class _Vocabulary(_Preparing):
    """The base of `StringLookup` and `IntegerLookup`.

    Number 0 is the mask token's if there is one and numbers are the output; the next
    are those of unknown tokens, and the others those of the vocabulary.
    """

    __slots__ = (
        "_fixed",
        "_idf",
        "_numbers",
        "_size",
        "_tokens",
        "invert",
        "mask_token",
        "max_tokens",
        "num_oov_indices",
        "oov_method",
        "oov_token",
        "output_mode",
        "pad_to_max_tokens",
        "salt",
    )

    def _begin(
        self,
        max_tokens: int | None,
        num_oov_indices: int,
        mask_token: Any,
        oov_token: Any,
        vocabulary: Any,
        idf_weights: Any,
        invert: bool,
        output_mode: str,
        pad_to_max_tokens: bool,
        sparse: bool,
        oov_method: str,
        salt: Any,
    ) -> None:
        """Set the arguments that both layers have, and the vocabulary if given."""
        what = type(self).__name__
        taken(what, (), {"sparse": sparse})
        self.max_tokens = (
            None if max_tokens is None else integer(max_tokens, f"{what}: max_tokens")
        )
        if self.max_tokens == 1:
            raise ValueError(f"{what}: max_tokens must be greater than 1")
        self.num_oov_indices = integer(num_oov_indices, f"{what}: num_oov_indices", 0)
        self.mask_token = mask_token
        self.oov_token = oov_token
        self.invert = bool(invert)
        self.output_mode = mode_of(output_mode, (*MODES, "tf_idf"), what)
        self.pad_to_max_tokens = bool(pad_to_max_tokens)
        if self.pad_to_max_tokens and self.max_tokens is None:
            raise ValueError(f"{what}: pad_to_max_tokens needs max_tokens")
        if self.invert and self.output_mode != "int":
            raise ValueError(f"{what}: invert needs output_mode='int'")
        if oov_method not in ("floormod", "farmhash"):
            raise unknown("oov_method", str(oov_method), ("floormod", "farmhash"))
        self.oov_method = oov_method
        self.salt = key_of(salt, what)
        self._tokens: list[Any] = []  # of the vocabulary, without special ones
        self._numbers: dict[Any, int] = {}
        self._idf: np.ndarray | None = None
        self._fixed = False  # whether the vocabulary was given
        self._size: int | None = None  # of a vocabulary that a file holds beside
        if vocabulary is not None:
            self.set_vocabulary(vocabulary, idf_weights)
        elif idf_weights is not None:
            raise ValueError(f"{what}: idf_weights goes with a vocabulary")

    def _keys(self, values: Any) -> list[Any]:
        """List the tokens of an array in the form in which they are looked up."""
        raise NotImplementedError

    @property
    def _first_unknown(self) -> int:
        return int(self.mask_token is not None and self.output_mode == "int")

    @property
    def _first_token(self) -> int:
        return self._first_unknown + self.num_oov_indices

    @property
    def vocabulary(self) -> list[Any] | None:
        """The tokens without special ones, or None."""
        return list(self._tokens) or None

    @property
    def idf_weights(self) -> list[float] | None:
        """The weights of the tokens, or None."""
        return None if self._idf is None else self._idf[self._first_token :].tolist()

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[Any]:
        """Return the tokens in the order of their numbers.

        Parameters
        ----------
        include_special_tokens : bool, default True
            Whether the mask token and the unknown token are listed.

        Returns
        -------
        list
            The tokens.
        """
        special = [self.mask_token] * self._first_unknown
        special += [self.oov_token] * self.num_oov_indices
        return [*(special if include_special_tokens else ()), *self._tokens]

    def vocabulary_size(self) -> int:
        """Return the number of tokens, special ones included.

        Returns
        -------
        int
            The number.
        """
        return self._first_token + len(self._tokens)

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Set the tokens.

        Parameters
        ----------
        vocabulary : array_like or path
            The tokens, with the special ones in front or without them; or a text file
            with one token a line.
        idf_weights : array_like, optional
            The weights of the tokens, which the mode ``"tf_idf"`` needs.

        Raises
        ------
        ValueError
            If a token is repeated or reserved, there are none or too many, or weights
            are missing or do not fit.
        """
        what = type(self).__name__
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = Path(vocabulary).read_text(encoding="utf-8").splitlines()
        tokens = self._keys(vocabulary)
        special = self.get_vocabulary()[: self._first_token]
        has_special = bool(special) and tokens[: len(special)] == special
        plain = tokens[len(special) :] if has_special else tokens
        if not plain:
            raise ValueError(f"{what}: the vocabulary is empty")
        repeated = [token for token, times in Counter(plain).items() if times > 1]
        if repeated:
            raise ValueError(f"{what}: the vocabulary repeats {repeated!r:.80}")
        for token in (self.mask_token, self.oov_token if self.invert else None):
            if token is not None and token in plain:
                raise ValueError(
                    f"{what}: {token!r} is a special token: list none, or all in "
                    f"front: {special}"
                )
        size = self._first_token + len(plain)
        if self.max_tokens is not None and size > self.max_tokens:
            raise ValueError(
                f"{what}: the vocabulary has {size} tokens, and max_tokens is "
                f"{self.max_tokens}"
            )
        weights = self._given_weights(idf_weights, len(tokens), has_special)
        self._set(plain)
        self._idf, self._fixed = weights, True

    def _given_weights(
        self, given: Any, tokens: int, has_special: bool
    ) -> np.ndarray | None:
        what = type(self).__name__
        if (given is None) == (self.output_mode == "tf_idf"):
            raise ValueError(f"{what}: output_mode='tf_idf' goes with idf_weights")
        if given is None:
            return None
        weights = np.asarray(given, np.float32)
        if weights.shape != (tokens,):
            raise ValueError(
                f"{what}: idf_weights has shape {weights.shape}, and there are "
                f"{tokens} tokens"
            )
        front = 0 if has_special else self._first_token
        return np.concatenate([np.full(front, weights.mean(), np.float32), weights])

    def _set(self, tokens: list[Any]) -> None:
        first = self._first_token
        self._tokens = tokens
        self._numbers = {token: first + n for n, token in enumerate(tokens)}

    def adapt(self, data: Any, steps: int | None = None) -> None:
        """Make the vocabulary of the most frequent tokens of data.

        Parameters
        ----------
        data : array_like or iterable
            The tokens, or batches of them. If batches are tuples, their first entries
            are the tokens. For ``"tf_idf"``, a row is a document.
        steps : int, optional
            The number of batches that are used.

        Raises
        ------
        ValueError
            If the layer was made with a vocabulary, or there are no tokens.
        """
        if isinstance(data, np.ndarray | list | tuple):
            data = np.asarray(data)
            data = data[:, None] if data.ndim == 1 else data  # each is a document
        documents = (
            self._documents(batch)
            for batch in batches_of(data, steps, type(self).__name__)
        )
        self._count(row for rows in documents for row in rows)

    def _documents(self, batch: Any) -> list[list[Any]]:
        """List the tokens of each document of a batch."""
        values = np.asarray(batch)
        if values.ndim < 2:
            return [self._keys(values)]
        return [self._keys(row) for row in values]

    def _count(self, documents: Iterable[list[Any]]) -> None:
        if self._fixed:
            raise ValueError(
                f"{type(self).__name__} was made with a vocabulary, and cannot be "
                "adapted"
            )
        counts: Counter[Any] = Counter()
        within: Counter[Any] = Counter()
        total = 0
        for document in documents:
            counts.update(document)
            if self.output_mode == "tf_idf":
                within.update(set(document))
                total += 1
        for token in (self.mask_token, self.oov_token):
            counts.pop(token, None)
        if not counts:
            raise ValueError(f"{type(self).__name__}: adapt got no tokens")
        most = None if self.max_tokens is None else self.max_tokens - self._first_token
        order = sorted(counts, key=lambda token: (counts[token], _bytes(token)))
        tokens = order[::-1][:most]
        self._set(tokens)
        if self.output_mode == "tf_idf":
            found = np.array([within[token] for token in tokens])
            weights = np.log(1 + total / (1 + found)).astype(np.float32)
            front = np.full(self._first_token, weights.mean(), np.float32)
            self._idf = np.concatenate([front, weights])

    def call(self, inputs: Any) -> Any:
        """Look up tokens, or with `invert` numbers.

        Parameters
        ----------
        inputs : array_like
            The tokens, or with `invert` their numbers.

        Returns
        -------
        numpy.ndarray
            The numbers, in the output mode; with `invert`, the tokens.

        Raises
        ------
        ValueError
            If there is no vocabulary yet, or a token is unknown and `num_oov_indices`
            is 0.
        """
        if not self._tokens:
            raise ValueError(
                f"{type(self).__name__} has no vocabulary: call adapt, or give one"
            )
        if self.invert:
            return self._inverted(np.asarray(inputs))
        values = np.asarray(inputs)
        return self._encoded(self._looked_up(values))

    def _encoded(self, numbers: np.ndarray) -> np.ndarray:
        if self.output_mode == "int":
            return numbers
        depth = self.depth
        if self.output_mode != "tf_idf":
            return encoded(numbers, self.output_mode, depth, np.int64)
        assert self._idf is not None
        weights = np.zeros(depth, np.float32)
        weights[: len(self._idf)] = self._idf
        return encoded(numbers, "count", depth, np.float32) * weights

    @property
    def depth(self) -> int:
        """The length of encoded rows."""
        if self.pad_to_max_tokens and self.max_tokens is not None:
            return self.max_tokens
        if self._tokens or self._size is None:
            return self.vocabulary_size()
        return self._size

    def _prepared(self, shape: Shape) -> tuple[Shape, str]:
        if not self._tokens and self._size is None:
            raise ValueError(
                f"{type(self).__name__} has no vocabulary: call adapt, or give one, "
                "before the model is made"
            )
        if self.invert:
            return shape, "int32" if isinstance(self.oov_token, int) else "string"
        return self._rows(shape, self.output_mode, self.depth)

    def _expect(self, size: int) -> None:
        self._size = size

    @property
    def lookup(self) -> _Vocabulary:
        """The layer with the vocabulary, as of `TextVectorization`."""
        return self

    def write_weights(self, file: Any, path: str) -> None:
        """Write the weights of all tokens where Keras reads them."""
        if self._idf is not None:
            depth = self.depth if self.pad_to_max_tokens else len(self._idf)
            file[path] = np.pad(self._idf, (0, depth - len(self._idf)))

    def read_assets(self, text: str, weights: np.ndarray | None) -> None:
        """Set the vocabulary that a file of Keras holds beside the configuration."""
        what = type(self).__name__
        if self._tokens:
            return
        lines = text.splitlines()
        while lines and not lines[-1]:
            lines.pop()
        self.set_vocabulary(lines, None if weights is None else weights[: len(lines)])
        self._fixed = False
        if self._size not in (None, self.vocabulary_size()):
            raise ValueError(
                f"{what}: the file has {self.vocabulary_size()} tokens, and says "
                f"{self._size}"
            )

    def _looked_up(self, values: np.ndarray) -> np.ndarray:
        """Return the numbers of tokens."""
        keys = self._keys(values)
        get, mask = self._numbers.get, self.mask_token
        found = np.array([get(key, -1) for key in keys], np.int64)
        missing = found < 0
        if mask is not None:
            masked = np.array([key == mask for key in keys], bool)
            found[masked] = 0 if self.output_mode == "int" else _OUTSIDE
            missing &= ~masked
        if missing.any():
            unknowns = [key for key, lacks in zip(keys, missing, strict=True) if lacks]
            found[missing] = self._first_unknown + self._unknown(unknowns)
        return found.reshape(values.shape)

    def _unknown(self, keys: list[Any]) -> Any:
        """Return which unknown token each key is."""
        if not self.num_oov_indices:
            raise ValueError(
                f"{type(self).__name__}: {sorted(set(keys), key=_bytes)!r:.80} are not "
                "in the vocabulary; num_oov_indices=1 gives them a number"
            )
        if self.num_oov_indices == 1:
            return 0
        values = np.array(keys)
        if values.dtype.kind in "iu" and self.oov_method != "farmhash":
            return values % self.num_oov_indices
        return hashed(values, self.num_oov_indices, self.salt)

    def _inverted(self, numbers: np.ndarray) -> np.ndarray:
        vocabulary = self.get_vocabulary()
        size = len(vocabulary)
        tokens = [
            vocabulary[n] if 0 <= n < size else self.oov_token
            for n in numbers.ravel().tolist()
        ]
        return np.array(tokens).reshape(numbers.shape)


def _bytes(token: Any) -> Any:
    """Return what tokens of equal counts are sorted by."""
    return token.encode("utf-8", "surrogateescape") if isinstance(token, str) else token
