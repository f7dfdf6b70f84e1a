"""Models and weights in the files of Keras: ``.keras``, ``.weights.h5`` and ``.h5``."""

from __future__ import annotations

import json
import os
import warnings
import zipfile
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from memcfg._caller import outside
from memcfg._core import Counter
from memcfg._version import __version__
from memcfg.documents import read_json
from memcfg.errors import FormatError, WeightsError
from memcfg.files import open_file, write_atomically
from memcfg.nn import optimizers
from memcfg.nn._weight_files import Entry
from memcfg.nn.exchange._configs import (
    deserialize_keras_object,
    serialize_keras_object,
)
from memcfg.nn.exchange._custom_objects import get_registered_object, own_class
from memcfg.nn.exchange._hdf5 import Hdf5File, Stored, the_library
from memcfg.nn.exchange._keras_archives import (
    ASSETS,
    CONFIG,
    METADATA,
    WEIGHTS,
    KerasArchive,
    opened_archive,
)
from memcfg.nn.exchange._keras_paths import layer_paths, model_groups, optimizer_slots

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from memcfg.nn._network import Weight

__all__ = [
    "is_of_keras",
    "load_model_of_keras",
    "read_weights_of_keras",
    "save_model_for_keras",
    "save_weights_for_keras",
    "warn_of_missing",
]

_ZIP, _HDF5 = b"PK\3\4", b"\x89HDF\r\n\x1a\n"
_OPTIMIZER = "optimizer/vars"
_LEGACY_OPTIMIZER = "optimizer_weights"
_VOCABULARY, _LOOKUP, _IDF = "vocabulary.txt", "_lookup_layer/", "vars/idf_weights"
_PIECE = 2**20  # bytes that are copied at a time
_SETTINGS = ("loss", "loss_weights", "metrics", "weighted_metrics")
_ROOMS = {"loss": "losses", "metrics": "metrics", "weighted_metrics": "metrics"}


class _Opened(NamedTuple):
    """What a file holds."""

    weights: Hdf5File
    described: dict[str, Any] | None  # the model, if any
    assets: dict[str, str]  # texts of layers, by their paths in the archive


class _Found(NamedTuple):
    """A weight of a model and what a file has for it."""

    weight: Weight
    stored: Stored | None


def is_of_keras(path: str | os.PathLike[str]) -> bool:
    """Return whether a file starts as archives and HDF5 files do."""
    with open_file(path) as file:
        start = file.read(8)
    return start.startswith(_ZIP) or start == _HDF5


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[_Opened]:
    """Open a file and yield what it holds."""
    where = os.fspath(path)
    the_library()
    with open_file(path) as file:
        start = file.read(8)
        file.seek(0)
        if start == _HDF5:
            with Hdf5File(file, where) as found:
                yield _Opened(found, _legacy_description(found), {})
            return
        with opened_archive(file, where) as archive:
            described = read_json(archive.text(CONFIG), CONFIG)
            if not isinstance(described, dict):
                raise FormatError(f"{where}: {CONFIG} describes no model")
            with Hdf5File(archive.weights(), where) as found:
                yield _Opened(found, described, _assets(archive))


def _assets(archive: KerasArchive) -> dict[str, str]:
    """Return the texts of an archive's assets; FormatError if one is no text."""
    result = {}
    for name in archive.assets:
        try:
            result[name] = archive.text(name).decode()
        except UnicodeDecodeError as error:
            raise FormatError(f"{archive.where}: {name} is no text: {error}") from None
    return result


def _legacy_description(file: Hdf5File) -> dict[str, Any] | None:
    """Return the description of a model in Keras 2's format, in one dictionary."""
    text = file.text("", "model_config")
    if text is None:
        return None
    described: Any = read_json(text, "model_config")
    trained = file.text("", "training_config")
    settings: Any = None if trained is None else read_json(trained, "training_config")
    if not isinstance(described, dict):
        raise FormatError(f"{file.where}: its model_config describes no model")
    if isinstance(settings, dict):
        settings = {**settings, "optimizer": settings.get("optimizer_config")}
    return {**described, "compile_config": settings}


