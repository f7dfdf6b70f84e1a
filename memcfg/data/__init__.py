"""Datasets: batches prepared in the background, inside the device's limit.

Pipelines with tf.data's names, and DL4J's asynchronous iterators.

Arrays come from the pool of the current device. Prefetched batches lie in blocks that
are reused, but a block is never overwritten while an array in it is alive.

Examples
--------
>>> import numpy as np
>>> import memcfg as mc
>>> x, y = np.zeros((70, 4), "float32"), np.arange(70)
>>> data = mc.data.Dataset.from_tensor_slices((x, y)).batch(32)
>>> for features, labels in data.prefetch(mc.data.experimental.AUTOTUNE):
...     print(features.shape, labels[0])
(32, 4) 0
(32, 4) 32
(6, 4) 64
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from memcfg._missing import refuse
from memcfg._tensorflow_names import DATA
from memcfg.data import experimental
from memcfg.data._dataset import Dataset
from memcfg.data._options import AutotuneOptions, Options, ThreadingOptions
from memcfg.data._pipeline_report import PipelineReport, StageReport
from memcfg.data.dl4j._async_iterators import (
    AsyncDataSetIterator,
    AsyncMultiDataSetIterator,
    DataSetCallback,
    DefaultCallback,
    InterleavedDataSetCallback,
)
from memcfg.data.dl4j._data_sets import DataSet, MultiDataSet, SplitTestAndTrain
from memcfg.data.dl4j._iterators import (
    AsyncShieldDataSetIterator,
    AsyncShieldMultiDataSetIterator,
    DataSetIterator,
    DataSetIteratorSplitter,
    DummyBlockDataSetIterator,
    EarlyTerminationDataSetIterator,
    ExistingDataSetIterator,
    ListDataSetIterator,
    MultipleEpochsIterator,
    WorkspacesShieldDataSetIterator,
)
from memcfg.data.elements._spec import DatasetSpec, TensorSpec
from memcfg.data.engine._iterator import DatasetIterator
from memcfg.data.experimental import (
    AUTOTUNE,
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
)
from memcfg.data.sources._example_messages import (
    BytesList,
    Example,
    Feature,
    Features,
    FloatList,
    Int64List,
)
from memcfg.data.sources._features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    VarLenFeature,
)
from memcfg.data.sources._fixed_length_record_dataset import FixedLengthRecordDataset
from memcfg.data.sources._parse_example import parse_example, parse_single_example
from memcfg.data.sources._text_line_dataset import TextLineDataset
from memcfg.data.sources._tfrecord_dataset import TFRecordDataset
from memcfg.data.sources._tfrecord_writer import TFRecordOptions, TFRecordWriter

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "AsyncDataSetIterator",
    "AsyncMultiDataSetIterator",
    "AsyncShieldDataSetIterator",
    "AsyncShieldMultiDataSetIterator",
    "AutotuneOptions",
    "BytesList",
    "DataSet",
    "DataSetCallback",
    "DataSetIterator",
    "DataSetIteratorSplitter",
    "Dataset",
    "DatasetIterator",
    "DatasetSpec",
    "DefaultCallback",
    "DummyBlockDataSetIterator",
    "EarlyTerminationDataSetIterator",
    "Example",
    "ExistingDataSetIterator",
    "Feature",
    "Features",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "FixedLengthRecordDataset",
    "FloatList",
    "Int64List",
    "InterleavedDataSetCallback",
    "ListDataSetIterator",
    "MultiDataSet",
    "MultipleEpochsIterator",
    "Options",
    "PipelineReport",
    "SplitTestAndTrain",
    "StageReport",
    "TFRecordDataset",
    "TFRecordOptions",
    "TFRecordWriter",
    "TensorSpec",
    "TextLineDataset",
    "ThreadingOptions",
    "VarLenFeature",
    "WorkspacesShieldDataSetIterator",
    "experimental",
    "parse_example",
    "parse_single_example",
]

if not TYPE_CHECKING:  # with __getattr__, a checker would accept any name

    def __getattr__(name: str) -> NoReturn:
        why = DATA.get(name)
        refuse(__name__, name, f", which tf.data has: {why}" if why else "")
