"""Models under Keras's names; whole models saved to and loaded from files."""

from __future__ import annotations

import math
import os
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from memcfg import plan as planning
from memcfg.config import DTypePolicy
from memcfg.documents import (
    read_count,
    read_flag,
    read_json,
    read_list,
    read_or_null,
    read_text,
)
from memcfg.errors import FormatError
from memcfg.graph import TIMES, allowed_ops
from memcfg.nn import optimizers
from memcfg.nn._argument_checks import integer
from memcfg.nn._attributes import FixedAttributes, check_name
from memcfg.nn._keras_arguments import takes_arguments
from memcfg.nn._keras_names import absent
from memcfg.nn._model import Model
from memcfg.nn._nested import Nested, symbolic
from memcfg.nn._nesting import Structure, form_of
from memcfg.nn._saving import (
    FORMAT,
    SAVED,
    STATE,
    class_name,
    entries,
    is_ours,
    set_values,
)
from memcfg.nn._sequential import Sequential
from memcfg.nn._weight_files import Entry, WeightFile
from memcfg.nn.exchange._architecture import again
from memcfg.nn.exchange._configs import deserialize_keras_object, remade
from memcfg.nn.exchange._custom_objects import CustomObjectScope
from memcfg.nn.exchange._keras_files import is_of_keras, load_model_of_keras
from memcfg.nn.layers._attention import ATTENTION, CallOptions
from memcfg.nn.layers._layer import (
    InputLayer,
    Layer,
    Node,
    Place,
    SymbolicTensor,
    filled_in,
    inner_layers,
    operation,
    sample_shape,
)
from memcfg.nn.training._tracing import trace_layers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

__all__ = [
    "Model",
    "Sequential",
    "clone_model",
    "from_onnx",
    "load_model",
    "model_from_json",
    "save_model",
]

if not TYPE_CHECKING:  # otherwise type checkers would accept any name
    __getattr__ = absent(__name__)

_FLOAT32 = ("float32", False)  # the dtype policy of layers in files without one
_SHAPE = read_list(read_count)
# ImportError: of what only some files need
_REFUSALS = (OSError, TypeError, ValueError, MemoryError, ImportError)
MAX_OPS = 100_000  # limit on a loaded model's inference graph: some 30 s of tracing
_NOT_FINITE = {str(number): number for number in (math.inf, -math.inf, math.nan)}
_RENAMED = {"layers.Bound": "layers.OfNumber"}  # old class names, in older files
_CONTAINERS: dict[str, type] = {"list": list, "tuple": tuple, "dict": dict}


@takes_arguments
def save_model(
    model: Model, filepath: str | os.PathLike[str], overwrite: bool = True
) -> None:
    """Save a whole model to a file, as `Model.save` does.

    Parameters
    ----------
    model : Model
        The model.
    filepath : str or path-like
        The file, such as ``"x.memcfg"``.
    overwrite : bool, default True
        Whether an existing file is replaced.
    """
    model.save(filepath, overwrite)


@takes_arguments
def load_model(
    filepath: str | os.PathLike[str],
    custom_objects: Mapping[str, Any] | None = None,
    compile: bool = True,  # noqa: A002  (Keras's name)
) -> Model:
    """Load a whole model from a file that `Model.save` or Keras wrote.

    Parameters
    ----------
    filepath : str or path-like
        The file: ``.memcfg``, or ``.keras`` or ``.h5`` in Keras's format.
    custom_objects : mapping of str to type or callable, optional
        Your own classes and functions by name: models, layers, losses, metrics.
    compile : bool, default True
        Whether to compile the model as it was saved and load the optimizer's state.

    Returns
    -------
    Model
        The model; training continues as it would have with the saved model.

    Raises
    ------
    OSError
        If the file cannot be read.
    FormatError
        If the file is damaged, holds no model, names an unknown class or function, or
        its model has more than 100,000 ops.
    ImportError
        If it is a file of Keras and h5py is not installed.
    WeightsError
        If the tensors in the file do not match the model.
    TypeError, ValueError
        If a constructor or a layer rejects an argument in the file.
    MemoryError
        If there is not enough memory for the weights.

    Warns
    -----
    RuntimeWarning
        If the state of an optimizer in a file of Keras is not read.

    Notes
    -----
    Nothing in a file is executed. A file of Keras with a lambda, or with a layer or a
    setting that memcfg does not have, is refused.
    """
    where = os.fspath(filepath)
    if is_of_keras(filepath):
        with _reading(where), CustomObjectScope(custom_objects):
            made: Model = load_model_of_keras(filepath, compiled=compile)
            return made
    with _opened(filepath) as file:
        return _loaded(file, custom_objects or {}, compiled=compile)