def load_model_of_keras(path: str | os.PathLike[str], *, compiled: bool) -> Any:
    """Build the model of a file, with its weights and the optimizer's state."""
    with _opened(path) as (file, described, assets):
        if described is None:
            raise FormatError(
                f"{file.where} holds weights but no model: use load_weights"
            )
        model = deserialize_keras_object(described)
        if not hasattr(model, "_built_network"):
            raise FormatError(f"{file.where} describes no model")
        built = described.get("build_config")
        if not model.built and isinstance(built, dict) and built.get("input_shape"):
            model.build(built["input_shape"])
        settings = described.get("compile_config")
        _give_assets(model, file, assets)
        if compiled and settings:
            _compile(model, settings)
        with model._lock.turn():
            session = model._built_session()
            for weight, stored in _all_found(model, file, by_name=True):
                session.write(weight.name, file.read(stored, weight))
            if compiled and settings:
                _restore_optimizer(model, file)
    return model


def _give_assets(model: Any, file: Hdf5File, assets: dict[str, str]) -> None:
    """Give layers the vocabularies that a file holds beside the description."""
    left = dict(assets)
    for path, layer in layer_paths(model, _names_in(file, by_name=True)):
        text = left.pop(f"{ASSETS}{path}{_VOCABULARY}", None)
        if text is None or not hasattr(layer, "lookup"):
            continue
        left.pop(f"{ASSETS}{path}{_LOOKUP}{_VOCABULARY}", None)  # again
        stored = file.datasets.get(f"{path}{_IDF}")
        try:
            name, shape = f"{layer.name}/idf_weights", (layer.lookup.depth,)
            entry = Entry(name, name, shape, "float32")
            weights = None if stored is None else file.read(stored, entry)
            layer.lookup.read_assets(text, weights)
        except (TypeError, ValueError) as error:
            raise FormatError(f"{file.where}: layer {layer.name!r}: {error}") from error
    if left:
        raise FormatError(
            f"{file.where} has {', '.join(sorted(left)[:3])}, which no layer reads"
        )


def _compile(model: Any, settings: Any) -> None:
    """Compile a model as a file says."""
    try:
        given = {
            name: _named(settings.get(name), _ROOMS.get(name)) for name in _SETTINGS
        }
        optimizer = optimizers.get(settings.get("optimizer", "rmsprop"))  # as Keras
        model.compile(optimizer, **given)
    except (FormatError, TypeError, ValueError) as error:
        raise type(error)(
            f"{error}. To load the model without how it was compiled, pass "
            "compile=False"
        ) from error


def _named(value: Any, room: str | None) -> Any:
    """Return losses or metrics of a file; older files have the names of functions."""
    if isinstance(value, dict) and value.get("class_name") == "function":
        name = value.get("config")
        return own_class(value) or get_registered_object(str(name)) or name
    if isinstance(value, dict) and "class_name" not in value:
        return {key: _named(each, room) for key, each in value.items()}
    if isinstance(value, list):
        return [_named(each, room) for each in value]
    return value if room is None else deserialize_keras_object(value, room=room)


def read_weights_of_keras(
    model: Any, path: str | os.PathLike[str], *, skip_mismatch: bool
) -> list[tuple[Weight, np.ndarray]]:
    """Read the weights of a model from a file of weights or of a whole model."""
    with _opened(path) as (file, _, _assets):
        if not skip_mismatch:
            return [
                (weight, file.read(stored, weight))
                for weight, stored in _all_found(model, file, by_name=False)
            ]
        found = [
            (weight, file.read(stored, weight))
            for weight, stored in _found(model, file, by_name=False)
            if stored is not None and stored.shape == weight.shape
        ]
    warn_of_missing(os.fspath(path), model._exchanged(), found)
    return found


def warn_of_missing(
    where: str, weights: Sequence[Weight], found: Sequence[tuple[Weight, Any]]
) -> None:
    """Warn of weights that a file does not have in their shapes."""
    names = {weight.name for weight, _ in found}
    skipped = [each.name for each in weights if each.name not in names]
    if skipped:
        warnings.warn(
            f"{where} has no weights of their shapes for {', '.join(skipped)}, which "
            "are left as they were",
            RuntimeWarning,
            stacklevel=outside(),
        )


