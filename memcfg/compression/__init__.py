"""Models in a fraction of their bytes: codes of weights, and files that hold them.

`encode` codes an array in which many values are 0 and the others take few values, as
Deep Compression does: gaps between the values that are not 0, numbers of a codebook,
and canonical Huffman codes of both. `CompressedModel` is a model as the bytes of such a
file, which `load` opens.
"""

from memcfg.compression._compressed_model import CodedWeight, CompressedModel, load
from memcfg.compression.coding import Coding, EncodedArray, encode

__all__ = [
    "CodedWeight",
    "Coding",
    "CompressedModel",
    "EncodedArray",
    "encode",
    "load",
]