def from_onnx(
    source: Any,
    *,
    lengths: Mapping[str, int] | None = None,
    name: str | None = None,
) -> Model:
    """Make a model of an ONNX file, to predict with or to train further.

    Nodes that have weights become layers, whose names are those of the weights, and
    others become ops. What a transpose or a reshape names anew is not copied.

    Parameters
    ----------
    source : str, path-like, bytes or onnx.ModelProto
        The file, its content, or a model that `onnx` has loaded.
    lengths : mapping of str to int, optional
        The length of each axis of any length but the batch, by its name in the file.
    name : str, optional
        The model's name; by default that of the graph.

    Returns
    -------
    Model
        The model, which is not compiled. Inputs have the shapes of the file, such as
        ``(None, 3, 224, 224)``; the first axis of inputs and outputs is the batch, of
        any size.

    Raises
    ------
    MissingDependencyError
        If onnx is not installed.
    FormatError
        If the file is damaged, or a node's inputs do not fit.
    NotImplementedError
        If there is no layer or op for a node or for its attributes; the message names
        the node.
    ValueError, TypeError
        If an axis of any length has no length, or an argument is invalid.
    ResourceExhaustedError
        If the weights do not fit the device's limit.
    OSError
        If a file cannot be read.

    Notes
    -----
    Arrays of floats in the file are weights that are trained, such as those of
    convolutions and what is added or multiplied. Single numbers, integers, arrays that
    are not finite, and those of Constant nodes are not. QuantizeLinear followed by
    DequantizeLinear rounds, and passes gradients on as they are.

    Examples
    --------
    >>> import memcfg as mc
    >>> model = mc.nn.models.from_onnx("resnet18.onnx")  # doctest: +SKIP
    >>> model.compile("adam", "sparse_categorical_crossentropy")  # doctest: +SKIP
    """
    from memcfg.nn.exchange.imports import imported  # at its first use

    return imported(source, lengths, name)


def model_from_json(
    json_string: str, custom_objects: Mapping[str, Any] | None = None
) -> Model:
    """Build a model, with new weights, from the text that `Model.to_json` returned.

    Parameters
    ----------
    json_string : str
        The text, of memcfg or of Keras.
    custom_objects : mapping of str to type or callable, optional
        Your own classes and functions by name.

    Returns
    -------
    Model
        The model, which is not compiled.

    Raises
    ------
    FormatError
        If the text describes no model, or names what is not known.
    TypeError, ValueError
        If a constructor or a layer rejects an argument.
    """
    document = read_json(json_string, "model")
    with _reading("the text"), CustomObjectScope(custom_objects):
        model = deserialize_keras_object(document)
        if not isinstance(model, Model):
            raise FormatError("the text describes no model")
        if model.built:
            trace_layers(model._built_network())
    return model