def _all_found(
    model: Any, file: Hdf5File, *, by_name: bool
) -> list[tuple[Weight, Stored]]:
    """Return what a file has for each weight; WeightsError if it has more, or less."""
    found = _found(model, file, by_name=by_name)
    missing = [weight.name for weight, stored in found if stored is None]
    read = {stored.path for _, stored in found if stored is not None}
    left = [
        path
        for path in file.datasets
        if path not in read
        and not path.startswith(("optimizer", "top_level_model_weights"))
        and "seed_generator" not in path
        and not path.endswith(f"/{_IDF}")
    ]
    if missing or left:
        raise WeightsError(
            f"{file.where} holds the weights of another architecture. Missing: "
            f"{', '.join(missing[:3]) or 'nothing'}; unexpected: "
            f"{', '.join(left[:3]) or 'nothing'}"
        )
    return [(weight, stored) for weight, stored in found if stored is not None]


def _found(model: Any, file: Hdf5File, *, by_name: bool) -> list[_Found]:
    """Return each weight with what a file has for it."""
    for root in ("model_weights", ""):
        layers = file.names(root, "layer_names")
        if layers is not None:
            return _legacy_found(model, file, root, layers)

    result = []
    for group in model_groups(model, _names_in(file, by_name=by_name)):
        count = sum(path.rpartition("/")[0] == group.path for path in file.datasets)
        fits = count == len(group.weights)
        for place, weight in enumerate(group.weights):
            stored = file.datasets.get(f"{group.path}/{place}") if fits else None
            result.append(_Found(weight, stored))
    return result


def _names_in(file: Hdf5File, *, by_name: bool) -> Callable[[str], dict[str, str]]:
    """Return a function of a path that gives its groups by the names of layers."""

    def names(path: str) -> dict[str, str]:
        groups = file.groups(path)
        noted = {file.text(f"{path}/{each}/vars", "name"): each for each in groups}
        if None in noted or len(noted) < len(groups) or not by_name:
            return {}
        return {str(name): each for name, each in noted.items()}

    return names


def _legacy_found(
    model: Any, file: Hdf5File, root: str, names: Sequence[str]
) -> list[_Found]:
    """Return the weights of Keras 2's format, in which layers are listed by name."""
    network = model._built_network()
    known = {(each.layer, each.spec_name): each for each in network.weights}
    stored = {}
    for name in names:
        path = f"{root}/{name}".strip("/")
        listed = file.names(path, "weight_names") or []
        if listed:
            stored[name] = [file.datasets.get(f"{path}/{each}") for each in listed]
    layers = [each for each in model._stacked() if each.weights]
    if all(each.name in stored for each in layers):
        pairs = [(each, stored[each.name]) for each in layers]
    elif len(layers) == len(stored):
        pairs = list(zip(layers, stored.values(), strict=True))
    else:
        raise WeightsError(
            f"{file.where} has weights for {len(stored)} layers, but the model has "
            f"{len(layers)} layers with weights"
        )
    result = []
    for layer, found in pairs:
        own = [*layer.trainable_weights, *layer.non_trainable_weights]
        if len(own) != len(found):
            found = [None] * len(own)
        for variable, each in zip(own, found, strict=True):
            weight = known[variable._layer, variable.name]
            result.append(_Found(weight, each))
    return result


def _restore_optimizer(model: Any, file: Hdf5File) -> None:
    """Read the state of a model's optimizer, or warn that it starts anew."""
    optimizer, session = model.optimizer, model._built_session()
    listed = file.names(_LEGACY_OPTIMIZER, "weight_names")
    if listed is not None:
        stored = [file.datasets.get(f"{_LEGACY_OPTIMIZER}/{each}") for each in listed]
    else:
        count = sum(path.startswith(f"{_OPTIMIZER}/") for path in file.datasets)
        stored = [file.datasets.get(f"{_OPTIMIZER}/{i}") for i in range(count)]
    if not stored:
        return
    slots = optimizer_slots(optimizer.kind, session.slots)
    first = 1 + _has_rate(optimizer)
    found = stored[first:]
    fits = slots is not None and optimizer.gradient_accumulation_steps is None
    if found and fits:
        shapes = [None if each is None else each.shape for each in found]
        fits = shapes == [slot.shape for slot in slots or ()]
    if not fits or stored[0] is None:
        warnings.warn(
            f"{file.where}: the state of {type(optimizer).__name__} is not read, which "
            "starts anew",
            RuntimeWarning,
            stacklevel=outside(),
        )
        return
    for slot, each in zip(slots or (), found, strict=False):
        if each is not None:
            session.write(slot.name, file.read(each, slot))
    optimizer._iterations = Counter(file.count(stored[0]))


