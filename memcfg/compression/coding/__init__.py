"""Codes of compressed weights, and the files that hold them."""

from __future__ import annotations

from memcfg.compression.coding._coding import Coding
from memcfg.compression.coding._encoded_array import EncodedArray, Parts, encode

__all__ = [
    "Coding",
    "EncodedArray",
    "Parts",
    "encode",
]
