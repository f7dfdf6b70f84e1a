"""Keras names that memcfg does not have, and what to do instead.

Using or importing such a name raises an error with the reason: see `memcfg._missing`.
Names are shell patterns, several per row.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from memcfg._missing import by_name, instead, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

__all__ = ["ABSENT", "ATTRIBUTES", "NEVER_CALLED", "absent", "reason"]


_COMPLETE = (
    *("activations", "constraints", "initializers", "losses", "metrics"),
    *("models", "random", "regularizers"),
)
ABSENT: Mapping[str, Mapping[str, str]] = {
    room: by_name(rows)
    for room, rows in {
        **{each: {} for each in _COMPLETE},
        "": {
            "quantizers Quantizer": "weights are float32",
            "Function Operation StatelessScope SymbolicScope": (
                "models are traced with symbolic tensors: see Layer.call and Model.call"
            ),
            "RematScope remat": (
                "pass a policy that recomputes to compile: memory=memcfg.plan.auto()"
            ),
            "distribution": "a model is on one device",
            "distillation": "train on what the teacher's predict returns",
            "applications": (
                "memcfg.models has well-known networks, such as "
                "memcfg.models.resnet50()"
            ),
            "wrappers": "write a class that calls fit and predict",
            "export": "use Model.save and models.load_model",
            "Variable": "use Layer.add_weight",
            "legacy": "Keras 3 has these under their own names",
            "name_scope": "layers have names, name=...",
            "version": "use memcfg.__version__",
            "visualization": (
                "write images with utils.save_img; utils.plot_model draws a model"
            ),
        },
        "layers": {
            "MaxNumBoundingBoxes": (
                "layers of images take images, labels and masks, and no boxes: use "
                "memcfg.data.Dataset.map"
            ),
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
        "callbacks": {
            "OrbaxCheckpoint": "use ModelCheckpoint",
            "ProgbarLogger": "fit's verbose draws a bar (1) or prints lines (2)",
        },
        "utils": {
            "legacy": "use the functions of this module",
        },
        "ops": {
            "jvp": (
                "derivatives are gradients: sum(memcfg.grad(f)(x) * v) is that of a "
                "number f(x) along v"
            ),
            "vectorize": "use vectorized_map, or call the function on whole tensors",
            "eig": "numbers are real: use eigh, of symmetric matrices",
            "polar view_as_*": "numbers are real: keep both parts as two tensors",
        },
    }.items()
}

_WHOLE = "use Model.save and models.load_model, or copy.deepcopy"
_PENALTY = "pass activity_regularizer to a layer, or compute it in the loss"

ATTRIBUTES: Mapping[str, Mapping[str, str]] = {
    kind: by_name(rows)
    for kind, rows in {
        "Model": {
            "export": _WHOLE,
            "metrics_names": "use fit's history or evaluate(return_dict=True)",
            "loss": "it is an argument of compile",
            "variables non_trainable_variables": "use weights",
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
            "losses": "the losses of a model are Model.losses, in a step of its own",
            "variables non_trainable_variables": "use weights",
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
            "update_step": "updates are ops: use the most similar optimizer",
        },
    }.items()
}
NEVER_CALLED: Mapping[str, Mapping[str, str]] = {
    "Optimizer": {"update_step": "use the most similar optimizer"},
}


def reason(table: Mapping[str, Mapping[str, str]], kind: type, name: str) -> str | None:
    """Return what to do instead of using an attribute of Keras's class."""
    rows = (table.get(each.__name__, {}) for each in kind.__mro__)
    return next((row[name] for row in rows if name in row), None)


def _exported(room: str) -> Sequence[str]:
    """Return the public names of a module of ``memcfg.nn``; empty if not imported."""
    return getattr(sys.modules.get(f"memcfg.nn.{room}"), "__all__", ())


def absent(module: str) -> Callable[[str], NoReturn]:
    """Return a module's ``__getattr__``, which explains missing names.

    A name is looked up in the module's table, then among the names that other modules
    export, then among the patterns. ``memcfg.nn`` itself uses all tables.
    """
    room = module.removeprefix("memcfg.nn").removeprefix(".")
    tables = [ABSENT.get(room, {})] if room else [*ABSENT.values()]

    def get(name: str) -> NoReturn:
        places = [f"nn.{each}" for each in ABSENT if each and name in _exported(each)]
        why = next((table[name] for table in tables if name in table), None)
        if why is None and places:
            why = f"it is in {' and '.join(places)}"
        if why is None:
            why = next(filter(None, (instead(table, name) for table in tables)), None)
        refuse(module, name, "" if why is None else f": {why}")

    return get
