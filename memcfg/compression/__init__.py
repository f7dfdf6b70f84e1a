"""Models in a fraction of their bytes: pruned, with shared weights, coded in files.

`compress` makes all stages of Deep Compression, with training in between; `prune`,
`share_weights` and others make one each, and return models that `fit` trains further.
`encode` codes an array in which many values are 0 and the others take few values: gaps
between the values that are not 0, numbers of a codebook, and canonical Huffman codes of
both. `CompressedModel` is a model as the bytes of such a file, which `load` opens.
"""

from memcfg.compression._compress import compress
from memcfg.compression._compressed_model import CodedWeight, CompressedModel, load
from memcfg.compression._k_means import Clusters, k_means
from memcfg.compression._pruning import density_schedule, prune
from memcfg.compression._quantization import quantize
from memcfg.compression._rate_distortion import (
    Quantized,
    quantize_by_rate,
    rate_distortion,
)
from memcfg.compression._sensitivity import Sensitivity, sensitivity
from memcfg.compression._sharing import share_weights
from memcfg.compression._sparse_bytes import (
    count_fillers,
    expected_fillers,
    sparse_bytes,
)
from memcfg.compression._stage_report import Report, Stage, WeightSummary
from memcfg.compression._strip import strip
from memcfg.compression.coding import Coding, EncodedArray, encode

__all__ = [
    "Clusters",
    "CodedWeight",
    "Coding",
    "CompressedModel",
    "EncodedArray",
    "Quantized",
    "Report",
    "Sensitivity",
    "Stage",
    "WeightSummary",
    "compress",
    "count_fillers",
    "density_schedule",
    "encode",
    "expected_fillers",
    "k_means",
    "load",
    "prune",
    "quantize",
    "quantize_by_rate",
    "rate_distortion",
    "sensitivity",
    "share_weights",
    "sparse_bytes",
    "strip",
]
