"""Names of Keras's that are not here, and what to do instead.

Using or importing such a name is an error that says why: see `memcfg._missing`.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memcfg._missing import refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

__all__ = ["ABSENT", "ATTRIBUTES", "NEVER_CALLED", "absent", "reason"]

_VOLUMES = "windows move over sequences and images, not over volumes"
_DATA = "prepare data before training: memcfg.data.Dataset.map takes any function"
_TEXT = "turn text and categories into integers before training, with Dataset.map"
_OTHERS = "memcfg traces its own layers, not those of other frameworks"
_CELLS = "SimpleRNN, LSTM and GRU are whole layers; a cell of your own is not supported"
_FUNCTION = "use the class, or its name as a string"
_CONFIG = "objects are made by their constructors; copy.deepcopy copies models"
_LATER = "not built yet"

_LAYERS = {
    **dict.fromkeys(
        (
            *("AdaptiveAveragePooling3D", "AdaptiveMaxPooling3D", "AveragePooling3D"),
            *("AvgPool3D", "Conv3D", "Conv3DTranspose", "ConvLSTM3D", "Convolution3D"),
            *("Convolution3DTranspose", "Cropping3D", "GlobalAveragePooling3D"),
            *("GlobalAvgPool3D", "GlobalMaxPool3D", "GlobalMaxPooling3D"),
            *("MaxPool3D", "MaxPooling3D", "SpatialDropout3D", "UpSampling3D"),
            "ZeroPadding3D",
        ),
        _VOLUMES,
    ),
    **dict.fromkeys(
        (
            *("AugMix", "AutoContrast", "CenterCrop", "CutMix", "Equalization"),
            *("ContrastLimitedAdaptiveHistogramEqualization", "MaxNumBoundingBoxes"),
            *("MelSpectrogram", "MixUp", "Pipeline", "RandAugment"),
            *("RandomBrightness", "RandomColorDegeneration", "RandomColorJitter"),
            *("RandomContrast", "RandomCrop", "RandomElasticTransform"),
            *("RandomErasing", "RandomFlip", "RandomGaussianBlur", "RandomGrayscale"),
            *("RandomHue", "RandomInvert", "RandomPerspective"),
            *("RandomPosterization", "RandomRotation", "RandomSaturation"),
            *("RandomSharpness", "RandomShear", "RandomTranslation", "RandomZoom"),
            *("Resizing", "STFTSpectrogram", "Solarization"),
        ),
        _DATA,
    ),
    **dict.fromkeys(
        (
            *("CategoryEncoding", "Discretization", "HashedCrossing", "Hashing"),
            *("IntegerLookup", "StringLookup", "TextVectorization"),
        ),
        _TEXT,
    ),
    **dict.fromkeys(
        ("FlaxLayer", "JaxLayer", "TFSMLayer", "TorchModuleWrapper"), _OTHERS
    ),
    **dict.fromkeys(
        ("GRUCell", "LSTMCell", "RNN", "SimpleRNNCell", "StackedRNNCells"), _CELLS
    ),
    **dict.fromkeys(
        ("AdaptiveAveragePooling1D", "AdaptiveAveragePooling2D"),
        "use AveragePooling, whose window does not depend on the input's size",
    ),
    **dict.fromkeys(
        ("AdaptiveMaxPooling1D", "AdaptiveMaxPooling2D"),
        "use MaxPooling, whose window does not depend on the input's size",
    ),
    **dict.fromkeys(("ConvLSTM1D", "ConvLSTM2D"), _LATER),
    "ActivityRegularization": "pass activity_regularizer to the layer before it",
    "AlphaDropout": "use Dropout or GaussianDropout",
    "EinsumDense": "use Dense, Permute and Reshape, or the operator @",
    "GroupQueryAttention": "use MultiHeadAttention",
    "Identity": "use Activation(None)",
    "InputLayer": "use Input(shape)",
    "InputSpec": "a layer says what it reads when it is called",
    "Lambda": "write a Layer with call, or an op of your own (docs/ops.md)",
    "RMSNormalization": "use LayerNormalization",
    "SpectralNormalization": _LATER,
    "UnitNormalization": "use LayerNormalization, or divide by a root of nn.ops",
    "Wrapper": "write a Layer that has another as its attribute",
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
}

_LOSSES = {
    "CTC": _LATER,
    "ctc": _LATER,
    "Circle": _LATER,
    "circle": _LATER,
    "CategoricalGeneralizedCrossEntropy": "use CategoricalCrossentropy",
    "categorical_generalized_cross_entropy": "use CategoricalCrossentropy",
    "get": "losses are made by their constructors or named by strings",
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
    **dict.fromkeys(
        (
            *("binary_crossentropy", "binary_focal_crossentropy", "dice", "hinge"),
            *("categorical_crossentropy", "categorical_focal_crossentropy"),
            *("categorical_hinge", "cosine_similarity", "huber", "kl_divergence"),
            *("log_cosh", "mean_absolute_error", "mean_absolute_percentage_error"),
            *("mean_squared_error", "mean_squared_logarithmic_error", "poisson"),
            *("sparse_categorical_crossentropy", "squared_hinge", "tversky"),
        ),
        _FUNCTION,
    ),
}

_METRICS = {
    **dict.fromkeys(
        (
            *("BinaryIoU", "ConcordanceCorrelation", "IoU", "MeanIoU", "OneHotIoU"),
            *("OneHotMeanIoU", "PearsonCorrelation", "concordance_correlation"),
            "pearson_correlation",
        ),
        "compute it from predict's result",
    ),
    **dict.fromkeys(
        ("Mean", "MeanMetricWrapper", "Sum"), "write a Metric with trace and result"
    ),
    "get": "metrics are made by their constructors or named by strings",
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
    **dict.fromkeys(
        (
            *("binary_accuracy", "binary_crossentropy", "binary_focal_crossentropy"),
            *("categorical_accuracy", "categorical_crossentropy", "hinge", "huber"),
            *("categorical_focal_crossentropy", "categorical_hinge", "log_cosh"),
            *("kl_divergence", "mean_absolute_error", "mean_squared_error"),
            *("mean_absolute_percentage_error", "mean_squared_logarithmic_error"),
            *("poisson", "sparse_categorical_accuracy", "squared_hinge"),
            *("sparse_categorical_crossentropy", "top_k_categorical_accuracy"),
            "sparse_top_k_categorical_accuracy",
        ),
        _FUNCTION,
    ),
}

_OPTIMIZERS = {
    "Ftrl": "it is for sparse linear models: use Adagrad",
    "Lamb": "use AdamW with clipnorm, or gradient_accumulation_steps for large batches",
    "LossScaleOptimizer": "gradients are float32: pass the inner optimizer alone",
    "MultiOptimizer": "a model has one optimizer: freeze layers, and compile again",
    "Muon": "its updates are matrix products, which have no op: use AdamW",
    "OptimizerMap": "a model has one optimizer: freeze layers, and compile again",
    "ScheduleFreeAdamW": "use AdamW with use_ema=True",
    "legacy": "Keras 3 has these under their own names only: optimizers.SGD",
}

_CALLBACKS = {
    "OrbaxCheckpoint": "use ModelCheckpoint",
    "ProgbarLogger": "fit's verbose draws a bar (1) or prints lines (2)",
    "RemoteMonitor": "send the logs from a LambdaCallback",
    "SwapEMAWeights": "the optimizer's use_ema leaves averages in the weights",
}

_INITIALIZERS = {
    "IdentityInitializer": "use Identity",
    "OrthogonalInitializer": "use Orthogonal",
    **dict.fromkeys(("STFT", "STFTInitializer", "stft"), _DATA),
    "get": "initializers are made by their constructors or named by strings",
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
    **dict.fromkeys(
        (
            *("constant", "glorot_normal", "glorot_uniform", "he_normal", "identity"),
            *("he_uniform", "lecun_normal", "lecun_uniform", "ones", "orthogonal"),
            *("random_normal", "random_uniform", "truncated_normal", "zeros"),
            "variance_scaling",
        ),
        _FUNCTION,
    ),
}

_REGULARIZERS = {
    "get": "regularizers are made by their constructors or named by strings",
    "orthogonal_regularizer": "use L2, or a subclass of Regularizer",
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
    **dict.fromkeys(("l1", "l1_l2", "l2"), _FUNCTION),
}

_ACTIVATIONS = {
    **dict.fromkeys(
        (
            *("glu", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus"),
            "threshold",
        ),
        "write it as an op of your own, one line (docs/ops.md)",
    ),
    **dict.fromkeys(("deserialize", "serialize"), _CONFIG),
}

_MODELS = {
    "clone_model": "copy.deepcopy copies a model with its weights",
    "model_from_json": "models are built by their constructors",
}

_UTILS = {
    **dict.fromkeys(
        (
            *("audio_dataset_from_directory", "image_dataset_from_directory"),
            "text_dataset_from_directory",
        ),
        "list the files and their folders, and read each in Dataset.map or in a "
        "generator (Dataset.from_generator); Pillow reads images",
    ),
    **dict.fromkeys(
        ("array_to_img", "img_to_array", "load_img", "save_img"),
        "use Pillow and numpy.asarray",
    ),
    "FeatureSpace": _TEXT,
    "get_file": "memcfg downloads nothing: use urllib.request",
    "split_dataset": "use Dataset.take and Dataset.skip",
    "timeseries_dataset_from_array": (
        "use numpy.lib.stride_tricks.sliding_window_view and Dataset.from_tensor_slices"
    ),
    **dict.fromkeys(("PyDataset", "Sequence"), "use memcfg.data.Dataset"),
    **dict.fromkeys(
        (
            *("CustomObjectScope", "custom_object_scope", "get_custom_objects"),
            *("deserialize_keras_object", "get_registered_name"),
            *("get_registered_object", "register_keras_serializable"),
            "serialize_keras_object",
        ),
        _CONFIG,
    ),
    **dict.fromkeys(
        (
            *("disable_interactive_logging", "enable_interactive_logging"),
            *("is_interactive_logging_enabled", "Progbar"),
        ),
        "fit's verbose says what is printed",
    ),
    **dict.fromkeys(
        ("model_to_dot", "plot_model"),
        "model.summary() and model.graph() show what a model is",
    ),
    "Config": "use a dict",
    "clear_session": "model.close() frees a model's memory",
    "get_source_inputs": "a model knows its inputs",
    "is_keras_tensor": "use isinstance(tensor, memcfg.nn.SymbolicTensor)",
    "legacy": "use the functions of this module",
    **dict.fromkeys(
        ("pack_x_y_sample_weight", "unpack_x_y_sample_weight"),
        "a batch is x, (x, y) or (x, y, sample_weight)",
    ),
    "standardize_dtype": "use numpy.dtype",
}

_ELEMENTWISE = """
    angle arccos arccosh arcsin arcsinh arctan arctan2 arctanh bitwise_and
    bitwise_invert bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift
    bitwise_xor cbrt ceil cos cosh deg2rad divide_no_nan erf erfc erfinv exp2 expm1
    fabs floor floor_divide fmax fmin fmod gcd glu heaviside hypot i0 isclose isfinite
    isinf isnan isneginf isposinf isreal lcm ldexp left_shift log10 log2 logaddexp
    logaddexp2 logical_and logical_not logical_or logical_xor mod nan_to_num
    nextafter polar rad2deg right_shift round sign signbit sin sinc sinh sparse_plus
    sparse_sigmoid squareplus tan threshold trunc conj conjugate imag real
    view_as_complex view_as_real
