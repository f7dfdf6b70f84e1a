"""Whole models in one safetensors file: architecture, weights, optimizer, policy.

The file's metadata describe how to build the model, as names of classes and arguments
of their constructors; `memcfg.nn.models.load_model` runs only these constructors.
Layers form one list, each after its inner layers. Calls and containers refer to a layer
by its index, so shared layers stay shared.

See docs/decisions/0018-files-hold-no-code.md.
"""

from __future__ import annotations

import inspect
import json
import math
import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg import plan as planning
from memcfg._caller import outside
from memcfg._core import Counter
from memcfg.documents import read_count, read_json
from memcfg.errors import FormatError
from memcfg.nn import optimizers
from memcfg.nn._attributes import constructor_arguments
from memcfg.nn._nested import Nested
from memcfg.nn._weight_files import Entry, WeightFile, write_file
from memcfg.nn.constraints import Constraint
from memcfg.nn.exchange._configs import _Described
from memcfg.nn.initializers import Initializer
from memcfg.nn.layers._layer import InputLayer, Layer, Place, inner_layers
from memcfg.nn.losses import Loss
from memcfg.nn.metrics import Metric
from memcfg.nn.regularizers import Regularizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from memcfg.nn._network import Network

__all__ = [
    "FORMAT",
    "SAVED",
    "STATE",
    "Backup",
    "backup",
    "class_name",
    "describe",
    "entries",
    "is_ours",
    "read_backup",
    "restore",
    "save",
    "set_values",
]

FORMAT, BACKUP = "memcfg.model/1", "memcfg.backup/3"
# objects written as a class name and arguments
SAVED = Layer, Loss, Metric, Initializer, Regularizer, Constraint, _Described
STATE = "optimizer/"  # prefix of the keys of optimizer state
KEPT = "state/"  # prefix of the keys of state that layers keep between batches


def save(model: Any, filepath: str | os.PathLike[str], overwrite: bool) -> None:
    """Write a whole model to a file."""
    path = os.fspath(filepath)
    if not path.endswith(".memcfg"):
        raise ValueError(
            f"a model's file name must end in '.memcfg' or '.keras', got {path!r}. To "
            "save weights alone, use save_weights('x.weights.safetensors'); to write "
            "ONNX, use export('x.onnx')"
        )
    computed = model._built_network().computed
    if computed:
        raise TypeError(
            f"{model.name!r} holds parts of {', '.join(map(repr, computed))}: save "
            "what compression.strip makes of it, or its weights by save_weights"
        )
    model._require_calls("save")
    with model._lock.turn():
        model._gather()
        session = model._built_session()
        metadata = {"format": FORMAT, "model": describe(model)}
        weights = entries(model)
        try:
            write_file(
                path,
                weights,
                session.read,
                metadata,
                overwrite=overwrite,
                checksums=True,
            )
        except FileExistsError as error:
            message = "the file exists and overwrite is False"
            raise FileExistsError(error.errno, message, path) from None


def describe(model: Any) -> str:
    """Return a description of a model; TypeError for parts without one."""
    return json.dumps(_Writer().document(model), separators=(",", ":"))


def is_ours(kind: type) -> bool:
    """Return whether a class is defined in memcfg.nn."""
    return kind.__module__.startswith("memcfg.nn.")


def class_name(kind: type) -> str:
    """Return a class's name, after its public module if it is of memcfg.nn."""
    if not is_ours(kind):
        return kind.__name__
    return f"{kind.__module__.split('.')[2]}.{kind.__name__}"


