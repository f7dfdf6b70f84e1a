"""Whole models in one safetensors file: architecture, weights, optimizer, policy.

The file's metadata say how to build the model, as names of classes and arguments of
their constructors; `memcfg.nn.models.load_model` runs nothing but these constructors.
"""

from __future__ import annotations

import inspect
import json
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._caller import outside
from memcfg.errors import FormatError
from memcfg.nn import optimizers
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._weight_files import Entry, read_file, read_metadata, write_file
from memcfg.nn.layers._layer import InputLayer, Layer
from memcfg.plan import POLICIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.nn._nesting import Structure
    from memcfg.nn._network import Network

__all__ = [
    "FORMAT",
    "STATE",
    "backup",
    "epoch_of_backup",
    "restore",
    "save",
    "set_values",
]

FORMAT, BACKUP = "memcfg.model/1", "memcfg.backup/1"
STATE = "optimizer/"  # before the keys of the optimizer's state


def save(model: Any, filepath: str | os.PathLike[str], overwrite: bool) -> None:
    """Write a whole model to a file."""
    path = os.fspath(filepath)
    if not path.endswith(".memcfg"):
        raise ValueError(
            f"models are written to files that end in '.memcfg', got {path!r}; weights "
            "alone: save_weights('x.weights.safetensors')"
        )
    if not overwrite and os.path.exists(path):
        raise FileExistsError(f"{path} is there, and overwrite is False")
    with model._lock.turn():
        weights, session = model._weights_and_session()
        state = _state_of(model)
        document = json.dumps(_describe_model(model), separators=(",", ":"))
        metadata = {"format": FORMAT, "model": document}
        write_file(path, [*weights, *state], session.read, metadata)


def _describe_model(model: Any) -> dict[str, Any]:
    """Return how to build and compile a model."""
    network = model._built_network()
    document: dict[str, Any] = {
        "class": type(model).__dict__.get("_saved_as"),
        "name": model.name,
        **_describe_network(network),
        "compile": None,
    }
    if document["class"] is None:
        raise TypeError(
            f"{type(model).__name__} is a class of your own, and cannot be saved "
            "whole: save_weights writes its weights"
        )
    found = model._config
    if found is not None:
        slots = model._built_session().slots
        document["compile"] = {
            "optimizer": optimizers.serialize(found.optimizer),
            "undecayed": list(found.optimizer._excluded),
            "goals": [_describe(each) for each in found.goals],
            "memory": _policy_name(found.policy),
            "modes": [mode.value for mode in found.modes],
            "iterations": found.optimizer._iterations.value,
            "state": [[slot.key, list(slot.shape), slot.dtype] for slot in slots],
        }
    return document


def _describe_network(network: Network) -> dict[str, Any]:
    called = list(dict.fromkeys(node.layer for node in network.nodes))
    tensors = [output for node in network.nodes for output in node.outputs]
    places = {tensor: i for i, tensor in enumerate(tensors)}
    return {
        "layers": [_describe_layer(layer) for layer in called],
        "calls": [
            [called.index(node.layer), [places[each] for each in node.inputs]]
            for node in network.nodes
        ],
        "inputs": [places[each] for each in network.inputs],
        "outputs": [places[each] for each in network.outputs],
        "takes": _describe_structure(network.takes),
        "gives": _describe_structure(network.gives),
    }


def _describe_structure(structure: Structure) -> list[Any]:
    kind = None if structure.kind is None else structure.kind.__name__
    return [kind, list(structure.names)]


def _describe_layer(layer: Layer) -> dict[str, Any]:
    found: dict[str, Any] = {"class": _class_name(type(layer))}
    found["config"] = _arguments(layer)
    found["name"], found["named"], found["seed"] = layer.name, layer.named, layer.seed
    found["trainable"] = bool(layer.trainable)
    said = getattr(layer, "_call", None)  # of attention: what its calls say
    found["call"] = None if said is None else list(said)
    penalties = {f"{k}_regularizer": r for k, r in layer._regularizers.items()}
    penalties["activity_regularizer"] = layer.activity_regularizer
    found["penalties"] = {name: _describe(each) for name, each in penalties.items()}
    if isinstance(layer, InputLayer):
        found["config"]["dtype"] = layer.dtype
    return found