def clone_model(
    model: Model,
    input_tensors: Any = None,
    clone_function: Callable[[Any], Any] | None = None,
    call_function: Callable[..., Any] | None = None,
    recursive: bool = False,
) -> Model:
    """Build a model of the same architecture, with layers and weights of its own.

    Parameters
    ----------
    model : Model
        A `Sequential`, a model between symbolic tensors, or a model of your own class
        with a ``get_config``.
    input_tensors : SymbolicTensor or sequence of SymbolicTensor, optional
        Tensors to start from instead of new inputs.
    clone_function : callable, optional
        A function of a layer that returns the layer to take for it. None: a new layer
        with the same settings.
    call_function : callable, optional
        A function ``call(layer, *args, **kwargs)`` that calls a new layer. None:
        ``layer(*args, **kwargs)``.
    recursive : bool, default False
        Whether `clone_function` is called for the layers of inner models instead of
        for the inner models.

    Returns
    -------
    Model
        The model, which is not compiled.

    Raises
    ------
    TypeError
        If a layer cannot be described by its ``get_config``.
    ValueError
        If the class is your own and has a `call`, and other arguments are given.
    RuntimeError
        If the model's shapes are not known.

    See Also
    --------
    copy.deepcopy : Copy a model with its weights.
    """
    copied = clone_function or remade

    def copy_of(layer: Any) -> Any:
        inner = getattr(layer, "model", None) if isinstance(layer, Nested) else None
        if inner is None:
            return copied(layer)
        if recursive:
            return clone_model(inner, None, clone_function, call_function, True)
        return copied(inner)

    kind = type(model)
    given = any(
        each is not None for each in (input_tensors, clone_function, call_function)
    )
    if model._calls_itself and given:
        raise ValueError(
            f"{kind.__name__} is a class of your own with a `call`, of which only the "
            "constructor makes another model: clone_model takes no other arguments"
        )
    made: Model
    if kind not in (Model, Sequential) and not given:
        made = remade(model)
        return made
    kind = _class_of_clone(model)
    if isinstance(model, Sequential) and not model.built:
        made = kind([copy_of(layer) for layer in model._stacked()], model.name)
        return made
    starts = None if input_tensors is None else symbolic(input_tensors, "inputs")[0]
    call = call_function or (lambda layer, *args, **options: layer(*args, **options))
    network = model._built_network()
    inputs, outputs, losses, layers = again(network, copy_of, starts, call)
    if isinstance(model, Sequential) and starts is None and call_function is None:
        chain = [layers[each] for each in model._stacked()]
        if isinstance(inputs, SymbolicTensor):
            made = kind([inputs, *chain], model.name)
        else:
            made = kind(chain, model.name)
            made._build([each.open_shape for each in network.inputs], network.takes)
        return made
    made = _class_of_clone(model, chained=False)(inputs, outputs, name=model.name)
    for loss in losses:
        made.add_loss(loss)
    return made


def _class_of_clone(model: Model, *, chained: bool = True) -> Any:
    """Return a class that takes layers, or tensors, and is the model's if it can."""
    base = Sequential if isinstance(model, Sequential) else Model  # as in Keras
    kind: Any = type(model) if type(model).__init__ is base.__init__ else base
    return kind if chained or not issubclass(kind, Sequential) else Model


def model_from_description(
    text: str, where: str, custom_objects: Mapping[str, Any]
) -> Model:
    """Build a model, not compiled, from what `describe` returned; errors name `where`.

    Raises as `load_model`.
    """
    with _reading(where):
        model = _Reader(custom_objects, where).read(read_json(text, "model"))
        trace_layers(model._built_network())
    return model


@contextmanager
def stored_model(filepath: str | os.PathLike[str]) -> Iterator[Model]:
    """Build the model of a `.memcfg` file, not compiled, for the time of a block.

    Each weight is read straight into the model's memory when a step first needs it, and
    goes with it. Raises as `load_model`, and so does the first step.
    """
    with _opened(filepath) as file:
        with _reading(file.where):
            model, _, unread = _described(file, {}, compiled=False)
            with model._lock.turn():
                skipped = {each.key for each in unread}
                values = file.later(entries(model), skipped)
                model._built_session().read_later(values)
        try:
            yield model
        finally:
            model._built_session().close()


def _opened(path: str | os.PathLike[str]) -> WeightFile:
    """Open a model's file; FormatError if it is none."""
    where = os.fspath(path)
    try:
        return WeightFile(path)
    except FormatError as error:
        readers = {
            ".onnx": "; from_onnx reads ONNX",
            ".mcz": "; memcfg.compression.load reads compressed models",
        }
        more = readers.get(os.path.splitext(where)[1], "")
        problem = f"is damaged or holds no model: {error}{more}"
        raise FormatError(f"{where} {problem}") from None


