"""Names of Keras and others that memcfg does not have, and what to do instead.

Using or importing such a name raises an error with the reason: see `memcfg._missing`.
Names are shell patterns, several per row.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from memcfg._missing import by_name, instead, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = [
    "ABSENT",
    "ATTRIBUTES",
    "METHODS",
    "TORCH_ATTRIBUTES",
    "absent",
    "reason",
]


_COMPLETE = (
    *("activations", "applications", "constraints", "initializers", "losses"),
    *("metrics", "models", "random", "regularizers"),
)
ABSENT: Mapping[str, Mapping[str, str]] = {
    room: by_name(rows)
    for room, rows in {
        **{each: {} for each in _COMPLETE},
        "": {
            "Function Operation StatelessScope SymbolicScope": (
                "models are traced with symbolic tensors: see Layer.call and Model.call"
            ),
            "RematScope remat": (
                "pass a policy that recomputes to compile: memory=memcfg.plan.auto()"
            ),
            "distribution": "a model is on one device",
            "export": "use Model.export, which writes ONNX",
            "legacy": "Keras 3 has these under their own names",
        },
        "layers": {
            "FlaxLayer JaxLayer TFSMLayer TorchModuleWrapper": (
                "memcfg cannot trace layers of other frameworks: write the layer with "
                "nn.ops, and set its weights"
            ),
        },
        "optimizers": {
            "LossScaleOptimizer": (
                "gradients are float32: pass the inner optimizer alone"
            ),
            "legacy": "Keras 3 has these under their own names only: optimizers.SGD",
        },
        "quantizers": {
            "*Config": (
                "memcfg.compression stores the weights of models in few bits: see its "
                "quantize"
            ),
        },
        "callbacks": {
            "OrbaxCheckpoint": "use ModelCheckpoint",
        },
        "utils": {
            "legacy": "use the functions of this module",
        },
        "ops": {
            "eig": "numbers are real: use eigh, of symmetric matrices",
            "polar view_as_*": "numbers are real: keep both parts as two tensors",
        },
    }.items()
}

_PENALTY = "pass activity_regularizer to a layer, or compute it in the loss"

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    kind: by_name(rows)
    for kind, rows in {
        "Model": {
            "add_metric": "pass metrics to compile",
            "compiled": "compile may be called again at any time",
            "compiled_loss": "use compute_loss(x, y, y_pred), or loss",
            "compiled_metrics": "use compute_metrics(x, y, y_pred), or metrics",
            "compile_from_config get_compile_config": (
                "save and load_model keep how a model was compiled"
            ),
            "fit_generator": "fit takes generators",
            "evaluate_generator": "evaluate takes generators",
            "predict_generator": "predict takes generators",
            "predict_classes": "use predict(x).argmax(axis=-1)",
            "predict_proba": "use predict",
            "pop": "a Sequential has it: use Model(model.inputs, tensor)",
        },
        "Layer": {
            "add_metric": "pass metrics to compile",
            "add_variable": "use add_weight",
            "cell": "layer.weights has the weights",
            "get_input_at": "keep the inputs of the layer's calls",
            "get_output_at": "keep the results of the layer's calls",
            "input_shape": "use layer.input.shape",
            "output_shape": "use layer.output.shape",
        },
        "Metric": {
            "reset_states": "use reset_state",
        },
        "Optimizer": {
            "minimize": (
                "use apply in a function: see memcfg.function and memcfg.value_and_grad"
            ),
            "stateless_apply": "use apply, in a function or on arrays",
        },
    }.items()
}

TORCH_ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    "Model": by_name(
        {
            "parameters named_parameters": "use weights, or trainable_weights",
            "state_dict": "use get_weights, or save_weights",
            "load_state_dict": "use set_weights, or load_weights",
            "train eval": "fit trains, and evaluate and predict do not: no mode is set",
            "to cuda cpu": "build the model inside memcfg.device('GPU:0')",
            "forward": "override call, and call the model itself",
            "zero_grad backward": "fit and train_on_batch compute new gradients a step",
        }
    ),
}


# Names of PyTorch and of older TensorFlow, and what they are called here.
_LAYERS = {
    "Linear LazyLinear": "Dense",
    "Conv1d": "Conv1D",
    "Conv2d": "Conv2D",
    "Conv3d": "Conv3D",
    "ConvTranspose1d": "Conv1DTranspose",
    "ConvTranspose2d": "Conv2DTranspose",
    "ConvTranspose3d": "Conv3DTranspose",
    "MaxPool1d": "MaxPooling1D",
    "MaxPool2d": "MaxPooling2D",
    "MaxPool3d": "MaxPooling3D",
    "AvgPool1d": "AveragePooling1D",
    "AvgPool2d": "AveragePooling2D",
    "AvgPool3d": "AveragePooling3D",
    "AdaptiveAvgPool1d": "AdaptiveAveragePooling1D",
    "AdaptiveAvgPool2d": "AdaptiveAveragePooling2D",
    "AdaptiveMaxPool2d": "AdaptiveMaxPooling2D",
    "BatchNorm1d BatchNorm2d BatchNorm3d BatchNorm": "BatchNormalization",
    "LayerNorm": "LayerNormalization",
    "GroupNorm InstanceNorm2d": "GroupNormalization",
    "RMSNorm": "RMSNormalization",
    "Dropout1d": "SpatialDropout1D",
    "Dropout2d": "SpatialDropout2D",
    "Upsample": "UpSampling2D",
    "ZeroPad2d": "ZeroPadding2D",
    "MultiheadAttention": "MultiHeadAttention",
}
_LOSSES = {
    "MSELoss": "MeanSquaredError()",
    "L1Loss": "MeanAbsoluteError()",
    "CrossEntropyLoss": "SparseCategoricalCrossentropy(from_logits=True)",
    "NLLLoss": "SparseCategoricalCrossentropy() of probabilities",
    "BCELoss": "BinaryCrossentropy()",
    "BCEWithLogitsLoss": "BinaryCrossentropy(from_logits=True)",
    "SmoothL1Loss HuberLoss": "Huber()",
    "KLDivLoss": "KLDivergence()",
    "CTCLoss": "CTC()",
}
_OPS = {
    "cat concat": "concatenate",
    "unsqueeze": "expand_dims",
    "mm bmm": "matmul",
    "permute": "transpose",
    "clamp clip_by_value": "clip",
    "masked_fill": "where",
    "gather index_select": "take or take_along_axis",
    "reduce_mean": "mean",
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "pow": "power",
    "flatten": "reshape, or layers.Flatten",
    "randn": "normal of nn.random",
}
_OTHERS = {
    "Module": "subclass nn.Model or nn.Layer, and write call",
    "ModuleList ModuleDict ParameterList": "keep layers in a list or dict attribute",
    "Parameter": "use Layer.add_weight",
    "functional": "functions are in nn.ops and nn.activations",
    "no_grad inference_mode": (
        "predict computes no gradients; ops.stop_gradient stops them in a function"
    ),
    "init": "use nn.initializers",
    "__version__": "use memcfg.__version__",
    "DataLoader TensorDataset": "use memcfg.data.Dataset",
    "lr_scheduler": "use nn.optimizers.schedules",
    "Transformer TransformerEncoder TransformerEncoderLayer": (
        "make it of MultiHeadAttention, LayerNormalization, Dense and Add"
    ),
}
_OF_OTHERS = by_name(
    {
        **{name: f"use layers.{each}" for name, each in _LAYERS.items()},
        **{name: f"use losses.{each}" for name, each in _LOSSES.items()},
        **{name: f"use ops.{each}" for name, each in _OPS.items()},
        **_OTHERS,
    }
)

# Methods of arrays and of PyTorch's tensors, of what has no values yet.
METHODS: Mapping[str, str] = by_name(
    {
        "mean sum max min std var prod all any argmax argmin cumsum": (
            "use ops.{name}(x)"
        ),
        "reshape transpose squeeze repeat clip dot round sort argsort trace": (
            "use ops.{name}(x)"
        ),
        "ravel swapaxes": "use ops.{name}(x)",
        "T": "use ops.transpose(x)",
        "flatten view": "use ops.reshape(x, shape), or layers.Flatten",
        "astype": "use ops.cast(x, dtype)",
        "numpy item tolist": "return it from the function, or from the model",
        "size": "use ops.size(x) or x.shape",
        "detach": "use ops.stop_gradient(x)",
        "backward": "use memcfg.GradientTape or memcfg.value_and_grad",
        "permute": "use ops.transpose(x, axes)",
        "unsqueeze": "use ops.expand_dims(x, axis)",
        "assign assign_add assign_sub": "keep what changes in a weight: add_weight",
    }
)


def reason(table: Mapping[str, Mapping[str, str]], kind: type, name: str) -> str | None:
    """Return what to do instead of using an attribute of another library's class."""
    rows = (table.get(each.__name__, {}) for each in kind.__mro__)
    return next((row[name] for row in rows if name in row), None)


