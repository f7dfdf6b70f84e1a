"""Objects as configurations: what `get_config` returns, and what files hold.

A configuration is a dictionary of a class's name, of the module in which Keras has it,
and of the arguments of its constructor. Reading one calls constructors of memcfg and
functions that the caller has named, and nothing else: no module is imported, and no
code of a file is executed.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import numpy as np

from memcfg._missing import instead
from memcfg.config import DTypePolicy
from memcfg.errors import FormatError
from memcfg.nn._attributes import constructor_arguments
from memcfg.nn._keras_names import ABSENT
from memcfg.nn.exchange._custom_objects import (
    CustomObjectScope,
    get_registered_name,
    get_registered_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

__all__ = [
    "BEYOND_KERAS",
    "Configured",
    "OperationClass",
    "deserialize_keras_object",
    "functions_of",
    "own_arguments",
    "remade",
    "revived",
    "room_of",
    "serialize_keras_object",
    "sharing_objects",
]

ROOMS = (
    *("layers", "losses", "metrics", "optimizers.schedules", "optimizers"),
    *("initializers", "regularizers", "constraints", "distillation", "quantizers"),
)
# Classes of these rooms that Keras does not have.
BEYOND_KERAS = frozenset(
    {"Bilinear", "LocalResponseNormalization", "MaxUnpooling2D", "PositionEmbedding"}
)
# Classes of layers that Keras has beside networks that use them.
_BESIDE = {
    "CustomScaleLayer": "keras.src.applications.inception_resnet_v2",
    "LayerScale": "keras.src.applications.convnext",
}
# Arguments that Keras does not have, left out where they are the default.
_BEYOND = frozenset({"return_indices", "of"})
_NAMES = ("serialize", "deserialize", "get")
_VALUES = (bool, int, float, str, bytes, slice, type(...), np.ndarray, np.generic)
_ARGUMENTS = {  # rooms of arguments that older files have without a module
    "initializer": "initializers",
    "regularizer": "regularizers",
    "constraint": "constraints",
    "rate": "optimizers.schedules",
    "layer": "layers",
    "layers": "layers",
    "cell": "layers",
    "cells": "layers",
}

_shared: ContextVar[dict[Any, Any] | None] = ContextVar("shared", default=None)
_functions: ContextVar[dict[str, Any] | None] = ContextVar("functions", default=None)


class Configured:
    """What the objects have that a configuration describes."""

    __slots__ = ()

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the constructor, as Keras writes them.

        Returns
        -------
        dict
            The arguments by name; objects among them as configurations. A subclass
            whose arguments are not attributes of the same name overrides this.
        """
        return own_arguments(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """Create an object from the result of `get_config`.

        Parameters
        ----------
        config : mapping of str to object
            The arguments of the constructor; configurations among them are read.

        Returns
        -------
        object
            The object.
        """
        return cls(**{name: revived(name, each) for name, each in config.items()})


class _Described(Configured):
    """What may be an argument of a model in a file, beside layers and losses."""

    __slots__ = ()


class OperationClass:
    """The class of an operation in a file of Keras, which a model calls."""

    def __init__(self, name: str, config: Mapping[str, Any]) -> None:
        self.name = name
        self.config = {key: each for key, each in config.items() if key != "name"}


def own_arguments(value: Any) -> dict[str, Any]:
    """Return the arguments of a constructor from attributes, as Keras writes them."""
    kind, result = type(value), {}
    given = inspect.signature(kind.__init__).parameters
    for name, each in constructor_arguments(value).items():
        if is_ours(kind) and name in _BEYOND and each == given[name].default:
            continue
        result[name] = plain(each)
        if name in ("cropping", "padding") and isinstance(each, tuple):
            result[name] = each[0] if len(each) == 1 else each  # of one axis
        if each is None and is_ours(kind) and name.endswith("activation"):
            result[name] = "linear"
    return result


def plain(value: Any) -> Any:
    """Return an argument with its objects as configurations."""
    if isinstance(value, np.ndarray):
        return value if value.ndim else value.item()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)([plain(each) for each in value])
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    described = isinstance(value, Configured | DTypePolicy) or inspect.isfunction(value)
    return serialize_keras_object(value) if described else value


def revived(name: str, value: Any) -> Any:
    """Return an argument with its configurations as objects."""
    room = _ARGUMENTS.get(name.rpartition("_")[2])
    if isinstance(value, list) and any(isinstance(each, dict) for each in value):
        return [revived(name, each) for each in value]
    if isinstance(value, dict) and _is_config(value):
        return deserialize_keras_object(value, room=room)
    return value


