"""TensorFlow's names that are not here, and what to do instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DATA", "DATASET", "TOP"]

_TAPE = (
    "gradients are derived when a model is compiled: use Model.fit, or train_on_batch "
    "in a loop of your own"
)
_TRACED = "every step is one planned program already: remove the decorator"
_ARRAYS = "use NumPy's arrays and dtypes; models take and return them"
_OPS = "memcfg.nn.ops computes with symbolic tensors; use NumPy for arrays"
_FILES = (
    "read records in a generator, and make a dataset of it with "
    "Dataset.from_generator; Dataset.from_tensor_slices takes memory-mapped files"
)

TOP: Mapping[str, str] = {
    **dict.fromkeys(("GradientTape", "gradients", "hessians"), _TAPE),
    **dict.fromkeys(("function", "autograph", "recompute_grad", "xla"), _TRACED),
    **dict.fromkeys(
        (
            *("bfloat16", "bool", "double", "float16", "float32", "float64", "half"),
            *("int16", "int32", "int64", "int8", "uint16", "uint32", "uint64", "uint8"),
            *("complex128", "complex64", "string", "DType", "dtypes", "as_dtype"),
            *("Tensor", "TensorShape", "constant", "convert_to_tensor", "is_tensor"),
            *("zeros", "ones", "fill", "eye", "range", "linspace", "zeros_like"),
            *("ones_like", "newaxis", "shape", "rank", "size"),
        ),
        _ARRAYS,
    ),
    **dict.fromkeys(
        (
            *("abs", "add", "argmax", "argmin", "cast", "clip_by_value", "concat"),
            *("cond", "cumsum", "divide", "einsum", "equal", "exp", "expand_dims"),
            *("gather", "greater", "identity", "less", "linalg", "map_fn", "math"),
            *("matmul", "maximum", "minimum", "multiply", "negative", "norm"),
            *("not_equal", "one_hot", "pad", "pow", "reduce_max", "reduce_mean"),
            *("reduce_min", "reduce_sum", "repeat", "reshape", "reverse", "round"),
            *("scan", "sigmoid", "sign", "sin", "slice", "sort", "split", "sqrt"),
            *("square", "squeeze", "stack", "stop_gradient", "subtract", "tanh"),
            *("tensordot", "tile", "transpose", "truediv", "unique", "unstack"),
            *("vectorized_map", "where", "while_loop", "custom_gradient"),
        ),
        _OPS,
    ),
    **dict.fromkeys(("distribute", "tpu", "dtensor"), "a model is on one device"),
    **dict.fromkeys(("io", "image", "audio", "strings", "lookup"), _FILES),
    **dict.fromkeys(
        ("losses", "metrics", "optimizers", "initializers"), "it is in memcfg.nn"
    ),
    **dict.fromkeys(
        ("saved_model", "lite", "train", "Module"),
        "Model.save and memcfg.nn.models.load_model keep models",
    ),
    "keras": "use memcfg.nn, as in: from memcfg import nn as keras",
    "TensorSpec": "it is memcfg.data.TensorSpec",
    "Variable": "use Layer.add_weight",
    "executing_eagerly": "layers are traced, and steps run as planned programs",
    "print": "look at arrays that predict returns, or write a callback",
    "py_function": "Dataset.map takes any Python function",
    "numpy_function": "Dataset.map takes any Python function",
    "random": "memcfg.nn.set_random_seed seeds models; use NumPy for arrays",
    "debugging": "predict and weights are NumPy arrays: use numpy.testing",
    "profiler": "Model.memory_report shows the bytes and seconds of each op",
    "sysconfig": "memcfg.config has the settings",
    "test": "memcfg.testing helps tests",
    "version": "use memcfg.__version__",
}
DATA: Mapping[str, str] = {
    **dict.fromkeys(
        ("FixedLengthRecordDataset", "TFRecordDataset", "TextLineDataset"), _FILES
    ),
    **dict.fromkeys(("Iterator", "IteratorSpec"), "it is memcfg.data.DatasetIterator"),
    "DatasetSpec": "use Dataset.element_spec",
    "NumpyIterator": "a dataset's elements are NumPy arrays: iterate over it",
}
_OWN_LOOP = "write a generator over the dataset, and use Dataset.from_generator"
DATASET: Mapping[str, str] = {
    "list_files": "use sorted(glob.glob(pattern)) and Dataset.from_tensor_slices",
    "window": "slice the arrays in a generator, and use Dataset.from_generator",
    "get_single_element": "use next(iter(dataset))",
    "bucket_by_sequence_length": "use padded_batch, with rows sorted by length",
    **dict.fromkeys(("ragged_batch", "sparse_batch"), "use padded_batch"),
    **dict.fromkeys(("save", "load", "snapshot"), "use cache(filename)"),
    **dict.fromkeys(
        (
            *("choose_from_datasets", "group_by_window", "ignore_errors", "random"),
            *("rejection_resample", "sample_from_datasets", "scan", "unique"),
            *("counter", "fingerprint", "rebatch", "take_while"),
        ),
        _OWN_LOOP,
    ),
}
