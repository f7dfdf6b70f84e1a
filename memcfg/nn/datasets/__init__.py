"""Keras's small data sets, which `nn.utils.get_file` downloads once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg.nn.datasets import (
    boston_housing,
    california_housing,
    cifar10,
    cifar100,
    fashion_mnist,
    mnist,
)

__all__ = [
    "boston_housing",
    "california_housing",
    "cifar10",
    "cifar100",
    "fashion_mnist",
    "mnist",
]

_PICKLED = "its file is a pickle, which memcfg does not execute: use text files"

if not TYPE_CHECKING:  # otherwise type checkers would accept any name

    def __getattr__(name: str) -> NoReturn:
        refuse(__name__, name, f": {_PICKLED}" if name in ("imdb", "reuters") else "")
