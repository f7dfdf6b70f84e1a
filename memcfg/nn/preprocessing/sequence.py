"""Keras's functions of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.nn.utils import pad_sequences

__all__ = ["pad_sequences"]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = ": use nn.utils.timeseries_dataset_from_array"
        refuse(__name__, name, why if "Generator" in name else "")
