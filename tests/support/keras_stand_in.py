"""`memcfg.nn` under the names of Keras's modules, for Keras's own tests.

`install` adds a finder that answers every import of ``keras``. A test module of the
installed Keras is loaded from its file, and any other module of Keras's gives the names
of the room of `memcfg.nn` that its path names, such as ``keras.src.layers.core.dense``
those of `memcfg.nn.layers`. A name that memcfg does not have is an `Absent`, which
raises `AbsentError` where a test uses it. So are the other frameworks, which some tests
need and memcfg does not.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from internals import start_of

import memcfg as mc

FOREIGN = ("grain", "jax", "tensorflow", "torch", "torch_xla", "flax", "orbax")
ROOMS = {
    *("activations", "callbacks", "constraints", "initializers", "layers", "losses"),
    *("metrics", "models", "ops", "optimizers", "random", "regularizers", "saving"),
    "utils",
}
# Modules that tests take what they expect from: functions of shapes alone.
_REAL = ("keras.src.testing.test_utils", "keras.src.backend.common.backend_utils")
_RUNNING = [False]  # whether a test runs


class AbsentError(Exception):
    """A test uses a name that memcfg does not have."""


class running:  # noqa: N801  (a context)
    """The ``with`` block of a test, in which absent names raise."""

    def __enter__(self):
        """Begin."""
        _RUNNING[0] = True

    def __exit__(self, *_):
        """End."""
        _RUNNING[0] = False


class _NeverMade:
    """The base of classes that a test module derives from absent ones."""

    absent = "a class"

    def __new__(cls, *_args, **_options):
        raise AbsentError(cls.absent)


class Absent:
    """A name that is not there; modules may mention it, tests may not use it."""

    def __init__(self, name):
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self._used(f"{self.__name__}.{name}")

    def __call__(self, *args, **options):
        return self._used(self.__name__)

    def __mro_entries__(self, bases):
        return (type("Absent", (_NeverMade,), {"absent": self.__name__}),)

    def __instancecheck__(self, instance):
        return False

    def __subclasscheck__(self, subclass):
        return False

    def __iter__(self):
        return iter([self._used(self.__name__)])

    def _used(self, name):
        if _RUNNING[0]:
            raise AbsentError(self.__name__)
        return Absent(name)

    __enter__ = __exit__ = __array__ = __len__ = __bool__ = __call__


# What tests of Keras's take from its backends.


def as_dtype(value):
    """Return the name of a dtype, given as a name, a type or an array's dtype."""
    if value is None:
        return "float32"
    value = {int: "int32", float: "float32", bool: "bool", str: "string"}.get(
        value, value
    )
    if value in ("bfloat16", "string"):
        return value
    try:
        return np.dtype(value).name
    except TypeError:
        raise ValueError(f"Invalid dtype: {value}") from None


def as_array(x):
    """Return an array of what a test computes with."""
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def as_tensor(x, dtype=None, sparse=None, ragged=None):
    """Return an array in the dtypes that memcfg computes with."""
    if sparse or ragged:
        raise AbsentError("sparse and ragged tensors")
    return mc.nn.ops.convert_to_tensor(x, dtype)


def _variable_type():
    layer = mc.nn.Layer()
    layer.add_weight()
    return type(layer.weights[0])


class _Made(type):
    """Of classes that only make and recognise objects of memcfg's own classes."""

    def __instancecheck__(cls, instance):
        return isinstance(instance, cls.kind)


class KerasTensor(metaclass=_Made):
    """Makes the symbolic tensors of `memcfg.nn.Input`."""

    kind = mc.nn.SymbolicTensor

    def __new__(cls, shape, dtype="float32", sparse=False, ragged=False, **_options):
        if sparse or ragged:
            raise AbsentError("sparse and ragged tensors")
        dtype = {"float64": "float32", "int64": "int32"}.get(as_dtype(dtype), dtype)
        if as_dtype(dtype) not in ("float32", "int32"):
            raise AbsentError(f"symbolic tensors in {as_dtype(dtype)}")
        if None not in shape:
            return start_of(tuple(shape), as_dtype(dtype))
        return mc.nn.Input(batch_shape=tuple(shape), dtype=as_dtype(dtype))


class _Holder(mc.nn.Layer):
    """A layer of one weight."""


