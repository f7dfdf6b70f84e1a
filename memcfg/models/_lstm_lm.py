"""LSTM language models."""

from __future__ import annotations

from memcfg import nn
from memcfg.models._arguments import network

__all__ = ["lstm_lm"]


@network
def lstm_lm(
    layers: int = 2,
    units: int = 650,
    *,
    vocabulary_size: int = 10_000,
    sequence_length: int = 35,
    dropout: float = 0.5,
    name: str = "lstm_lm",
) -> nn.Model:
    """Return an LSTM language model, by default Zaremba's medium one.

    It reads integers of shape ``(N, sequence_length)`` and returns logits of the next
    word at each step. Initial states are zero.

    Parameters
    ----------
    layers : int, default 2
        Number of LSTM layers.
    units : int, default 650
        Length of states and of word embeddings; 1500 in the large model.
    vocabulary_size : int, default 10_000
        Number of words.
    sequence_length : int, default 35
        Steps of a sequence.
    dropout : float, default 0.5
        Fraction of the values between layers to drop; 0.65 in the large model.
    name : str, default "lstm_lm"
        The model's name.

    Returns
    -------
    Model
        A model of 19,775,200 parameters by default, not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument is invalid or not supported.

    References
    ----------
    Zaremba, Sutskever and Vinyals, "Recurrent neural network regularization",
    arXiv:1409.2329, 2014.
    """
    x = inputs = nn.Input((sequence_length,), dtype="int32")
    x = nn.Embedding(vocabulary_size, units, name="words")(x)
    x = nn.Dropout(dropout)(x)
    for i in range(1, layers + 1):
        x = nn.LSTM(units, return_sequences=True, name=f"lstm{i}")(x)
        x = nn.Dropout(dropout)(x)
    return nn.Model(inputs, nn.Dense(vocabulary_size, name="logits")(x), name=name)
