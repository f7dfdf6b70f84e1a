"""Sequence to sequence, with attention."""

from __future__ import annotations

from memcfg import nn
from memcfg.models._arguments import network

__all__ = ["seq2seq_attention"]


@network
def seq2seq_attention(
    layers: int = 4,
    units: int = 1000,
    *,
    vocabulary_size: int = 50_000,
    sequence_length: int = 50,
    dropout: float = 0.2,
    name: str = "seq2seq_attention",
) -> nn.Model:
    """Return Luong's translation model: LSTM layers, and global attention.

    It reads two arrays of integers of shape ``(N, sequence_length)``: the source, and
    the target one step late (teacher forcing). It gives logits of the target's next
    word at each step. Scores of attention are bilinear ("general"), and what was
    attended to is not fed to the next step.

    Parameters
    ----------
    layers : int, default 4
        How many LSTM layers each side has.
    units : int, default 1000
        Their states' length, and that of the words' vectors.
    vocabulary_size : int, default 50_000
        How many words each language has.
    sequence_length : int, default 50
        Steps of a sentence.
    dropout : float, default 0.2
        The part to drop of what goes from layer to layer.
    name : str, default "seq2seq_attention"
        The model's name.

    Returns
    -------
    Model
        With inputs ``"source"`` and ``"target"``. Not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

    References
    ----------
    Luong, Pham and Manning, "Effective approaches to attention-based neural machine
    translation", EMNLP 2015.
    """
    source, target = (
        nn.Input((sequence_length,), dtype="int32", name=side)
        for side in ("source", "target")
    )
    x = nn.Embedding(vocabulary_size, units, name="source_words")(source)
    y = nn.Embedding(vocabulary_size, units, name="target_words")(target)
    for i in range(1, layers + 1):
        x, *states = nn.LSTM(
            units, return_sequences=True, return_state=True, name=f"encoder{i}"
        )(nn.Dropout(dropout)(x))
        y = nn.LSTM(units, return_sequences=True, name=f"decoder{i}")(
            nn.Dropout(dropout)(y), initial_state=states
        )
    query = nn.Dense(units, use_bias=False, name="scores")(y)
    y = nn.Concatenate()([nn.Attention()([query, x]), y])
    y = nn.Dense(units, "tanh", use_bias=False, name="attended")(y)
    logits = nn.Dense(vocabulary_size, name="logits")(nn.Dropout(dropout)(y))
    return nn.Model([source, target], logits, name=name)