"""
_MAKES_ARRAYS = """
    arange array bartlett blackman empty empty_like eye full full_like geomspace
    hamming hanning identity kaiser linspace logspace meshgrid multi_hot ones
    ones_like tri vander zeros zeros_like convert_to_tensor copy dtype is_tensor
    size
"""
_REDUCES = """
    all allclose any argmax argmin argpartition argsort average bincount cdist
    corrcoef correlate count_nonzero cumprod cumsum diff digitize histogram in_top_k
    isin logsumexp median moments nanargmax nanargmin nancumprod nancumsum nanmax
    nanmean nanmedian nanmin nanpercentile nanprod nanquantile nanstd nansum nanvar
    nonzero norm percentile prod psnr ptp quantile ravel searchsorted segment_max
    segment_min segment_prod segment_sum sort top_k trapezoid unique
    convert_to_numpy
"""
_PRODUCTS = """
    cross dot einsum inner kron outer tensordot vdot
"""
_ALGEBRA = """
    cholesky cholesky_inverse det diag diagflat diagonal eig eigh inv logdet lstsq
    lu_factor matrix_rank pinv qr slogdet solve solve_triangular svd trace tril triu
    fft fft2 ifft2 irfft istft rfft stft extract_sequences unfold fold ctc_decode
    ctc_loss
