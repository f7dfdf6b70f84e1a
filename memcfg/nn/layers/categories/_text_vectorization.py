"""`TextVectorization`: texts to numbers of their words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._checks import unknown
from memcfg.nn._argument_checks import integer
from memcfg.nn._keras_arguments import taken
from memcfg.nn.layers._layer import show_shape
from memcfg.nn.layers.categories._data_layer import batches_of
from memcfg.nn.layers.categories._lookups import StringLookup
from memcfg.nn.layers.categories._preparing import _Preparing

if TYPE_CHECKING:
    from collections.abc import Callable

    from memcfg.nn.layers._layer import Shape

_STANDARDS = ("lower_and_strip_punctuation", "lower", "strip_punctuation")
_SPLITS = ("whitespace", "character")
_PUNCTUATION = b"!\"#$%&()*+,-./:;<=>?@[\\]^_`{|}~'"


class TextVectorization(_Preparing):
    """Replace texts by the numbers of their words.

    Parameters
    ----------
    max_tokens : int, optional
        The largest size of the vocabulary, special tokens included.
    standardize : str, callable or None, default "lower_and_strip_punctuation"
        What is done to texts first: this, ``"lower"`` or ``"strip_punctuation"``, for
        ASCII; or a function from an array of str to one. None: nothing.
    split : {"whitespace", "character"} or callable or None, default "whitespace"
        How texts are split; or a function from an array of str to a list of words for
        each. None: a text is a word.
    ngrams : int or tuple of int, optional
        The lengths of groups of words that are words, too: up to an int, or those
        listed.
    output_mode : str, default "int"
        ``"int"``: numbers, padded with 0; or int64 rows, ``"multi_hot"`` or
        ``"count"``; or ``"tf_idf"``, float32 counts times weights.
    output_sequence_length : int, optional
        The length to which numbers are cut or padded. None: that of the longest text.
    pad_to_max_tokens : bool, default False
        Whether rows have `max_tokens` elements.
    vocabulary : array_like of str or path, optional
        The words, or a text file with one a line. None: `adapt` finds them.
    idf_weights : array_like of float, optional
        The weights of the words, for ``"tf_idf"``.
    sparse, ragged : bool, default False
        Must be False: arrays are dense.
    encoding : str, default "utf-8"
        The encoding of byte strings.
    name : str, optional
        The name.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type, is unknown, or contradicts another.

    Examples
    --------
    >>> import memcfg as mc
    >>> layer = mc.nn.layers.TextVectorization(output_sequence_length=4)
    >>> layer.adapt(["foo bar", "bar baz", "baz bada boom"])
    >>> layer.get_vocabulary()
    ['', '[UNK]', 'baz', 'bar', 'foo', 'boom', 'bada']
    >>> layer(["Foo, qux bar!", "qux baz"])
    array([[4, 1, 3, 0],
           [1, 2, 0, 0]])
    """

    __slots__ = (
        "_lookup",
        "encoding",
        "ngrams",
        "output_mode",
        "output_sequence_length",
        "split",
        "standardize",
    )

    def __init__(
        self,
        max_tokens: int | None = None,
        standardize: str | Callable[[Any], Any] | None = "lower_and_strip_punctuation",
        split: str | Callable[[Any], Any] | None = "whitespace",
        ngrams: int | tuple[int, ...] | None = None,
        output_mode: str = "int",
        output_sequence_length: int | None = None,
        pad_to_max_tokens: bool = False,
        vocabulary: Any = None,
        idf_weights: Any = None,
        sparse: bool = False,
        ragged: bool = False,
        encoding: str = "utf-8",
        *,
        name: str | None = None,
    ) -> None:
        what = "TextVectorization"
        taken(what, (), {"sparse": sparse, "ragged": ragged})
        for given, known, word in (
            (standardize, _STANDARDS, "standardize"),
            (split, _SPLITS, "split"),
        ):
            if not (given is None or callable(given) or given in known):
                raise unknown(word, str(given), known, f"{what}: ")
        self.standardize = standardize
        self.split = split
        self.ngrams = ngrams
        if ngrams is not None:
            _widths(ngrams)
        self._lookup = StringLookup(
            max_tokens=max_tokens,
            mask_token="",
            vocabulary=vocabulary,
            idf_weights=idf_weights,
            output_mode=output_mode,
            pad_to_max_tokens=pad_to_max_tokens,
            encoding=encoding,
        )
        self.output_mode = self._lookup.output_mode
        self.encoding = encoding
        if output_sequence_length is not None:
            integer(output_sequence_length, f"{what}: output_sequence_length")
            if self.output_mode != "int":
                raise ValueError(
                    f"{what}: output_sequence_length goes with output_mode='int'"
                )
        self.output_sequence_length = output_sequence_length
        super().__init__(name)

    @property
    def max_tokens(self) -> int | None:
        """The largest size of the vocabulary."""
        return self._lookup.max_tokens

    @property
    def pad_to_max_tokens(self) -> bool:
        """Whether rows have `max_tokens` elements."""
        return self._lookup.pad_to_max_tokens

    @property
    def vocabulary(self) -> list[str] | None:
        """The words without special ones, or None."""
        return self._lookup.vocabulary

    @property
    def idf_weights(self) -> list[float] | None:
        """The weights of the words, or None."""
        return self._lookup.idf_weights

    def get_vocabulary(self, include_special_tokens: bool = True) -> list[str]:
        """Return the words in the order of their numbers.

        Parameters
        ----------
        include_special_tokens : bool, default True
            Whether the padding and the unknown word are listed.

        Returns
        -------
        list of str
            The words.
        """
        return self._lookup.get_vocabulary(include_special_tokens)

    def vocabulary_size(self) -> int:
        """Return the number of words, special ones included.

        Returns
        -------
        int
            The number.
        """
        return self._lookup.vocabulary_size()

    def set_vocabulary(self, vocabulary: Any, idf_weights: Any = None) -> None:
        """Set the words.

        Parameters
        ----------
        vocabulary : array_like of str or path
            The words, with the special ones in front or without them; or a text file
            with one a line.
        idf_weights : array_like of float, optional
            The weights of the words, which the mode ``"tf_idf"`` needs.

        Raises
        ------
        ValueError
            As for `StringLookup.set_vocabulary`.
        """
        self._lookup.set_vocabulary(vocabulary, idf_weights)

    def adapt(
        self, data: Any, batch_size: int | None = None, steps: int | None = None
    ) -> None:
        """Make the vocabulary of the most frequent words of texts.

        Parameters
        ----------
        data : array_like of str or iterable
            The texts, or batches of them. If batches are tuples, their first entries
            are the texts.
        batch_size : int, optional
            Ignored: texts are counted one after the other.
        steps : int, optional
            The number of batches that are used.

        Raises
        ------
        ValueError
            If the layer was made with a vocabulary, or there are no words.
        """
        del batch_size
        self._lookup._count(
            words
            for batch in batches_of(data, steps, "TextVectorization")
            for words in self._words(np.asarray(batch))
        )

    def call(self, inputs: Any) -> np.ndarray:
        """Return the numbers of the words of texts.

        Parameters
        ----------
        inputs : array_like of str or bytes
            The texts, of shape (), (n,) or (n, 1).

        Returns
        -------
        numpy.ndarray
            The numbers, in the output mode.

        Raises
        ------
        TypeError
            If they are not text.
        ValueError
            If there is no vocabulary yet, or the shape is another.
        """
        texts = np.asarray(inputs)
        if not self._lookup._tokens:
            raise ValueError(
                "TextVectorization has no vocabulary: call adapt, or give one"
            )
        rows = [
            self._lookup._looked_up(np.array(words, object))
            for words in self._words(texts)
        ]
        if self.output_mode == "int":
            result = self._padded(rows)
        else:
            result = np.array([self._lookup._encoded(row) for row in rows])
        return result[0] if texts.ndim == 0 else result

    def _prepared(self, shape: Shape) -> tuple[Shape, str]:
        if shape != (1,) and self.split is not None:
            raise ValueError(
                "TextVectorization takes texts of shape (None, 1), not "
                f"{show_shape(shape)}"
            )
        wide, dtype = self._lookup._prepared((1,))
        if self.output_mode != "int":
            return wide, dtype
        if self.output_sequence_length is None:
            raise ValueError(
                "TextVectorization in a model needs output_sequence_length: a batch of "
                "texts has one length"
            )
        return (self.output_sequence_length,), dtype

    def _expect(self, size: int) -> None:
        self._lookup._expect(size)

    @property
    def lookup(self) -> StringLookup:
        """The layer with the vocabulary."""
        return self._lookup

    def _padded(self, rows: list[np.ndarray]) -> np.ndarray:
        length = self.output_sequence_length
        if length is None:
            length = max(map(len, rows), default=0)
        result = np.zeros((len(rows), length), np.int64)
        for target, row in zip(result, rows, strict=True):
            target[: len(row)] = row[:length]
        return result

    def _words(self, texts: np.ndarray) -> list[list[str]]:
        """List the words of each text."""
        if texts.dtype.kind not in "OSU":
            raise TypeError(f"TextVectorization takes text, not {texts.dtype}")
        width = texts.shape[1] if texts.ndim == 2 else 1
        if texts.ndim > 2 or (width != 1 and self.split is not None):
            raise ValueError(
                "TextVectorization takes texts of shape (), (n,) or (n, 1), not "
                f"{texts.shape}"
            )
        whole = [self._standardized(each) for each in texts.ravel().tolist()]
        if callable(self.standardize):
            whole = np.asarray(self.standardize(np.array(whole))).ravel().tolist()
        if self.split == "whitespace":  # ASCII's, as in TensorFlow
            split = [
                [self._decoded(word) for word in self._bytes(text).split()]
                for text in whole
            ]
        elif self.split == "character":
            split = [list(text) for text in whole]
        elif callable(self.split):
            split = [list(map(str, words)) for words in self.split(np.array(whole))]
        else:
            split = [whole[n : n + width] for n in range(0, len(whole), width)]
        return split if self.ngrams is None else list(map(self._grouped, split))

    def _standardized(self, text: Any) -> str:
        data = self._bytes(text)
        if self.standardize in ("lower", "lower_and_strip_punctuation"):
            data = data.lower()
        if self.standardize in ("strip_punctuation", "lower_and_strip_punctuation"):
            data = data.translate(None, _PUNCTUATION)
        return self._decoded(data)

    def _bytes(self, text: Any) -> bytes:
        if isinstance(text, bytes):
            return text
        return str(text).encode(self.encoding, "surrogateescape")

    def _decoded(self, data: bytes) -> str:
        return data.decode(self.encoding, "surrogateescape")

    def _grouped(self, words: list[str]) -> list[str]:
        return [
            " ".join(words[n : n + width])
            for width in _widths(self.ngrams)
            for n in range(len(words) - width + 1)
        ]


def _widths(ngrams: Any) -> tuple[int, ...]:
    if isinstance(ngrams, tuple | list):
        return tuple(integer(each, "TextVectorization: ngrams") for each in ngrams)
    return tuple(range(1, integer(ngrams, "TextVectorization: ngrams") + 1))
