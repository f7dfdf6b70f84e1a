"""Sequence-to-sequence models with attention."""

from __future__ import annotations

from memcfg import nn
from memcfg._checks import unknown
from memcfg.models._arguments import network

__all__ = ["seq2seq_attention"]

_ATTENTION = ("bilinear", "additive")


@network
def seq2seq_attention(
    layers: int = 4,
    units: int = 1000,
    *,
    vocabulary_size: int = 50_000,
    sequence_length: int = 50,
    dropout: float = 0.2,
    attention: str = "bilinear",
    name: str = "seq2seq_attention",
) -> nn.Model:
    """Return Luong's translation model of LSTM layers and global attention.

    It reads two arrays of integers of shape ``(N, sequence_length)``: the source, and
    the target delayed by a step (teacher forcing). It returns logits of the target's
    next word at each step.

    Parameters
    ----------
    layers : int, default 4
        Number of LSTM layers of the encoder, and of the decoder.
    units : int, default 1000
        Length of states and of word embeddings.
    vocabulary_size : int, default 50_000
        Number of words of each language.
    sequence_length : int, default 50
        Steps of a sentence.
    dropout : float, default 0.2
        Fraction of the values between layers to drop.
    attention : {"bilinear", "additive"}, default "bilinear"
        ``"bilinear"``: Luong's "general" scores, without input feeding, so that the
        decoder's layers process whole sequences. ``"additive"``: Bahdanau's attention,
        whose query is the previous state; the context is an input of the decoder
        together with the word, so that the decoder runs step by step.
    name : str, default "seq2seq_attention"
        The model's name.

    Returns
    -------
    Model
        A model with inputs ``"source"`` and ``"target"``, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Luong, Pham and Manning, "Effective approaches to attention-based neural machine
    translation", EMNLP 2015. Bahdanau, Cho and Bengio, "Neural machine translation by
    jointly learning to align and translate", ICLR 2015.
    """
    if attention not in _ATTENTION:
        raise unknown("attention", attention, _ATTENTION)
    source, target = (
        nn.Input((sequence_length,), dtype="int32", name=side)
        for side in ("source", "target")
    )
    x = nn.Embedding(vocabulary_size, units, name="source_words")(source)
    y = nn.Embedding(vocabulary_size, units, name="target_words")(target)
    states = []
    for i in range(1, layers + 1):
        x, *state = nn.LSTM(
            units, return_sequences=True, return_state=True, name=f"encoder{i}"
        )(nn.Dropout(dropout)(x))
        states.append(state)
        if attention == "bilinear":
            y = nn.LSTM(units, return_sequences=True, name=f"decoder{i}")(
                nn.Dropout(dropout)(y), initial_state=state
            )
    if attention == "bilinear":
        query = nn.Dense(units, use_bias=False, name="scores")(y)
        y = nn.Concatenate()([nn.Attention()([query, x]), y])
    else:
        y = nn.Dropout(dropout)(y)
        y = _decoded_by_steps(x, y, states, (sequence_length, units), dropout)
    y = nn.Dense(units, "tanh", use_bias=False, name="attended")(y)
    logits = nn.Dense(vocabulary_size, name="logits")(nn.Dropout(dropout)(y))
    return nn.Model([source, target], logits, name=name)


def _decoded_by_steps(
    x: nn.SymbolicTensor,
    y: nn.SymbolicTensor,
    states: list[list[nn.SymbolicTensor]],
    shape: tuple[int, int],
    dropout: float,
) -> nn.SymbolicTensor:
    """Return the context and the decoder's output of each step, concatenated."""
    steps, units = shape
    keys = nn.Dense(units, use_bias=False, name="keys")(x)
    queries = nn.Dense(units, use_bias=False, name="queries")
    attend, squeezed = nn.AdditiveAttention(name="scores"), nn.Reshape((1, units))
    cells = [
        nn.LSTM(units, return_sequences=True, return_state=True, name=f"decoder{i}")
        for i in range(1, len(states) + 1)
    ]
    outputs = []
    for step in range(steps):
        word = nn.Cropping1D((step, steps - 1 - step))(y)
        context = attend([queries(squeezed(states[-1][0])), x, keys])
        out = nn.Concatenate()([word, context])
        after = []
        for place, (cell, state) in enumerate(zip(cells, states, strict=True)):
            given = nn.Dropout(dropout)(out) if place else out
            out, *state = cell(given, initial_state=state)
            after.append(state)
        states = after
        outputs.append(nn.Concatenate()([context, out]))
    whole: nn.SymbolicTensor = nn.Concatenate(axis=1)(outputs)
    return whole