def _loaded(file: WeightFile, custom: Mapping[str, Any], *, compiled: bool) -> Model:
    """Build the model of an open file and load its weights."""
    with _reading(file.where):
        model, steps, unread = _described(file, custom, compiled=compiled)
        skipped = {each.key for each in unread}
        with model._lock.turn():
            wanted = entries(model)
            try:
                found = file.read(
                    wanted, lambda name: None if name in skipped else name
                )
            except FormatError as error:
                raise FormatError(f"{file.where} is damaged: {error}") from None
            set_values(model, zip(wanted, found, strict=True), steps)
    return model


def _described(
    file: WeightFile, custom: Mapping[str, Any], *, compiled: bool
) -> tuple[Model, int | None, list[Entry]]:
    """Build the model of an open file, without values.

    Returns it with the number of steps, and what the file has of an optimizer's state
    that the model does not.
    """
    notes, where = file.metadata, file.where
    if notes.get("format") != FORMAT or not isinstance(notes.get("model"), str):
        raise FormatError(f"{where} holds weights but no model: use load_weights")
    document = read_json(notes["model"], "model")
    reader = _Reader(custom, where)
    model = reader.read(document)
    settings = document["compile"]
    if compiled and settings is not None:
        reader.compile(model, settings)
    steps, unread = _state_of(settings)
    trace_layers(model._built_network())
    return (model, steps, []) if compiled else (model, None, unread)


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Raise FormatError for descriptions that are malformed or too large."""
    with allowed_ops(MAX_OPS) as allowance:
        try:
            yield
        except Exception as error:
            if allowance.is_exceeded:
                raise _too_many(where) from None
            if isinstance(error, _REFUSALS) and not _of_reader(error):
                raise
            problem = f"the description of its model is malformed: {error!r}"
            raise FormatError(f"{where}: {problem}") from error


def _of_reader(error: Exception) -> bool:
    """Return whether the reader met a type that it does not expect.

    Other TypeErrors are those of constructors that reject an argument.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return isinstance(error, TypeError) and frame.f_code.co_filename == __file__


def _state_of(settings: Any) -> tuple[int | None, list[Entry]]:
    """Return the saved number of steps and the entries of the optimizer's state."""
    if settings is None:
        return None, []
    return read_count(settings["iterations"], "iterations"), [
        Entry("", STATE + read_text(key, "a key"), _SHAPE(shape, key), dtype)
        for key, shape, dtype in settings["state"]
    ]


def _known_classes() -> dict[str, type]:
    """Return the classes of memcfg.nn that a file may name, by name."""
    result: dict[str, type] = {}
    left: list[type] = [*SAVED, Model]
    while left:
        kind = left.pop()
        left += type.__subclasses__(kind)
        name = class_name(kind)
        if is_ours(kind) and kind is not Nested and not name.startswith("_"):
            result[name] = kind
    return result | {old: result[new] for old, new in _RENAMED.items()}