def _has_rate(optimizer: Any) -> bool:
    """Return whether the learning rate is a variable of Keras's optimizer."""
    schedule = optimizers.schedules.LearningRateSchedule
    return not isinstance(optimizer._learning_rate, schedule)


def save_model_for_keras(
    model: Any, path: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Write a whole model as Keras does, to a file that Keras reads."""
    model._require_calls("save")
    described = serialize_keras_object(model)
    ours = sorted({*_ours_in(described)})
    if ours:
        warnings.warn(
            f"Keras cannot read {os.fspath(path)}, since it has no "
            f"{', '.join(ours)}; memcfg can",
            RuntimeWarning,
            stacklevel=outside(),
        )
    if (
        type(model).__dict__.get("_saved_as") is None
    ):  # its shapes are not in its configuration
        described["build_config"] = {"input_shape": model.input_shape}
    compiled = model._config
    if compiled is not None:
        goals = {name: getattr(compiled.goals, name) for name in _SETTINGS}
        described["compile_config"] = {
            "optimizer": optimizers.serialize(compiled.optimizer),
            **{name: serialize_keras_object(each) for name, each in goals.items()},
            "run_eagerly": False,
            "steps_per_execution": 1,
            "jit_compile": False,
        }
    metadata = {"memcfg_version": __version__}
    with TemporaryDirectory() as folder:
        weights = Path(folder, WEIGHTS)
        _write_weights(model, weights, state=compiled is not None)
        archived = Path(folder, "archive")
        with zipfile.ZipFile(archived, "w") as archive:
            for name, each in ((METADATA, metadata), (CONFIG, described)):
                archive.writestr(zipfile.ZipInfo(name), json.dumps(each))
            with (
                weights.open("rb") as source,
                archive.open(zipfile.ZipInfo(WEIGHTS), "w", force_zip64=True) as target,
            ):
                while piece := source.read(_PIECE):
                    target.write(piece)
        write_atomically(path, _pieces(archived), overwrite=overwrite)


def _ours_in(value: Any) -> Iterator[str]:
    """Yield the names of classes that Keras does not have, in a configuration."""
    if isinstance(value, dict):
        module, name = value.get("module"), value.get("class_name")
        if isinstance(module, str) and module.startswith("memcfg."):
            yield str(name)
        value = list(value.values())
    if isinstance(value, list | tuple):
        for each in value:
            yield from _ours_in(each)


def save_weights_for_keras(
    model: Any, path: str | os.PathLike[str], *, overwrite: bool
) -> None:
    """Write a model's weights as Keras does."""
    with TemporaryDirectory() as folder:
        written = Path(folder, WEIGHTS)
        _write_weights(model, written, state=False)
        write_atomically(path, _pieces(written), overwrite=overwrite)


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def _write_weights(model: Any, path: Path, *, state: bool) -> None:
    """Write weights, one at a time, and the optimizer's state to an HDF5 file."""
    library = the_library()
    model._completed()
    with library.File(path, "w") as file, model._lock.turn():
        model._gather()
        session = model._built_session()
        for group in model_groups(model, lambda _: {}):
            made = file.require_group(group.path)
            made.attrs["name"] = group.layer
            for place, weight in enumerate(group.weights):
                made[str(place)] = session.read(weight.name)
        for at, layer in layer_paths(model, lambda _: {}):
            lookup = getattr(layer, "lookup", None)
            if lookup is None:
                continue
            for inner in ("",) if lookup is layer else ("", _LOOKUP):
                lookup.write_weights(file, f"{at}{inner}{_IDF}")
        slots = optimizer_slots(model.optimizer.kind, session.slots) if state else None
        if slots is None or model.optimizer.gradient_accumulation_steps is not None:
            return
        made = file.require_group(_OPTIMIZER)
        made.attrs["name"] = model.optimizer.name
        first = [model.optimizer._iterations.value]
        if _has_rate(model.optimizer):
            first.append(model.optimizer._learning_rate)
        for place, number in enumerate(first):
            made.create_dataset(str(place), data=number, dtype="f4" if place else "i4")
        for place, slot in enumerate(slots, len(first)):
            made[str(place)] = session.read(slot.name)