def _exported(room: str) -> Sequence[str]:
    """Return the public names of a module of ``memcfg.nn``; empty if not imported."""
    return getattr(sys.modules.get(f"memcfg.nn.{room}"), "__all__", ())


def absent(module: str, loaded: Sequence[str] = ()) -> Callable[[str], Any]:
    """Return a module's ``__getattr__``, which explains missing names.

    A name is looked up in the module's table, then among the names that other modules
    export, then among the patterns. ``memcfg.nn`` itself uses all tables. Submodules
    among `loaded` are loaded when they are first named.
    """
    room = module.removeprefix("memcfg.nn").removeprefix(".")
    tables = [ABSENT.get(room, {})] if room else [*ABSENT.values()]

    def get(name: str) -> Any:  # noqa: RET503  `refuse` does not return
        if name in loaded:
            try:
                return import_module(f"{module}.{name}")
            except ImportError as error:
                refuse(module, name, f": {error}")
        places = [f"nn.{each}" for each in ABSENT if each and name in _exported(each)]
        why = next((table[name] for table in tables if name in table), None)
        if why is None and places:
            why = f"it is in {' and '.join(places)}"
        if why is None:
            why = next(filter(None, (instead(table, name) for table in tables)), None)
        if why is None:
            why = _OF_OTHERS.get(name)
        refuse(module, name, "" if why is None else f": {why}")

    return get