class _Reader:
    """Builds the objects that a file describes."""

    def __init__(self, custom: Mapping[str, Any], where: str) -> None:
        self._known: dict[str, Any] = {**_known_classes(), **custom}
        self._custom = dict(custom)
        self._where = where
        self._layers: list[Layer] = []  # in the order of the file
        self._marked: list[tuple[Layer | Model, Any]] = []  # objects with inner layers
        self._calls: dict[Layer, int] = {}  # layer calls inside each model

    def read(self, document: Any) -> Model:
        """Build the model of a document."""
        for each in document["layers"]:
            self._layers.append(self._layer(each))
        model = self._model(document["model"])
        for each, marks in self._marked:  # after all layers exist
            _mark(
                inner_layers(each) if isinstance(each, Layer) else each._stacked(),
                marks,
            )
        return model

    def compile(self, model: Model, document: Any) -> None:
        """Compile a model with the saved settings."""
        loss, weights, measured, weighted = map(self._value, document["goals"])
        training, inference = document["modes"]
        planned = "enabled" in (training, inference)
        optimizer = optimizers.deserialize(document["optimizer"], self._custom)
        if document["undecayed"]:
            optimizer.exclude_from_weight_decay(var_names=document["undecayed"])
        model.compile(
            optimizer,
            loss,
            loss_weights=weights,
            metrics=measured,
            weighted_metrics=weighted,
            memory=document["memory"] if planned else None,
            times=document.get("times", TIMES[0]),
            # older files have none of the two
            on_oom=[_step(each) for each in document.get("on_oom", ["micro_batch"])],
            batch_statistics=document.get("batch_statistics"),
            training_workspace_mode=training,
            inference_workspace_mode=inference,
        )
        model._freeze(document["frozen"])

    def _layer(self, given: Any) -> Layer:
        if "model" in given:
            layer: Any = self._model(given["model"])._as_layer()
            object.__setattr__(layer, "_seed", integer(given["seed"], "a seed", 0))
            return cast("Layer", layer)
        layer = self._object(given)
        if not isinstance(layer, Layer):
            raise FormatError(f"{self._where}: {given['class']!r} is not a layer")
        result: Layer = layer
        object.__setattr__(layer, "name", _name(given["name"]))
        object.__setattr__(layer, "_named", read_flag(given["named"], "named"))
        if given["call"] is not None and isinstance(layer, ATTENTION):
            object.__setattr__(layer, "_call", CallOptions(*map(bool, given["call"])))
        for name, each in given["penalties"].items():
            layer._take(name, self._value(each))
        object.__setattr__(layer, "_seed", integer(given["seed"], "a seed", 0))
        trainable = read_flag(given["trainable"], "trainable")
        object.__setattr__(layer, "_trainable", trainable)
        _set_policy(layer, given.get("dtype", _FLOAT32))
        if "inner" in given:
            self._marked.append((layer, given["inner"]))
        return result

    def _model(self, given: Any) -> Model:
        kind = given["class"]
        if kind == "Sequential":
            places = [read_count(i, "a layer") for i in given["layers"]]
            start, *stack = (self._layers[i] for i in places)
            name = _name(given["name"])
            if "takes" in given:  # several inputs
                takes = _structure(given["takes"])
                count = len(takes.names) - 1
                starts, stack = [start, *stack[:count]], stack[count:]
                model: Model = Sequential(stack, name=name)
                model._build([_started(each).open_shape for each in starts], takes)
            else:
                model = Sequential([_started(start), *stack], name=name)
        elif kind == "Model":
            model = self._joined(given)
        else:
            model = self._own(given)
        kind = read_or_null(read_text)(given["kind"], "a kind")
        object.__setattr__(model, "_kind", kind)
        policy = given.get("dtype") and DTypePolicy(given["dtype"])
        object.__setattr__(model, "_policy", policy)
        if not given["trainable"]:
            object.__setattr__(model._as_layer(), "_trainable", False)
        if "inner" in given:
            self._marked.append((model, given["inner"]))
        nodes = model._built_network().nodes
        calls = sum(self._calls.get(node.layer, 1) for node in nodes)
        if calls > MAX_OPS:  # tracing them one by one would take too long
            raise _too_many(self._where)
        self._calls[model._as_layer()] = calls
        return model

    def _joined(self, given: Any) -> Model:
        """Build a functional model: call its layers on symbolic tensors."""
        tensors: list[SymbolicTensor] = []
        operations = given.get("operations", ())  # older files have none
        for i, (index, operands, details) in enumerate(given["calls"]):
            layer = self._layers[read_count(index, "a layer")]
            inputs = [tensors[read_count(j, "an operand")] for j in operands]
            call = operation(_called) if i in operations else _called
            tensors += call(layer, inputs, self._value(details)).outputs
        starts, ends = (
            [tensors[read_count(i, key)] for i in given[key]]
            for key in ("inputs", "outputs")
        )
        takes, gives = (_structure(given[key]) for key in ("takes", "gives"))
        name = _name(given["name"])
        model = Model(takes.pack(starts), gives.pack(ends), name=name)
        for place in given.get("losses", ()):  # older files have none
            model.add_loss(tensors[read_count(place, "a loss")])
        return model

    def _own(self, given: Any) -> Model:
        """Build a model of a user's class, with the saved input shapes."""
        model = self._object(given)
        if not isinstance(model, Model):
            raise FormatError(f"{self._where}: {given['class']!r} is not a model")
        object.__setattr__(model, "name", _name(given["name"]))
        if not model.built:
            takes = _structure(given["takes"])
            model._build([sample_shape(each) for each in given["shapes"]], takes)
        return model

    def _object(self, given: Any) -> Any:
        """Construct an object from its class name and arguments."""
        name = given["class"]
        kind = self._known.get(name)
        if kind is None and "." in name:
            raise FormatError(
                f"{self._where}: this version of memcfg has no class {name!r}"
            )
        saved = FixedAttributes, *SAVED
        if not isinstance(kind, type) or not issubclass(kind, saved):
            raise FormatError(
                f"{self._where}: the class {name!r} is unknown: pass "
                f"custom_objects={{{name!r}: {name}}}"
            )
        make: Any = getattr(kind, "from_config", None)
        config = {key: self._value(each) for key, each in given["config"].items()}
        return kind(**config) if make is None else make(config)

    def _value(self, given: Any) -> Any:
        if isinstance(given, list):
            return [self._value(each) for each in given]
        if not isinstance(given, dict):
            return given
        if "dict" in given:
            return {key: self._value(each) for key, each in given["dict"].items()}
        if "float" in given:
            return _NOT_FINITE[str(given["float"])]
        if "slice" in given:
            return slice(*(_bound(each) for each in given["slice"]))
        if "ellipsis" in given:
            return Ellipsis
        if "place" in given:
            return Place(read_count(given["place"], "a place"))
        if "layer" in given:
            return self._layers[read_count(given["layer"], "a layer")]
        if "function" in given:
            return self._function(given["function"])
        return self._object(given)

    def _function(self, name: Any) -> Any:
        result = self._custom.get(name)
        if not callable(result):
            raise FormatError(
                f"{self._where}: the function {name!r} is unknown: pass "
                f"custom_objects={{{name!r}: {name}}}"
            )
        return result


