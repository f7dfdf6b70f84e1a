"""What tf.data has under `experimental`; the constants are also in `memcfg.data`."""

from __future__ import annotations

from memcfg.data.engine._autotune import AUTOTUNE
from memcfg.data.ops._node import INFINITE as INFINITE_CARDINALITY
from memcfg.data.ops._node import UNKNOWN as UNKNOWN_CARDINALITY
from memcfg.data.sources._csv_dataset import CsvDataset
from memcfg.data.sources._make_csv_dataset import make_csv_dataset

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "CsvDataset",
    "make_csv_dataset",
]