"""
_CONTROL = """
    associative_scan cond fori_loop map scan switch vectorize vectorized_map
    while_loop select
"""
_GRADIENTS = """
    custom_gradient jvp stop_gradient
"""
_LAYER_OPS = """
    adaptive_average_pool adaptive_max_pool average_pool batch_normalization
    binary_crossentropy categorical_crossentropy conv conv_transpose depthwise_conv
    dot_product_attention layer_normalization max_pool normalize rms_normalization
    separable_conv sparse_categorical_crossentropy sparsemax saturate_cast
"""
_MOVES = """
    append array_split broadcast_to depth_to_space dsplit dstack fliplr flipud
    hsplit hstack pad rearrange repeat roll rot90 scatter scatter_update slice
    slice_update space_to_depth take_along_axis tile unravel_index unstack view
    vsplit vstack
"""
_OPS = {
    **dict.fromkeys(
        _ELEMENTWISE.split(),
        "write it as an op of your own, one line: memcfg.ops.elementwise (docs/ops.md)",
    ),
    **dict.fromkeys(
        _MAKES_ARRAYS.split(),
        "make the array with NumPy, and feed it as an input or let "
        "a layer have it as a weight",
    ),
    **dict.fromkeys(
        _REDUCES.split(),
        "compute it with NumPy from what predict returns, or write an op (docs/ops.md)",
    ),
    **dict.fromkeys(
        _PRODUCTS.split(),
        "use ops.matmul (@) with ops.reshape and ops.transpose",
    ),
    **dict.fromkeys(
        _ALGEBRA.split(),
        "there is no op for it: compute it with NumPy before or after training",
    ),
    **dict.fromkeys(
        _CONTROL.split(),
        "Python's if and for run while a layer is traced; ops.where chooses elements",
    ),
    **dict.fromkeys(
        _GRADIENTS.split(),
        "gradients are derived when a model is compiled; a layer "
        "with trainable=False is a constant",
    ),
    **dict.fromkeys(
        _LAYER_OPS.split(),
        "use the layer or the loss of that name",
    ),
    **dict.fromkeys(
        _MOVES.split(),
        "use ops.reshape, transpose, concatenate, stack, split, flip and indexing",
    ),
}
_TRACED = "models are traced by symbolic tensors: see Layer.call and Model.call"
_KERAS = {
    **dict.fromkeys(("FloatDTypePolicy", "dtype_policies"), "use nn.DTypePolicy"),
    "mixed_precision": "use memcfg.config.set_dtype_policy('mixed_bfloat16')",
    **dict.fromkeys(("quantizers", "Quantizer"), "weights are float32"),
    **dict.fromkeys(
        ("Function", "Operation", "StatelessScope", "SymbolicScope", "backend"),
        _TRACED,
    ),
    **dict.fromkeys(
        ("RematScope", "remat"),
        "compile's memory policies recompute: memory=memcfg.plan.auto()",
    ),
    **dict.fromkeys(("distribution", "distillation"), "a model is on one device"),
    "applications": (
        "memcfg.models has known networks by their papers' names, as in "
        "memcfg.models.resnet50()"
    ),
    "wrappers": "write a class that calls fit and predict",
    **dict.fromkeys(("preprocessing", "tree"), "memcfg.data prepares data"),
    **dict.fromkeys(("export", "saving"), "use Model.save and models.load_model"),
    "InputSpec": "a layer says what it reads when it is called",
    "KerasTensor": "use SymbolicTensor",
    "Variable": "use Layer.add_weight",
    "config": "memcfg.config has the settings",
    "constraints": "use a regularizer, or a callback that calls layer.set_weights",
    "datasets": "memcfg.data reads arrays and files; scikit-learn has small data sets",
    "device": "use memcfg.device",
    "legacy": "Keras 3 has these under their own names",
    "name_scope": "layers have names, name=...",
    "random": "use NumPy for arrays, and Dropout and GaussianNoise in models",
    "version": "use memcfg.__version__",
    "visualization": "model.summary() and model.graph() show what a model is",
}

ABSENT: Mapping[str, Mapping[str, str]] = {
    "": _KERAS,
    "layers": _LAYERS,
    "losses": _LOSSES,
    "metrics": _METRICS,
    "optimizers": _OPTIMIZERS,
    "callbacks": _CALLBACKS,
    "initializers": _INITIALIZERS,
    "regularizers": _REGULARIZERS,
    "activations": _ACTIVATIONS,
    "models": _MODELS,
    "utils": _UTILS,
    "ops": _OPS,
}


_WHOLE = "Model.save and models.load_model keep models, and copy.deepcopy copies them"
_PENALTY = "pass activity_regularizer to a layer, or compute it in the loss"
_STEP = (
    "a step is one planned program: write a Loss, a Layer, or loop over train_on_batch"
)
_LOGS = "fit's history and evaluate(return_dict=True) have the numbers by name"
_ON_ARRAYS = "it is a part of the step: give it to compile, and call evaluate"
_METRIC = "a metric is traced: write `values`, or `trace` and `result`"
_UPDATES = "updates are a part of the step: call fit or train_on_batch"

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Model": {
        **dict.fromkeys(("get_config", "to_json", "export"), _WHOLE),
        **dict.fromkeys(("add_loss", "losses"), _PENALTY),
        **dict.fromkeys(("metrics", "metrics_names", "get_metrics_result"), _LOGS),
        **dict.fromkeys(
            ("train_step", "test_step", "predict_step", "compute_loss"), _STEP
        ),
        **dict.fromkeys(("loss", "compute_metrics"), "compile was told it"),
        **dict.fromkeys(("variables", "non_trainable_variables"), "use weights"),
        "add_metric": "pass metrics to compile",
        "compiled": "compile may be called again at any time",
        "fit_generator": "fit takes generators",
        "evaluate_generator": "evaluate takes generators",
        "predict_generator": "predict takes generators",
        "predict_classes": "use predict(x).argmax(axis=-1)",
        "predict_proba": "use predict",
        "pop": "make another Sequential of model.layers[:-1]",
    },
    "Layer": {
        **dict.fromkeys(("add_loss", "losses"), _PENALTY),
        **dict.fromkeys(("variables", "non_trainable_variables"), "use weights"),
        "add_metric": "pass metrics to compile",
        "add_variable": "use add_weight",
        "cell": "layer.weights has the weights",
        "compute_output_shape": "call the layer on Input(shape), and see the shape",
        "get_input_at": "keep what the layer was called on",
        "get_output_at": "keep what the layer's calls return",
        "input_shape": "use layer.input.shape",
        "output_shape": "use layer.output.shape",
    },
    "Metric": {
        "update_state": _ON_ARRAYS,
        **dict.fromkeys(("reset_state", "reset_states"), _ON_ARRAYS),
        **dict.fromkeys(("add_variable", "add_weight", "variables"), _METRIC),
    },
    "Optimizer": dict.fromkeys(
        ("apply", "apply_gradients", "minimize", "update_step", "variables"), _UPDATES
    ),
}
NEVER_CALLED: Mapping[str, Mapping[str, str]] = {
    "Metric": {"update_state": _METRIC},
    "Optimizer": {"update_step": "take the optimizer that is nearest"},
}


def reason(table: Mapping[str, Mapping[str, str]], kind: type, name: str) -> str | None:
    """Return what to do instead of an attribute of Keras's that a class has not."""
    rows = (table.get(each.__name__, {}) for each in kind.__mro__)
    return next((row[name] for row in rows if name in row), None)


def _exported(room: str) -> Sequence[str]:
    """Return the names of a module of ``memcfg.nn``; none before it is imported."""
    return getattr(sys.modules.get(f"memcfg.nn.{room}"), "__all__", ())


def absent(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which says why Keras's name is not there."""
    room = module.removeprefix("memcfg.nn").removeprefix(".")
    rooms = [ABSENT[room]] if room else [*ABSENT.values()]  # of "" the first
    known = {name: why for names in reversed(rooms) for name, why in names.items()}

    def get(name: str) -> NoReturn:
        why = ""
        if name in known:
            why = f", which Keras has: {known[name]}"
        elif found := [each for each in ABSENT if each and name in _exported(each)]:
            why = f": it is in {' and '.join(f'nn.{each}' for each in found)}"
        refuse(module, name, why)

    return get