class _Writer:
    """Describes a model as JSON values; TypeError for parts without a description."""

    def __init__(self) -> None:
        self._layers: list[Any] = []
        self._places: dict[Layer, int] = {}
        self._functions: dict[str, Any] = {}  # by name

    def document(self, model: Any) -> dict[str, Any]:
        """Return the description of a model."""
        described = self._model(model)
        result: dict[str, Any] = {"layers": self._layers, "model": described}
        return {**result, "compile": self._compiled(model)}

    def _compiled(self, model: Any) -> dict[str, Any] | None:
        result = model._config
        if result is None:
            return None
        if any(result.modes[2:]):
            warnings.warn(
                "layer_workspaces are not saved: to have them, compile the loaded "
                "model again",
                RuntimeWarning,
                stacklevel=outside(),
            )
        slots = model._built_session().slots
        weights = model._built_network().weights
        return {
            "optimizer": optimizers.serialize(result.optimizer),
            "undecayed": list(result.optimizer._excluded),
            "goals": [self._value(each) for each in result.goals[:4]],
            "memory": _policy_name(result.policy),
            "times": result.times,
            "modes": [result.modes.training.value, result.modes.inference.value],
            "on_oom": _step_names(result.on_oom.steps) or ["raise"],
            "batch_statistics": result.on_oom.batch_statistics,
            "frozen": [each.key for each in weights if each.name in result.frozen],
            "iterations": result.optimizer._iterations.value,
            "state": [[slot.key, list(slot.shape), slot.dtype] for slot in slots],
        }

    def _model(self, model: Any) -> dict[str, Any]:
        """Describe a model by its layers, or a user's class by its arguments."""
        network = model._built_network()
        kind = type(model).__dict__.get("_saved_as")
        result = {
            "class": kind or class_name(type(model)),
            "name": model.name,
            "kind": model._kind,
            "trainable": model._nested is None or model.trainable,
            "dtype": None if model._policy is None else model._policy.name,
        }
        if kind is None:
            shapes = [list(each.open_shape) for each in network.inputs]
            takes = network.takes.described()
            inner = _marks(model._stacked())
            result |= {"config": self._arguments(model), "inner": inner}
            return result | {"shapes": shapes, "takes": takes}
        if kind == "Sequential":
            starts = [each.node.layer for each in network.inputs]
            chain = starts + list(model._stacked())
            several = {"takes": network.takes.described()} if len(starts) > 1 else {}
            return result | {"layers": [self._place(each) for each in chain]} | several
        return result | self._network(network)

    def _network(self, network: Network) -> dict[str, Any]:
        tensors = [output for node in network.nodes for output in node.outputs]
        places = {tensor: i for i, tensor in enumerate(tensors)}
        return {
            "calls": [
                [
                    self._place(node.layer),
                    [places[each] for each in node.inputs],
                    self._value(node.details),
                ]
                for node in network.nodes
            ],
            # Indices in `calls` of operators and ops, which drop masks.
            "operations": [
                i for i, node in enumerate(network.nodes) if node.in_operation
            ],
            "inputs": [places[each] for each in network.inputs],
            "outputs": [places[each] for each in network.outputs],
            "losses": [places[each] for each in network.losses],
            "takes": network.takes.described(),
            "gives": network.gives.described(),
        }

    def _place(self, layer: Layer) -> int:
        """Return a layer's index in the list, adding its description the first time."""
        if layer not in self._places:
            described = self._layer(layer)  # its inner layers come first
            self._places[layer] = len(self._layers)
            self._layers.append(described)
        return self._places[layer]

    def _layer(self, layer: Layer) -> dict[str, Any]:
        if isinstance(layer, Nested):
            return {"model": self._model(layer.model), "seed": layer._seed}
        result: dict[str, Any] = {
            "class": class_name(type(layer)),
            "config": self._arguments(layer),
            "name": layer.name,
            "named": layer._named,
            "seed": layer._seed,
            "trainable": bool(layer.trainable),
            "dtype": [layer.dtype_policy.name, layer._policy_said],
        }
        call = getattr(layer, "_call", None)  # the call arguments of an attention layer
        result["call"] = None if call is None else list(call)
        penalties = layer._penalties().items()
        result["penalties"] = {name: self._value(each) for name, each in penalties}
        if isinstance(layer, InputLayer):
            result["config"]["dtype"] = layer.dtype
        if not is_ours(type(layer)):
            result["inner"] = _marks(inner_layers(layer))
        return result

    def _arguments(self, value: Any) -> dict[str, Any]:
        """Return the arguments of a constructor from attributes of the same names.

        A user's class may return them from ``get_config`` instead, as in Keras.
        """
        kind = type(value)
        get_config = kind.get_config
        if get_config.__module__.startswith("memcfg.nn."):
            result = constructor_arguments(value, complete=not is_ours(kind))
        else:
            result = dict(get_config(value))
        return {name: self._value(each) for name, each in result.items()}

    def _value(self, value: Any) -> Any:
        if isinstance(value, float | np.integer | np.floating):
            return _number(value)
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, np.ndarray) and value.dtype.kind in "fiub":
            return value.tolist()
        if isinstance(value, Place | slice) or value is Ellipsis:
            return _of_call(value)
        if isinstance(value, list | tuple):
            return [self._value(each) for each in value]
        if isinstance(value, dict) and all(isinstance(key, str) for key in value):
            return {"dict": {key: self._value(each) for key, each in value.items()}}
        as_layer = getattr(value, "_as_layer", None)
        if isinstance(value, Layer) or as_layer is not None:
            return {"layer": self._place(value if as_layer is None else as_layer())}
        if isinstance(value, SAVED):
            return {
                "class": class_name(type(value)),
                "config": self._arguments(value),
            }
        if inspect.isfunction(value):
            return {"function": self._function(value)}
        raise TypeError(
            f"{value!r} cannot be saved: it is not a number, string, list, function or "
            "object of memcfg.nn. save_weights saves the weights alone"
        )

    def _function(self, value: Any) -> str:
        """Return the name under which the reader must supply a function."""
        name: str = value.__name__
        if name == "<lambda>":
            raise TypeError(
                f"{value!r} cannot be saved: a lambda has no name to load it by. Write "
                "it with def, or save the weights alone with save_weights"
            )
        if self._functions.setdefault(name, value) is not value:
            raise TypeError(
                f"two different functions are named {name!r} and cannot be saved: "
                "rename one"
            )
        return name