def _is_config(value: Mapping[str, Any]) -> bool:
    return "class_name" in value and "config" in value


def is_ours(kind: type) -> bool:
    """Return whether a class is defined in memcfg.nn."""
    return kind.__module__.startswith("memcfg.nn.")


def room_of(kind: type) -> str:
    """Return the public module of a class of memcfg.nn, such as ``"layers"``."""
    parts = kind.__module__.removeprefix("memcfg.nn.").split(".")
    if parts[0] == "optimizers" and parts[-1] == "schedules":
        return "optimizers.schedules"
    return parts[0] if not parts[0].startswith("_") else ""


def _module_of(kind: type) -> str:
    """Return the module of a class: Keras's, ours, or the user's."""
    if not is_ours(kind):
        return kind.__module__
    room, name = room_of(kind), kind.__name__
    if name in _BESIDE:
        return _BESIDE[name]
    public = getattr(sys.modules.get(f"memcfg.nn.{room}".rstrip(".")), "__all__", ())
    known = name in public or name in ("InputLayer", "Nested")
    side = "keras" if known and name not in BEYOND_KERAS else "memcfg.nn"
    return f"{side}.{room}".rstrip(".")


def serialize_keras_object(obj: Any) -> Any:
    """Return an object as a configuration of strings, numbers, lists and dictionaries.

    Parameters
    ----------
    obj : object
        An object of memcfg.nn or of a class with ``get_config``, a named function, a
        number, a string, an array, or a list, tuple or dict of them.

    Returns
    -------
    object
        The configuration, which `deserialize_keras_object` reads.

    Raises
    ------
    TypeError
        If the object, or one within it, cannot be described, such as a lambda.
    """
    if isinstance(obj, list | tuple):
        return type(obj)([serialize_keras_object(each) for each in obj])
    if isinstance(obj, dict):
        return {key: serialize_keras_object(each) for key, each in obj.items()}
    if obj is None or isinstance(obj, _VALUES):
        return _value(obj)
    if isinstance(obj, DTypePolicy):
        return _described("keras", "DTypePolicy", obj.get_config(), None)
    if inspect.isfunction(obj):
        return _function(obj)
    if isinstance(obj, type) or not hasattr(obj, "get_config"):
        raise TypeError(
            f"{obj!r} cannot be described: it has no get_config that returns the "
            "arguments of its constructor"
        )
    return _object(obj)


def _value(obj: Any) -> Any:
    """Return a number, string, array, slice or ellipsis as a configuration."""
    if isinstance(obj, np.ndarray | np.generic):
        if obj.ndim == 0:
            return obj.item()
        return _special("numpy", value=obj.tolist(), dtype=obj.dtype.name)
    if isinstance(obj, bytes):
        return _special("bytes", value=obj.decode())
    if isinstance(obj, slice):
        return _special("slice", start=obj.start, stop=obj.stop, step=obj.step)
    return _special("ellipsis") if obj is ... else obj


def _special(name: str, **config: Any) -> dict[str, Any]:
    return {"class_name": f"__{name}__", "config": config}


def _described(
    module: str | None, name: str, config: Any, registered: str | None
) -> dict[str, Any]:
    return {
        "module": module,
        "class_name": name,
        "config": config,
        "registered_name": registered,
    }


def _function(function: Any) -> Any:
    kept = _functions.get()
    if kept is not None:
        key = f"function {len(kept)}"
        kept[key] = function
        return _described(None, "function", key, None)
    name = getattr(function, "activation", function.__name__)
    if name == "<lambda>":
        raise TypeError(
            f"{function!r} cannot be described: a lambda has no name to find it by. "
            "Write it with def"
        )
    if function.__module__.startswith("memcfg.nn."):
        return _described("builtins", "function", name, "function")
    name = get_registered_name(function)
    return _described(function.__module__, "function", name, name)


def _object(obj: Any) -> dict[str, Any]:
    model = getattr(obj, "model", None) if is_ours(type(obj)) else None
    value = obj if model is None or isinstance(obj, type) else model  # a nested model
    kind = type(value)
    config = serialize_keras_object(dict(value.get_config()))
    if is_ours(kind):
        name = "Functional" if kind.__name__ == "Model" else kind.__name__
        module = "keras.src.models.functional" if name == "Functional" else None
        return _described(
            module or _module_of(kind),
            name,
            config,
            "Functional" if module else None,
        )
    name = get_registered_name(kind)
    return _described(_module_of(kind), kind.__name__, config, name)


