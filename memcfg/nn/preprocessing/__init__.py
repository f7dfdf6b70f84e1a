"""Keras's functions that prepare data, which `nn.utils` has, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.nn.loading._image_dataset import image_dataset_from_directory
from memcfg.nn.loading._text_dataset import text_dataset_from_directory
from memcfg.nn.loading._timeseries import timeseries_dataset_from_array
from memcfg.nn.preprocessing import image, sequence

__all__ = [
    "image",
    "image_dataset_from_directory",
    "sequence",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = ": TextVectorization makes integers of texts" if name == "text" else ""
        refuse(__name__, name, why)
