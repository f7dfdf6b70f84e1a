"""Codes of compressed weights, and the files that hold them."""

from __future__ import annotations

from memcfg.compression.coding._coding import Coding
from memcfg.compression.coding._compressed_file import (
    CompressedFile,
    Section,
    StoredWeight,
)
from memcfg.compression.coding._encoded_array import EncodedArray, Parts, encode

__all__ = [
    "Coding",
    "CompressedFile",
    "EncodedArray",
    "Parts",
    "Section",
    "StoredWeight",
    "encode",
]