def remade(obj: Any) -> Any:
    """Return a new object from the configuration of another, with its functions."""
    token = _functions.set({})
    try:
        return type(obj).from_config(obj.get_config())
    finally:
        _functions.reset(token)


@contextmanager
def sharing_objects() -> Iterator[None]:
    """Give objects that a file marks as shared one identity within the block."""
    token = _shared.set({} if _shared.get() is None else _shared.get())
    try:
        yield
    finally:
        _shared.reset(token)


def deserialize_keras_object(
    config: Any,
    custom_objects: Mapping[str, Any] | None = None,
    safe_mode: bool = True,
    *,
    room: str | None = None,
) -> Any:
    """Create an object from the configuration that `serialize_keras_object` returned.

    Parameters
    ----------
    config : object
        The configuration.
    custom_objects : mapping of str to type or callable, optional
        Your own classes and functions by name.
    safe_mode : bool, default True
        As in Keras; no code in a configuration is executed with either value.
    room : str, optional
        The module of classes whose configuration has none, such as ``"layers"``.

    Returns
    -------
    object
        The object.

    Raises
    ------
    FormatError
        If the configuration names a class or function that is not known, has code of
        Python, or is none.
    TypeError, ValueError
        If a constructor rejects an argument.
    """
    del safe_mode
    if custom_objects:
        with CustomObjectScope(custom_objects):
            return deserialize_keras_object(config, room=room)
    if isinstance(config, list | tuple):
        return [deserialize_keras_object(each, room=room) for each in config]
    if not isinstance(config, dict):
        return config
    if not _is_config(config):
        return {
            key: deserialize_keras_object(each, room=room)
            for key, each in config.items()
        }
    name, inner = config["class_name"], config["config"]
    if not isinstance(name, str):
        raise FormatError(f"a class name must be a string, got {name!r}")
    if name.startswith("__"):
        return _special_value(name, inner)
    if name == "function":
        return _known_function(inner)
    return _known_object(config, name, {} if inner is None else inner, room)


def _special_value(name: str, config: Any) -> Any:
    if name == "__lambda__":
        raise FormatError(
            "the configuration has the code of a lambda, which is never executed: "
            "write the function with def, and pass it in custom_objects"
        )
    try:
        if name in ("__numpy__", "__tensor__"):
            return np.array(config["value"], config["dtype"])
        if name == "__bytes__":
            return config["value"].encode()
        if name == "__slice__":
            return slice(*(config[key] for key in ("start", "stop", "step")))
    except Exception as error:
        raise FormatError(
            f"the configuration of {name} is malformed: {error}"
        ) from None
    if name == "__ellipsis__":
        return ...
    raise FormatError(f"memcfg cannot read {name} in a configuration")


def _known_function(name: Any) -> Any:
    if not isinstance(name, str):
        raise FormatError(f"a function's name must be a string, got {name!r}")
    result = (_functions.get() or {}).get(name) or get_registered_object(name)
    if result is None:
        activations = sys.modules.get("memcfg.nn.activations")
        if name in getattr(activations, "__all__", ()):
            result = getattr(activations, name)
    if result is None or not callable(result):
        raise FormatError(
            f"the function {name!r} is unknown: pass custom_objects={{{name!r}: "
            f"{name}}}"
        )
    return result


_known: dict[tuple[str, str], type] = {}  # filled at the first need


def _classes() -> dict[tuple[str, str], type]:
    """Return the classes of memcfg.nn by room and name."""
    if _known:
        return _known
    result: dict[tuple[str, str], type] = {}
    left = type.__subclasses__(Configured)
    while left:
        kind = left.pop()
        left += type.__subclasses__(kind)
        if is_ours(kind):
            result[room_of(kind), kind.__name__] = kind
    result["", "Functional"] = result["", "Model"]
    _known.update(result)
    return _known


def _room_in(module: str) -> str:
    """Return the room of a module of Keras's, public or not."""
    parts = module.split(".")
    if "applications" in parts:  # whose networks have layers of their own
        return "layers"
    if "optimizers" in parts:
        return "optimizers" + ".schedules" * ("schedules" in parts)
    return next((each for each in ROOMS if each in parts), "")


