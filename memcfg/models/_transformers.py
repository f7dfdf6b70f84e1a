"""Transformers: BERT's encoder and GPT-2's decoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg import nn
from memcfg.models._arguments import network
from memcfg.nn._argument_checks import integer

if TYPE_CHECKING:
    from memcfg.nn import SymbolicTensor

__all__ = ["bert_encoder", "gpt"]

_START = nn.TruncatedNormal(stddev=0.02)


@network
def bert_encoder(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    *,
    vocabulary_size: int = 30_522,
    sequence_length: int = 512,
    dropout: float = 0.1,
    mask_zero: bool = False,
    classes: int | None = None,
    name: str = "bert_encoder",
) -> nn.Model:
    """Return BERT's encoder, by default of the size of BERT base.

    It reads two arrays of integers of shape ``(N, sequence_length)``: words, and the
    number of each word's segment, 0 or 1. It returns the hidden states of the last
    layer, or the logits of `classes`.

    Parameters
    ----------
    layers : int, default 12
        Number of blocks of attention and two dense layers.
    hidden : int, default 768
        Length of the hidden states, a multiple of `heads`.
    heads : int, default 12
        Number of attention heads.
    vocabulary_size : int, default 30_522
        Number of words.
    sequence_length : int, default 512
        Steps of a sequence.
    dropout : float, default 0.1
        Fraction of hidden states and of attention weights to drop.
    mask_zero : bool, default False
        Whether word 0 is padding, which is masked in attention.
    classes : int, optional
        Number of logits, computed by BERT's pooler and a dense layer from the first
        step. None: without both.
    name : str, default "bert_encoder"
        The model's name.

    Returns
    -------
    Model
        A model of 108,891,648 parameters by default with inputs ``"tokens"`` and
        ``"segments"``, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Devlin, Chang, Lee and Toutanova, "BERT: pre-training of deep bidirectional
    transformers for language understanding", NAACL 2019.
    """
    size = _head_size(hidden, heads, "bert_encoder")
    tokens, segments = (
        nn.Input((sequence_length,), dtype="int32", name=each)
        for each in ("tokens", "segments")
    )
    words = nn.Embedding(
        vocabulary_size, hidden, _START, mask_zero=mask_zero, name="words"
    )(tokens)
    places = nn.PositionEmbedding(sequence_length, _START, name="positions")(words)
    kinds = nn.Embedding(2, hidden, _START, name="kinds")(segments)
    x = nn.Add()([words, places, kinds])
    x = nn.Dropout(dropout)(_normalized(x, 1e-12, "norm"))
    for i in range(integer(layers, "bert_encoder: layers")):
        block = f"layer{i}"
        y = nn.MultiHeadAttention(
            heads,
            size,
            dropout=dropout,
            kernel_initializer=_START,
            name=f"{block}.attention",
        )(x, x)
        x = nn.Add()([x, nn.Dropout(dropout)(y)])
        x = _normalized(x, 1e-12, f"{block}.norm1")
        y = _widened(x, approximate=False, name=block)
        x = nn.Add()([x, nn.Dropout(dropout)(y)])
        x = _normalized(x, 1e-12, f"{block}.norm2")
    if classes is not None:
        pooled = nn.Dense(hidden, "tanh", kernel_initializer=_START, name="pooler")(
            x[:, 0]
        )
        x = nn.Dense(classes, kernel_initializer=_START, name="classifier")(
            nn.Dropout(dropout)(pooled)
        )
    return nn.Model([tokens, segments], x, name=name)


@network
def gpt(
    layers: int = 12,
    hidden: int = 768,
    heads: int = 12,
    *,
    vocabulary_size: int = 50_257,
    sequence_length: int = 1024,
    dropout: float = 0.1,
    name: str = "gpt",
) -> nn.Model:
    """Return a GPT-2 decoder, by default the small one.

    It reads integers of shape ``(N, sequence_length)`` and returns logits of the next
    one at each step. The output layer shares the weights of the embedding.

    Parameters
    ----------
    layers : int, default 12
        Number of blocks of attention and two dense layers.
    hidden : int, default 768
        Length of the hidden states, a multiple of `heads`.
    heads : int, default 12
        Number of attention heads.
    vocabulary_size : int, default 50_257
        Number of words.
    sequence_length : int, default 1024
        Steps of a sequence.
    dropout : float, default 0.1
        Fraction of hidden states and of attention weights to drop.
    name : str, default "gpt"
        The model's name.

    Returns
    -------
    Model
        A model of 124,439,808 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Radford, Wu, Child, Luan, Amodei and Sutskever, "Language models are unsupervised
    multitask learners", 2019.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.models.gpt(2, 64, 4, vocabulary_size=100, sequence_length=32)
    >>> model.output_shape
    (None, 32, 100)
    """
    size = _head_size(hidden, heads, "gpt")
    tokens = nn.Input((sequence_length,), dtype="int32")
    words = nn.ReversibleEmbedding(
        vocabulary_size, hidden, embeddings_initializer=_START, name="words"
    )
    x = words(tokens)
    places = nn.PositionEmbedding(sequence_length, _START, name="positions")(x)
    x = nn.Dropout(dropout)(nn.Add()([x, places]))
    for i in range(integer(layers, "gpt: layers")):
        block = f"layer{i}"
        y = _normalized(x, 1e-5, f"{block}.norm1")
        y = nn.MultiHeadAttention(
            heads,
            size,
            dropout=dropout,
            kernel_initializer=_START,
            name=f"{block}.attention",
        )(y, y, use_causal_mask=True)
        x = nn.Add()([x, nn.Dropout(dropout)(y)])
        y = _widened(_normalized(x, 1e-5, f"{block}.norm2"), True, block)
        x = nn.Add()([x, nn.Dropout(dropout)(y)])
    x = _normalized(x, 1e-5, "norm")
    return nn.Model(tokens, words(x, reverse=True), name=name)


def _head_size(hidden: int, heads: int, function: str) -> int:
    """Return the size of a head's keys; ValueError if it is not an integer."""
    whole, parts = integer(hidden, "hidden"), integer(heads, "heads")
    if whole % parts:
        raise ValueError(
            f"{function}: hidden ({whole}) is not a multiple of heads ({parts})"
        )
    return whole // parts


def _normalized(x: SymbolicTensor, epsilon: float, name: str) -> SymbolicTensor:
    result: SymbolicTensor = nn.LayerNormalization(epsilon=epsilon, name=name)(x)
    return result


def _widened(x: SymbolicTensor, approximate: bool, name: str) -> SymbolicTensor:
    """Append the feed-forward layers, with a hidden width of four times the input."""
    hidden = x.sample_shape[-1]
    y = nn.Dense(4 * hidden, kernel_initializer=_START, name=f"{name}.dense1")(x)
    y = nn.activations.gelu(y, approximate)
    result: SymbolicTensor = nn.Dense(
        hidden, kernel_initializer=_START, name=f"{name}.dense2"
    )(y)
    return result
