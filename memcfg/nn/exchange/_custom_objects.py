"""Users' classes and functions by the names that configurations have for them."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self

__all__ = [
    "CustomObjectScope",
    "custom_object_scope",
    "get_custom_objects",
    "get_registered_name",
    "get_registered_object",
    "own_class",
    "register_keras_serializable",
]

T = TypeVar("T")

_registered: dict[str, Any] = {}  # of the process
_names: dict[Any, str] = {}  # of registered objects
_scoped: ContextVar[Mapping[str, Any] | None] = ContextVar("scoped", default=None)


class CustomObjectScope:
    """A ``with`` block in which configurations may name your classes and functions.

    Also named `custom_object_scope`.

    Parameters
    ----------
    custom_objects : mapping of str to type or callable
        The objects by name.

    Examples
    --------
    >>> import memcfg as mc
    >>> class Doubled(mc.nn.Layer):
    ...     def call(self, x):
    ...         return x + x
    >>> config = mc.nn.layers.serialize(Doubled(name="twice"))
    >>> with mc.nn.utils.CustomObjectScope({"Doubled": Doubled}):
    ...     mc.nn.layers.deserialize(config)
    <Doubled name='twice'>
    """

    def __init__(self, custom_objects: Mapping[str, Any] | None) -> None:
        self._objects = dict(custom_objects or {})
        self._tokens: list[Any] = []

    def __enter__(self) -> Self:
        self._tokens.append(_scoped.set({**(_scoped.get() or {}), **self._objects}))
        return self

    def __exit__(self, *_: object) -> None:
        _scoped.reset(self._tokens.pop())


custom_object_scope = CustomObjectScope


def get_custom_objects() -> dict[str, Any]:
    """Return the registered objects, a dictionary that may be changed.

    Returns
    -------
    dict
        Classes and functions by name, for the whole process.
    """
    return _registered


def register_keras_serializable(
    package: str = "Custom", name: str | None = None
) -> Callable[[T], T]:
    """Return a decorator that registers a class or function for configurations.

    Parameters
    ----------
    package : str, default "Custom"
        The first part of the registered name, ``"package>name"``.
    name : str, optional
        The second part. None: the name of the class or function.

    Returns
    -------
    callable
        The decorator. It raises ValueError for a class without ``get_config``.
    """

    def register(made: T) -> T:
        own: Any = made
        if isinstance(made, type) and not hasattr(made, "get_config"):
            raise ValueError(
                f"{own.__name__} cannot be registered: it has no get_config that "
                "returns the arguments of its constructor"
            )
        known = f"{package}>{name or own.__name__}"
        _registered[known] = made
        _names[made] = known
        return made

    return register


def get_registered_name(obj: Any) -> str:
    """Return the registered name of a class or function, or its own name.

    Parameters
    ----------
    obj : type or callable
        The class or function.

    Returns
    -------
    str
        The name under which a configuration has it.
    """
    name = _names.get(obj)
    return str(obj.__name__) if name is None else name


def get_registered_object(
    name: str,
    custom_objects: Mapping[str, Any] | None = None,
    module_objects: Mapping[str, Any] | None = None,
) -> Any:
    """Return the class or function of a name, or None.

    Parameters
    ----------
    name : str
        The name, such as ``"package>name"``.
    custom_objects, module_objects : mapping of str to object, optional
        More objects, which are looked at after those of a scope and before registered
        ones, and last.

    Returns
    -------
    object or None
        The class or function.
    """
    for known in (_scoped.get(), custom_objects, _registered, module_objects):
        if known and name in known:
            return known[name]
    return None


def own_class(
    config: Mapping[str, Any], custom_objects: Mapping[str, Any] | None = None
) -> Any:
    """Return the user's class that a configuration names, or None."""
    names = config.get("registered_name"), config.get("class_name")
    found = (get_registered_object(str(each), custom_objects) for each in names)
    return next((each for each in found if each is not None), None)