def _of_call(value: Any) -> Any:
    """Return what stands in the arguments of a call, and not in those of a layer."""
    if isinstance(value, Place):
        return {"place": value.number}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop, value.step]}
    return {"ellipsis": True}


def _number(value: Any) -> Any:
    """Return a number as JSON, which has no literals for infinity and NaN."""
    number = value.item() if isinstance(value, np.generic) else value
    return number if math.isfinite(number) else {"float": str(number)}


def _marks(layers: Sequence[Layer]) -> list[Any]:
    """Return the settings of layers that their owner's constructor does not set."""
    return [
        [
            each._seed,
            bool(each.trainable),
            _marks(inner_layers(each)),
            [each.dtype_policy.name, each._policy_said],
        ]
        for each in layers
    ]


def _known_name(policy: Any) -> str | None:
    known = planning.NAMED_POLICIES.items()
    return next((name for name, make in known if make() == policy), None)


def _step_names(steps: Sequence[Any]) -> list[str]:
    """Return the names of steps of ``on_oom``; warn of those that have none."""
    result = []
    for step in steps:
        name = step if isinstance(step, str) else _known_name(step)
        if name is not None:
            result.append(name)
            continue
        warnings.warn(
            f"{step!r} in on_oom is not saved: compile the loaded model again to set "
            "it",
            RuntimeWarning,
            stacklevel=outside(),
        )
    return result


def _policy_name(policy: Any) -> str | None:
    name = _known_name(policy)
    if name is not None:
        return name
    warnings.warn(
        f"the memory policy {policy!r} is not saved, and the loaded model will have "
        "'auto': compile it again to set the policy",
        RuntimeWarning,
        stacklevel=outside(),
    )
    return None


@dataclass(frozen=True)
class Backup:
    """The position and all values of training, independent of an open file."""

    epoch: int
    iterations: int
    file: WeightFile


def backup(model: Any, path: str, epoch: int) -> None:
    """Write all values and the epoch to resume from."""
    with model._lock.turn():
        model._gather()
        session = model._built_session()
        steps = str(model.optimizer._iterations.value)
        metadata = {"format": BACKUP, "iterations": steps, "epoch": str(epoch)}
        write_file(path, entries(model), session.read, metadata, checksums=True)


def read_backup(path: str) -> Backup:
    """Read a file written by `backup`; FormatError if any byte differs."""
    try:
        with WeightFile(path) as file:
            if file.metadata.get("format") != BACKUP:
                raise FormatError("unknown format")
            file.verify()
    except FormatError as error:
        raise FormatError(f"{path} is not a training backup: {error}") from None
    epoch, steps = (
        read_count(read_json(str(file.metadata.get(key)), key), f"{path}: {key}")
        for key in ("epoch", "iterations")
    )
    return Backup(epoch, steps, file)


def restore(model: Any, saved: str | Backup) -> None:
    """Restore a model from a backup or its path, atomically."""
    source = saved if isinstance(saved, Backup) else read_backup(saved)
    with model._lock.turn():
        model._gather()
        wanted = entries(model)
        values = source.file.read(wanted)
        set_values(model, zip(wanted, values, strict=True), source.iterations)


def entries(model: Any) -> Sequence[Entry]:
    """Return the file entries of all of a model's values.

    These are the weights, the state that layers keep between batches and the
    optimizer's state.
    """
    weights, session = model._completed().weights, model._built_session()
    slots = session.slots if model._config is not None else ()
    return [
        *(Entry(w.name, w.key, w.shape, w.dtype) for w in weights if not w.hidden),
        *(Entry(w.name, KEPT + w.key, w.shape, w.dtype) for w in weights if w.hidden),
        *(Entry(s.name, STATE + s.key, s.shape, s.dtype) for s in slots),
    ]


def set_values(
    model: Any, values: Iterable[tuple[Entry, Any]], iterations: int | None
) -> None:
    """Replace values and the number of steps; the caller holds the model's lock."""
    session = model._built_session()
    for entry, value in values:
        session.write(entry.name, value)
    if iterations is not None:
        model.optimizer._iterations = Counter(iterations)
