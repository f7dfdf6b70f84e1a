"""Models, by the names that users of Keras know, and whole models read from files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from memcfg.documents import read_json
from memcfg.errors import FormatError
from memcfg.nn import initializers, layers, losses, metrics, optimizers, regularizers
from memcfg.nn._attributes import FixedAttributes
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn._model import Model
from memcfg.nn._nesting import Structure
from memcfg.nn._saving import FORMAT, STATE, set_values
from memcfg.nn._sequential import Sequential
from memcfg.nn._weight_files import Entry, read_file, read_metadata
from memcfg.nn.layers._attention import ATTENTION, Said
from memcfg.nn.layers._layer import InputLayer, Layer, Node, sample_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from memcfg.nn.layers._layer import SymbolicTensor

__all__ = ["Model", "Sequential", "load_model", "save_model"]

if not TYPE_CHECKING:  # a checker would take any name to be there
    __getattr__ = absent(__name__)

_ROOMS = (layers, losses, metrics, initializers, regularizers)
_CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "dict": dict}


@takes_arguments
def save_model(
    model: Model, filepath: str | os.PathLike[str], overwrite: bool = True
) -> None:
    """Write a whole model to a file, as `Model.save` does.

    Parameters
    ----------
    model : Model
        The model.
    filepath : str or path-like
        The file, ``"x.memcfg"``.
    overwrite : bool, default True
        Whether a file that is there is replaced.
    """
    model.save(filepath, overwrite)


@takes_arguments
def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: Mapping[str, type] | None = None,
    compile: bool = True,  # noqa: A002  (Keras's name)
) -> Model:
    """Read a whole model from a file that `Model.save` wrote.

    Parameters
    ----------
    filepath : str or path-like
        The file.
    custom_objects : mapping of str to type, optional
        Classes of your own by their names: layers, losses, metrics.
    compile : bool, default True
        Whether the model is compiled as it was; with it comes the optimizer's state.

    Returns
    -------
    Model
        The model, which goes on as the saved one would.

    Raises
    ------
    OSError
        If the file cannot be read.
    FormatError
        If it is damaged, holds no model, or a class that is not known.
    WeightsError
        If its tensors are not those of its model.
    TypeError, ValueError
        By a constructor, if an argument in the file has no meaning.
    """
    metadata = read_metadata(filepath)
    where = os.fspath(filepath)
    if metadata.get("format") != FORMAT or not isinstance(metadata.get("model"), str):
        raise FormatError(f"{where} holds weights and no whole model: use load_weights")
    document = read_json(metadata["model"], "model")
    reader = _Reader(custom_objects or {}, where)
    try:
        model = reader.model(document)
        if compile and document["compile"] is not None:
            reader.compile(model, document["compile"])
    except (KeyError, IndexError, AttributeError) as error:
        raise FormatError(f"{where}: its model is described badly: {error!r}") from None
    with model._lock.turn():
        weights, session = model._weights_and_session()
        saved = document["compile"] or {"state": []}
        state = [Entry("", STATE + k, tuple(s), d) for k, s, d in saved["state"]]
        values = read_file(filepath, [*weights, *state], whole=True)
        if compile and "iterations" in saved:
            set_values(model, weights, state, values, saved["iterations"])
            return model
        for weight, value in zip(weights, values, strict=False):
            session.write(weight.name, value)
    return model


class _Reader:
    """Makes objects of what a file says."""

    def __init__(self, custom: Mapping[str, type], where: str) -> None:
        known = {
            f"{room.__name__.rpartition('.')[2]}.{name}": getattr(room, name)
            for room in _ROOMS
            for name in room.__all__
        }
        self._known = {**known, "layers.InputLayer": InputLayer, **custom}
        self._where = where

    def model(self, document: Any) -> Model:
        """Make a model."""
        made = [self._layer(each) for each in document["layers"]]
        tensors: list[SymbolicTensor] = []
        for index, operands in document["calls"]:
            layer, inputs = made[index], [tensors[i] for i in operands]
            if isinstance(layer, InputLayer):
                tensors.append(_started(layer))
                continue
            result: Any = Layer.__call__(
                layer, inputs[0] if layer.arity == 1 else inputs
            )
            tensors += result if isinstance(result, list | tuple) else [result]
        starts, ends = (
            [tensors[i] for i in document[key]] for key in ("inputs", "outputs")
        )
        takes, gives = (self._structure(document[key]) for key in ("takes", "gives"))
        if document["class"] == "Sequential":
            chain = [layer for layer in made if not isinstance(layer, InputLayer)]
            for layer in chain:
                layer._release()
            return Sequential([starts[0], *chain], name=document["name"])
        return Model(takes.pack(starts), gives.pack(ends), name=document["name"])

    def compile(self, model: Model, document: Any) -> None:
        """Compile a model as it was."""
        loss, weights, measured, weighted = map(self._value, document["goals"])
        training, inference = document["modes"]
        planned = "enabled" in (training, inference)
        optimizer = optimizers.deserialize(document["optimizer"])
        if document["undecayed"]:
            optimizer.exclude_from_weight_decay(var_names=document["undecayed"])
        model.compile(
            optimizer,
            loss,
            weights,
            measured,
            weighted,
            memory=document["memory"] if planned else None,
            training_workspace_mode=training,
            inference_workspace_mode=inference,
        )

    def _structure(self, given: Any) -> Structure:
        kind, names = given
        return Structure(None if kind is None else _CONTAINERS[kind], tuple(names))

    def _layer(self, given: Any) -> Layer:
        layer = self._value(given)
        if not isinstance(layer, Layer):
            raise FormatError(f"{self._where}: {given['class']!r} is no layer")
        return layer

    def _finish(self, layer: Any, given: Any) -> Layer:
        """Give a layer what is no argument of its constructor."""
        object.__setattr__(layer, "name", given["name"])
        object.__setattr__(layer, "named", given["named"])
        object.__setattr__(layer, "_seed", given["seed"])
        if given["call"] is not None and isinstance(layer, ATTENTION):
            object.__setattr__(layer, "_call", Said(*map(bool, given["call"])))
        for name, each in given["penalties"].items():
            layer._take(name, self._value(each))
        if not given["trainable"]:
            layer.trainable = False
        made: Layer = layer
        return made

    def _value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._value(each) for each in given]
        if not isinstance(given, dict):
            return given
        if "dict" in given:
            return {key: self._value(each) for key, each in given["dict"].items()}
        name = given["class"]
        kind: Callable[..., Any] | None = self._known.get(name)
        if not isinstance(kind, type) or not issubclass(kind, FixedAttributes):
            raise FormatError(
                f"{self._where}: the class {name!r} is not known: pass it, "
                f"custom_objects={{{name!r}: {name}}}"
            )
        config = given["config"]
        made = kind(**{key: self._value(each) for key, each in config.items()})
        return self._finish(made, given) if isinstance(made, Layer) else made


def _started(layer: InputLayer) -> SymbolicTensor:
    """Return the symbolic tensor of an input layer."""
    object.__setattr__(layer, "shape", sample_shape(layer.shape))
    return Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0]
