"""Language models of recurrent layers."""

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
    """Return a language model of LSTM layers, by default Zaremba's medium one.

    It reads integers of shape ``(N, sequence_length)``, and gives logits of the next
    word at each step. Every sequence begins with states of zeros.

    Parameters
    ----------
    layers : int, default 2
        How many LSTM layers there are.
    units : int, default 650
        Their states' length, and that of the words' vectors; 1500 in the large model.
    vocabulary_size : int, default 10_000
        How many words there are.
    sequence_length : int, default 35
        Steps of a sequence.
    dropout : float, default 0.5
        The part to drop of what goes from layer to layer; 0.65 in the large model.
    name : str, default "lstm_lm"
        The model's name.

    Returns
    -------
    Model
        Of 19,775,200 parameters by default. Not compiled.

    Raises
    ------
    TypeError, ValueError
        If an argument cannot be honoured.

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