def _known_object(
    config: Mapping[str, Any], name: str, inner: Any, room: str | None
) -> Any:
    if not isinstance(inner, dict):
        raise FormatError(f"the arguments of {name!r} must be a dictionary")
    shared, key = _shared.get(), config.get("shared_object_id")
    if shared is not None and key is not None and key in shared:
        return shared[key]
    made = _made(config, name, inner, room)
    if shared is not None and key is not None:
        shared[key] = made
    return made


def _made(config: Mapping[str, Any], name: str, inner: Any, room: str | None) -> Any:
    module = config.get("module")
    kind = get_registered_object(str(config.get("registered_name") or name))
    kind = kind or get_registered_object(name)
    if kind is None and isinstance(module, str):
        if module.startswith("keras.src.ops"):
            return OperationClass(name, inner)
        if name == "DTypePolicy":
            return DTypePolicy.from_config(inner)
        if module.split(".")[0] in ("keras", "memcfg"):
            room = _room_in(module)
    classes = _classes()
    rooms = ("", *ROOMS) if room is None else (room, "")
    found = (classes.get((each, name)) for each in rooms)
    kind = kind or next((each for each in found if each is not None), None)
    if kind is None:
        raise FormatError(_unknown(name, module, room))
    make = getattr(kind, "from_config", None)
    if make is None:
        raise FormatError(f"the class {name!r} has no from_config")
    return make(inner)


def _unknown(name: str, module: Any, room: str | None) -> str:
    if isinstance(module, str) and module.split(".")[0] == "keras":
        why = instead(ABSENT.get(room or "", {}), name)
        return f"memcfg has no {module}.{name}" + (f": {why}" if why else "")
    return f"the class {name!r} is unknown: pass custom_objects={{{name!r}: {name}}}"


def functions_of(
    room: str,
    base: type,
    named: Callable[[Any], Any],
    config: str = "config",
    argument: str = "",
) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Return the functions `serialize`, `deserialize` and `get` of a module.

    `config` is Keras's name of the first argument of its `deserialize`, and `argument`
    that of its `serialize`; by default the name of the base class in lower case.
    """

    def written(obj: Any) -> Any:
        return serialize_keras_object(obj)

    def read(config: Any, custom_objects: Mapping[str, Any] | None = None) -> Any:
        made = deserialize_keras_object(config, custom_objects, room=room)
        if isinstance(made, str):
            return named(made)
        if not (isinstance(made, base) or inspect.isfunction(made)):
            raise FormatError(
                f"the configuration describes no {base.__name__}: {made!r}"
            )
        return made

    def get(identifier: Any) -> Any:
        if identifier is None:
            return None
        if isinstance(identifier, dict):
            return read(identifier)
        own = isinstance(identifier, str) and get_registered_object(identifier)
        return named(own or identifier)

    what = base.__name__
    argument = argument or what.lower()
    serialize = _renamed(written, {"obj": argument})
    deserialize = _renamed(read, {"config": config})
    serialize.__doc__ = f"""Return a {what} as a configuration.

    Parameters
    ----------
    {argument} : {what}
        The object, or a named function.

    Returns
    -------
    dict
        The configuration, which `deserialize` reads.

    Raises
    ------
    TypeError
        If the object cannot be described.
    """
    deserialize.__doc__ = f"""Create a {what} from a configuration.

    Parameters
    ----------
    {config} : dict or str
        What `serialize` returned, or a name.
    custom_objects : mapping of str to type or callable, optional
        Your own classes and functions by name.

    Returns
    -------
    {what}
        The object.

    Raises
    ------
    FormatError
        If the configuration names what is not known, or is none.
    """
    get.__doc__ = f"""Return a {what} from its name, its configuration or itself.

    Parameters
    ----------
    identifier : str, dict, callable, {what} or None
        A name, what `serialize` returned, or the object, which is returned.

    Returns
    -------
    {what} or None
        The object; None for None.

    Raises
    ------
    TypeError, ValueError
        If the identifier is unknown.
    """
    for name, function in zip(_NAMES, (serialize, deserialize, get), strict=True):
        function.__module__ = f"memcfg.nn.{room}"
        function.__name__ = function.__qualname__ = name
    return serialize, deserialize, get


def _renamed(
    function: Callable[..., Any], names: Mapping[str, str]
) -> Callable[..., Any]:
    """Return a function with other names of its parameters."""
    signature = inspect.signature(function)
    known = [
        each.replace(name=names.get(each.name, each.name))
        for each in signature.parameters.values()
    ]
    signature = signature.replace(parameters=known)

    def call(*args: Any, **options: Any) -> Any:
        return function(*signature.bind(*args, **options).arguments.values())

    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