def _bound(given: Any) -> int | None:
    """Return a bound of a slice."""
    return None if given is None else integer(given, "a bound of a slice", None)


def _too_many(where: str) -> FormatError:
    return FormatError(f"{where}: its model has more than {MAX_OPS:,} ops")


def _step(given: Any) -> Any:
    """Return a step of ``on_oom`` by its name."""
    make = planning.NAMED_POLICIES.get(read_text(given, "a step of on_oom"))
    return given if make is None else make()


def _name(given: Any) -> str:
    return check_name(read_text(given, "a name"))


def _set_policy(layer: Layer, given: Any) -> None:
    """Set a layer's dtype policy and whether the user chose it."""
    name, explicit = given
    object.__setattr__(layer, "_policy", DTypePolicy(name))
    object.__setattr__(layer, "_policy_said", bool(explicit))


def _mark(layers: Sequence[Layer], marks: Any) -> None:
    """Set the seeds, flags and policies of layers that a constructor made."""
    for layer, (seed, trainable, inner, *policy) in zip(layers, marks, strict=True):
        object.__setattr__(layer, "_seed", integer(seed, "a seed", 0))
        object.__setattr__(layer, "_trainable", bool(trainable))
        _set_policy(layer, policy[0] if policy else _FLOAT32)
        _mark(inner_layers(layer) if inner else (), inner)


def _structure(given: Any) -> Structure:
    kind, names, *nested = given  # the form of nested containers
    form = form_of(nested[0]) if nested else None
    return Structure(None if kind is None else _CONTAINERS[kind], tuple(names), form)


def _called(layer: Layer, inputs: list[SymbolicTensor], details: Any) -> Node:
    """Call a layer as in the saved model and return the node of the call."""
    if isinstance(layer, InputLayer):
        return _started(layer).node
    args, options = filled_in(details or ((), {}), inputs)
    if args or options.keys() - {"training"}:
        made = layer(*args, **options)
    else:
        join: Any = (
            Layer.__call__ if isinstance(layer, ATTENTION) else type(layer).__call__
        )
        made = join(layer, inputs[0] if layer.arity == 1 else inputs, **options)
    while isinstance(made, list | tuple | dict):
        made = next(iter(made.values() if isinstance(made, dict) else made))
    node: Node = made.node
    return node


def _started(layer: Any) -> SymbolicTensor:
    """Return a new symbolic tensor of an input layer."""
    object.__setattr__(layer, "shape", sample_shape(layer.shape))
    return Node(layer, (), [(layer.shape, layer.dtype)]).outputs[0]