def _describe(value: Any) -> Any:
    """Return a value in terms of JSON; TypeError for what cannot be."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.integer | np.floating):
        return value.item()
    if isinstance(value, list | tuple):
        return [_describe(each) for each in value]
    if isinstance(value, dict):
        return {"dict": {str(key): _describe(each) for key, each in value.items()}}
    if isinstance(value, Layer):
        return _describe_layer(value)
    if isinstance(value, FixedAttributes):
        return {"class": _class_name(type(value)), "config": _arguments(value)}
    raise TypeError(
        f"{value!r} cannot be saved: it is no number, string, list or object of "
        "memcfg.nn. save_weights writes weights alone"
    )


def _class_name(kind: type) -> str:
    """Name a class of memcfg.nn with its module's public part, another one alone."""
    package, _, module = kind.__module__.partition("memcfg.nn.")
    if package or not module:
        return kind.__name__
    if module.startswith("_"):
        raise TypeError(
            "models inside of models cannot be saved whole yet: save each, or "
            "save_weights of the outer one"
        )
    return f"{module.partition('.')[0]}.{kind.__name__}"


def _arguments(value: FixedAttributes) -> dict[str, Any]:
    """Return the arguments of a constructor, which are attributes of their names."""
    names = inspect.signature(type(value).__init__).parameters
    state = dict(getattr(value, "initializers", None) or {})
    found = {f"{name}_initializer": each for name, each in state.items()}
    told_apart = (
        ("name", "seed", "weights", "activity_regularizer")
        if isinstance(value, Layer)
        else ()
    )
    for name in names:
        if name not in ("self", *told_apart) and hasattr(value, name):
            found[name] = getattr(value, name)
    if "layer" in names and hasattr(value, "forward_layer"):
        found["layer"] = found.pop("forward_layer", value.forward_layer)
    return {name: _describe(each) for name, each in found.items()}


def _policy_name(policy: Any) -> str | None:
    for name, make in POLICIES.items():
        if make() == policy:
            return name
    warnings.warn(
        f"the memory policy {policy!r} is not saved: the loaded model has 'auto'; "
        "compile it again",
        RuntimeWarning,
        stacklevel=outside(),
    )
    return None


def backup(model: Any, path: str, epoch: int) -> None:
    """Write weights, the optimizer's state, and the epoch to go on from."""
    with model._lock.turn():
        weights, session = model._weights_and_session()
        state = _state_of(model)
        steps = str(model.optimizer._iterations.value)
        metadata = {"format": BACKUP, "iterations": steps, "epoch": str(epoch)}
        write_file(path, [*weights, *state], session.read, metadata)


def epoch_of_backup(path: str) -> int:
    """Return the epoch that training goes on from."""
    return _notes_of(path)[0]


def _notes_of(path: str) -> tuple[int, int]:
    """Return the epoch and the number of steps that a backup notes."""
    metadata = read_metadata(path)
    epoch, steps = (str(metadata.get(key)) for key in ("epoch", "iterations"))
    if metadata.get("format") != BACKUP or not (epoch + steps).isdecimal():
        raise FormatError(f"{path} is no backup of training")
    return int(epoch), int(steps)


def restore(model: Any, path: str) -> None:
    """Read what `backup` wrote into a model, all or nothing."""
    _, steps = _notes_of(path)
    with model._lock.turn():
        weights, _ = model._weights_and_session()
        state = _state_of(model)
        values = read_file(path, [*weights, *state], whole=True)
        set_values(model, weights, state, values, steps)


def set_values(
    model: Any,
    weights: Sequence[Any],
    state: Sequence[Entry],
    values: Sequence[Any],
    iterations: int,
) -> None:
    """Replace weights and the optimizer's state; the model's lock is held."""
    session = model._built_session()
    for weight, value in zip(weights, values, strict=False):
        session.write(weight.name, value)
    kept = {"iteration": np.asarray(iterations)}
    for entry, value in zip(state, values[len(weights) :], strict=True):
        kept[entry.key.removeprefix(STATE)] = value
    model.optimizer.set_state(kept)


def _state_of(model: Any) -> list[Entry]:
    slots = model._built_session().slots if model._config is not None else ()
    return [Entry(s.name, STATE + s.key, s.shape, s.dtype) for s in slots]