class Variable(metaclass=_Made):
    """Makes a weight of a layer of its own."""

    kind = _variable_type()

    def __new__(
        cls,
        initializer,
        shape=None,
        dtype=None,
        trainable=True,
        name="variable",
        **options,
    ):
        if options.pop("aggregation", "none") not in (None, "none") or options:
            raise AbsentError(f"arguments of Variable: {', '.join(options)}")
        if dtype is not None and as_dtype(dtype) != "float32":
            raise AbsentError(f"weights in {as_dtype(dtype)}")
        layer = _Holder()
        value = None
        if not callable(initializer) and not isinstance(initializer, str):
            value = as_array(initializer)
            shape, initializer = value.shape, "zeros"
        layer.add_weight(shape, initializer, trainable=trainable, name=name)
        if value is not None:
            layer.set_weights([value])
        return layer.weights[0]


def _image_data_format():
    return "channels_last"


def _set_image_data_format(value):
    if value != "channels_last":
        raise AbsentError("another default of data_format")


def _spec(function, *args, **options):
    return function(*args, **options)


def _result_type(*dtypes):
    """Return the dtype of a result of operands of memcfg's dtypes."""
    order = ("bool", "uint8", "int32", "float16", "float32")
    kinds = {"int64": "int32", "float64": "float32"}
    names = [as_dtype(each) for each in dtypes]
    return max((kinds.get(each, each) for each in names), key=order.index)


BACKEND = {
    "ALLOWED_DTYPES": ("bool", "int32", "float32"),
    "BOOL_TYPES": ("bool",),
    "INT_TYPES": ("uint8", "int32"),
    "FLOAT_TYPES": ("float16", "float32"),
    "FLOAT8_TYPES": (),
    "COMPLEX_TYPES": (),
    "result_type": _result_type,
    "backend": lambda: "memcfg",
    "floatx": lambda: "float32",
    "epsilon": lambda: 1e-7,
    "image_data_format": _image_data_format,
    "set_image_data_format": _set_image_data_format,
    "standardize_dtype": as_dtype,
    "is_float_dtype": lambda dtype: "float" in as_dtype(dtype),
    "is_int_dtype": lambda dtype: "int" in as_dtype(dtype),
    "convert_to_numpy": as_array,
    "convert_to_tensor": as_tensor,
    "is_tensor": lambda x: isinstance(x, np.ndarray | mc.nn.SymbolicTensor),
    "is_keras_tensor": lambda x: isinstance(x, mc.nn.SymbolicTensor),
    "shape": lambda x: tuple(x.shape),
    "cast": lambda x, dtype: np.asarray(x).astype(dtype),
    "compute_output_spec": _spec,
    "KerasTensor": KerasTensor,
    "Variable": Variable,
    "numpy": mc.nn.ops,
    "nn": mc.nn.ops,
    "math": mc.nn.ops,
    "random": mc.nn.random,
    "SUPPORTS_SPARSE_TENSORS": False,
    "SUPPORTS_RAGGED_TENSORS": False,
    "SUPPORTS_COMPLEX_DTYPES": False,
    "IS_THREAD_SAFE": True,
    "is_nnx_enabled": lambda: False,
    "is_flash_attention_enabled": lambda: False,
    "enable_flash_attention": lambda: None,
    "disable_flash_attention": lambda: None,  # how scores are computed is planned
    "clear_session": lambda free_memory=True: None,
}


def leaves_of(tree):
    """Return the leaves of a structure; dicts are in the order of their keys."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves_of(tree[key])]
    if isinstance(tree, list | tuple):
        return [leaf for each in tree for leaf in leaves_of(each)]
    return [tree]


def map_structure(function, tree, *more):
    """Return a structure of what a function returns for leaves."""
    if isinstance(tree, dict):
        return {
            k: map_structure(function, v, *(m[k] for m in more))
            for k, v in tree.items()
        }
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(
            *(map_structure(function, *z) for z in zip(tree, *more, strict=True))
        )
    if isinstance(tree, list | tuple):
        return type(tree)(
            map_structure(function, *each) for each in zip(tree, *more, strict=True)
        )
    return function(tree, *more)


def is_shape(x):
    """Return whether x is a tuple or list of lengths."""
    return isinstance(x, list | tuple) and all(
        each is None or isinstance(each, int) for each in x
    )


def map_shapes(function, tree):
    """Return a structure of what a function returns for its shapes."""
    if is_shape(tree):
        return function(tuple(tree))
    if isinstance(tree, dict):
        return {key: map_shapes(function, each) for key, each in tree.items()}
    return type(tree)(map_shapes(function, each) for each in tree)


TREE = {
    "flatten": leaves_of,
    "map_structure": map_structure,
    "map_shape_structure": map_shapes,
    "is_nested": lambda x: isinstance(x, dict | list | tuple),
}


def _skip_if_backend(name, reason):
    return pytest.mark.skipif(name == "memcfg", reason=reason)


class _Operation:
    """An op as Keras's class of it: made with its settings, called with tensors."""

    def __init__(self, function, *args, **options):
        self._function, self._args, self._options = function, args, options

    def __call__(self, *tensors, **options):
        names = [*inspect.signature(self._function).parameters][len(tensors) :]
        settings = dict(zip(names, self._args, strict=False)) | self._options
        return self._function(*tensors, **settings, **options)

    call = symbolic_call = compute_output_spec = __call__


