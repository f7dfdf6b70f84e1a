"""TensorFlow's names that are not here, and what to do instead."""

from __future__ import annotations

from memcfg._missing import by_name

__all__ = ["DATA", "DATASET", "TOP"]

_FILES = (
    "memcfg.data reads records, lines, CSV and arrays; Dataset.map and "
    "Dataset.from_generator take functions that read anything else"
)

TOP = by_name(
    {
        "gradients hessians": "use memcfg.grad, or memcfg.GradientTape in a function",
        "autograph recompute_grad xla": (
            "every step is one planned program already: remove the decorator"
        ),
        "bool double half string bfloat16 float16 float32 float64 int8 int16 int32 "
        "int64 uint8 uint16 uint32 uint64 complex64 complex128 DType dtypes as_dtype "
        "Tensor TensorShape constant convert_to_tensor is_tensor zeros zeros_like ones "
        "ones_like fill eye range linspace newaxis shape rank size": (
            "use NumPy's arrays and dtypes; models take and return them"
        ),
        "abs add argmax argmin cast clip_by_value concat cond cumsum divide einsum "
        "equal exp expand_dims gather greater identity less linalg map_fn math matmul "
        "maximum minimum multiply negative norm not_equal one_hot pad pow reduce_max "
        "reduce_mean reduce_min reduce_sum repeat reshape reverse round scan sigmoid "
        "sign sin slice sort split sqrt square squeeze stack stop_gradient subtract "
        "tanh tensordot tile transpose truediv unique unstack vectorized_map where "
        "while_loop custom_gradient": (
            "memcfg.nn.ops computes with arrays and with symbolic tensors"
        ),
        "distribute tpu dtensor": "a model is on one device",
        "io": "memcfg.data has TFRecordWriter, parse_example and FixedLenFeature",
        "image audio strings lookup": _FILES,
        "losses metrics optimizers initializers": "it is in memcfg.nn",
        "saved_model lite train Module": (
            "Model.save and memcfg.nn.models.load_model keep models"
        ),
        "keras": "use memcfg.nn, as in: from memcfg import nn as keras",
        "TensorSpec": "it is memcfg.data.TensorSpec",
        "Variable": "it is memcfg.nn.Variable",
        "executing_eagerly": "layers are traced, and steps run as planned programs",
        "print": "print arrays that predict returns, or write a callback",
        "py_function numpy_function": "Dataset.map takes any Python function",
        "random": "memcfg.nn.random draws, and memcfg.nn.set_random_seed seeds models",
        "debugging": "predict and weights are NumPy arrays: use numpy.testing",
        "profiler": "Model.memory_report shows the bytes and seconds of each op",
        "sysconfig": "memcfg.config has the settings",
        "test": "memcfg.testing helps tests",
        "version": "use memcfg.__version__",
    }
)
DATA = by_name(
    {
        "Iterator IteratorSpec": "it is memcfg.data.DatasetIterator",
        "NumpyIterator": "a dataset's elements are NumPy arrays: iterate over it",
    }
)
DATASET = by_name(
    {
        "get_single_element": "use next(iter(dataset))",
        "ragged_batch sparse_batch": "use padded_batch",
        "save load snapshot": "use cache(filename)",
        "choose_from_datasets group_by_window ignore_errors random rejection_resample "
        "sample_from_datasets scan unique counter fingerprint rebatch take_while": (
            "write a generator over the dataset, and use Dataset.from_generator"
        ),
    }
)