_FUNCTIONS = {
    name.replace("_", ""): getattr(mc.nn.ops, name) for name in mc.nn.ops.__all__
}


def _own_names(parts):
    """Return the names of a module of Keras's that stand for no name of memcfg's."""
    first, last = parts[0] if parts else "", parts[-1] if parts else ""
    if first == "tree":
        return TREE
    if first == "testing":
        from keras_cases import NAMES

        return NAMES
    return BACKEND if first in ("backend", "config") and last != "numpy" else {}


# Names of Keras's sources whose public names are others.
_EXPORTED = {"Functional": "Model", "GroupedQueryAttention": "GroupQueryAttention"}


def _find(parts, name):
    """Return what a name of a module of Keras's is in memcfg."""
    places = [mc.nn]
    if parts and parts[0] in ROOMS:
        places.insert(0, getattr(mc.nn, parts[0]))
    if parts[:1] == ["applications"] and len(parts) > 1:
        places.insert(0, getattr(mc.nn.applications, parts[1]))
    if "schedules" in parts:
        places.insert(0, mc.nn.optimizers.schedules)
    if parts[-1:] == ["numpy"]:
        places.insert(0, mc.nn.ops)
    name = _EXPORTED.get(name, name)
    if parts[:1] == ["ops"] and name[0].isupper() and name.lower() in _FUNCTIONS:
        return functools.partial(_Operation, _FUNCTIONS[name.lower()])
    rooms = (getattr(mc.nn, room) for room in sorted(ROOMS))
    places += [room for room in rooms if name in room.__all__ and name[0].isupper()]
    for place in places:
        if hasattr(place, name):
            return getattr(place, name)
    if not parts and name in BACKEND:
        return BACKEND[name]
    return Absent(".".join([*parts, name]))


# Names that a module need not have: Python and pytest ask for them.
_OF_PYTEST = ("__", "pytest", "setup_", "setUp", "teardown", "tearDown")


class _Loader:
    """Makes a module of Keras's, or of a framework, without running its file."""

    def __init__(self, origin):
        self.origin = origin

    def _has(self, name):
        inner = self.origin.parent / name
        return self.origin.name == "__init__.py" and (
            inner.with_suffix(".py").exists() or (inner / "__init__.py").exists()
        )

    def create_module(self, spec):
        return types.ModuleType(spec.name)

    def exec_module(self, module):
        """Give the module its names."""
        name = module.__name__
        if self.origin is not None:
            module.__file__ = str(self.origin)
        first, *parts = name.split(".")
        if parts[:1] in (["src"], ["api"]):
            parts = parts[1:]
        own = _own_names(parts) if first == "keras" else {}

        def get(each):
            if each.startswith(_OF_PYTEST):
                raise AttributeError(each)
            if first == "conftest":
                return _skip_if_backend
            if first != "keras":
                return Absent(f"{name}.{each}")
            if each in own:
                return own[each]
            if self._has(each):
                return importlib.import_module(f"{name}.{each}")
            return _find(parts, each)

        module.__getattr__ = get


class Finder:
    """Finds the modules of the Keras that is installed in a folder."""

    def __init__(self, folder):
        self.folder = Path(folder)  # that has the folder keras

    def find_spec(self, name, path=None, target=None):
        del path, target
        first = name.partition(".")[0]
        if name == "conftest" or first in FOREIGN:
            spec = importlib.machinery.ModuleSpec(name, _Loader(None), is_package=True)
            spec.submodule_search_locations = []
            return spec
        if first != "keras":
            return None
        place = self.folder.joinpath(*name.split("."))
        source, package = place.with_suffix(".py"), place / "__init__.py"
        real = name.endswith("_test") or name in _REAL
        if real and source.exists():
            return importlib.util.spec_from_file_location(name, source)
        if package.exists():
            spec = importlib.machinery.ModuleSpec(
                name, _Loader(package), is_package=True, origin=str(package)
            )
            spec.submodule_search_locations = [str(place)]
            return spec
        if source.exists():
            return importlib.machinery.ModuleSpec(
                name, _Loader(source), origin=str(source)
            )
        return None


def install(folder):
    """Answer the imports of Keras's names from now on."""
    sys.meta_path.insert(0, Finder(folder))
