"""Structures of inputs and outputs: one array, or nested lists, tuples and dicts."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

__all__ = [
    "Structure",
    "are_arrays",
    "described",
    "form_of",
    "holds_numbers",
    "is_array",
    "is_part",
    "key_order",
    "leaves",
    "taken_apart",
    "unique",
]

_CONTAINERS = {kind.__name__: kind for kind in (list, tuple, dict)}


@dataclass(frozen=True, slots=True)
class Structure:
    """The container of named parts: list, tuple or dict, or None for a single part.

    If containers hold others, `form` is them with the numbers of the parts.
    """

    kind: type | None
    names: tuple[str, ...]
    form: Any = None

    @classmethod
    def of(cls, form: Any, names: Sequence[str]) -> Structure:
        """Return the structure of a form; `names` are of parts that have no key.

        The path to a part names it, in which its own name stands for a last index.
        """
        if not isinstance(form, list | tuple | dict):
            return cls(None, (names[0],))
        of_parts = [""] * len(names)
        for path, place in _paths(form, ()):
            *above, last = path
            own = names[place] if isinstance(last, int) else str(last)
            of_parts[place] = "/".join([*map(str, above), own])
        nested = any(isinstance(each, list | tuple | dict) for each in _held(form))
        shown = tuple(unique(of_parts))
        return cls(type(form), shown, form if nested else None)

    def pack(self, parts: Sequence[Any]) -> Any:
        """Return parts in a container of this kind."""
        if self.form is not None:
            return _filled(self.form, parts)
        if self.kind is None:
            return parts[0]
        if self.kind is dict:
            return dict(zip(self.names, parts, strict=True))
        return self.kind(parts)

    def unpack(
        self, given: Any, what: str, of: str, places: Sequence[int] | None = None
    ) -> list[Any]:
        """Return the parts of a caller's container, by position or by name.

        With `places`, only these are taken, and the others may be absent.
        """
        if places is not None and len(places) < len(self.names):
            return self._some(given, what, of, places)
        if self.form is not None:
            return self._nested(given, what, range(len(self.names)))
        if isinstance(given, dict):
            return self._by_name(given, what, of)
        if len(self.names) == 1:
            if not isinstance(given, list | tuple) or not are_arrays(given):
                return [given]
            if len(given) == 1:
                return list(given)
        if not isinstance(given, list | tuple):
            raise TypeError(
                f"the model has {self._counted(of)}: {what} must be a list of as many "
                f"arrays or a dict by name, got {type(given).__name__}"
            )
        if len(given) != len(self.names):
            raise ValueError(
                f"the model has {self._counted(of)}, but {what} has {len(given)} "
                f"array{'s' * (len(given) != 1)}"
            )
        return list(given)

    def _some(self, given: Any, what: str, of: str, places: Sequence[int]) -> list[Any]:
        """Return some parts of a container that may have all, or these alone."""
        names = tuple(self.names[place] for place in places)
        if self.form is not None and isinstance(given, dict | list | tuple):
            return self._nested(given, what, places)
        if isinstance(given, dict):
            without = {*self.names} - {*names}
            given = {
                name: each
                for name, each in given.items()
                if each is not None and name not in without
            }
        elif isinstance(given, list | tuple) and len(given) == len(self.names):
            given = [given[place] for place in places]
        return Structure(self.kind, names).unpack(given, what, of)

    def _nested(self, given: Any, what: str, places: Sequence[int]) -> list[Any]:
        """Return parts of nested containers, which may also be listed flat."""
        found: dict[int, Any] = {}
        try:
            _match(self.form, given, (), {*places}, found)
        except LookupError as error:
            if isinstance(given, list | tuple) and are_arrays(given):
                if len(given) == len(places):
                    return list(given)
                if len(given) == len(self.names):
                    return [given[place] for place in places]
            if isinstance(given, dict) and {*given} <= {*self.names}:
                with suppress(KeyError):
                    return [given[self.names[place]] for place in places]
            shown = _filled(self.form, [f"'{name}'" for name in self.names])
            raise ValueError(
                f"{what} must be nested as the model's, {_unquoted(shown)}: {error}"
            ) from None
        return [found[place] for place in places]

    def entries(self, given: Any, what: str) -> list[Any]:
        """Return what lists and dicts say for each part, None if they say nothing.

        `given` is nested as the parts are, by name, or a flat list.
        """
        result: list[Any] = [None] * len(self.names)
        if isinstance(given, dict) and given and {*given} <= {*self.names}:
            return [given.get(name) for name in self.names]
        try:
            _spread(self.form, given, (), result)
        except LookupError as error:
            flat = isinstance(given, list | tuple) and len(given) == len(self.names)
            if flat and not any(isinstance(x, list | tuple | dict) for x in given):
                return list(given)
            shown = _filled(self.form, [f"'{name}'" for name in self.names])
            raise ValueError(
                f"{what} must be nested as the model's outputs, {_unquoted(shown)}: "
                f"{error}"
            ) from None
        return result

    def described(self) -> list[Any]:
        """Return the structure as JSON holds it; `form_of` reads its last part."""
        kind = None if self.kind is None else self.kind.__name__
        more = [] if self.form is None else [described(self.form)]
        return [kind, list(self.names), *more]

    def _counted(self, of: str) -> str:
        """Return the number of parts and their names as text."""
        noun = of.replace("puts", "put", 1) if len(self.names) == 1 else of
        return f"{len(self.names)} {noun}, {_shown(self.names)}"

    def _by_name(self, given: dict[Any, Any], what: str, of: str) -> list[Any]:
        missing = [name for name in self.names if name not in given]
        extra = [name for name in given if name not in self.names]
        if missing or extra:
            raise ValueError(
                f"the model has the {of} {_shown(self.names)}, but {what} has "
                f"{_shown(tuple(map(str, given)))}"
            )
        return [given[name] for name in self.names]


def key_order(given: Mapping[Any, Any]) -> list[Any]:
    """Return the keys of a dict in Keras's order: sorted, if they can be."""
    try:
        return sorted(given)
    except TypeError:
        return list(given)


def taken_apart(
    given: Any, is_one: Callable[[Any], bool], parts: list[Any] | None = None
) -> tuple[list[Any], Any]:
    """Return the parts of nested containers, and their form.

    The parts of dicts are in the order of sorted keys.
    """
    parts = [] if parts is None else parts
    if isinstance(given, list | tuple) and not is_one(given):
        form = [taken_apart(each, is_one, parts)[1] for each in given]
        return parts, form if isinstance(given, list) else tuple(form)
    if isinstance(given, dict):
        ordered = key_order(given)
        return parts, {k: taken_apart(given[k], is_one, parts)[1] for k in ordered}
    parts.append(given)
    return parts, len(parts) - 1


def leaves(given: Any) -> list[Any]:
    """Return what nested lists, tuples and dicts hold."""
    return taken_apart(given, lambda _: False)[0]


def is_part(given: Any) -> bool:
    """Return whether a list or tuple is one array of numbers, not several parts."""
    return holds_numbers(given) or not any(map(is_array, leaves(given)))


def described(form: Any) -> Any:
    """Return a form as JSON holds it."""
    if isinstance(form, dict):
        return {"dict": [[key, described(each)] for key, each in form.items()]}
    if isinstance(form, list | tuple):
        return {type(form).__name__: list(map(described, form))}
    return form


def form_of(given: Any) -> Any:
    """Return a form that JSON holds; ValueError for anything else."""
    if isinstance(given, int):
        return given
    if isinstance(given, dict) and len(given) == 1:
        ((kind, held),) = given.items()
        if kind == "dict":
            return {key: form_of(each) for key, each in held}
        if kind in _CONTAINERS:
            return _CONTAINERS[kind](map(form_of, held))
    raise ValueError(f"{given!r} is no structure of inputs or outputs")


def _held(form: Any) -> Collection[Any]:
    return form.values() if isinstance(form, dict) else form


def _items(form: Any) -> Iterator[tuple[Any, Any]]:
    return iter(form.items()) if isinstance(form, dict) else enumerate(form)


def _paths(form: Any, path: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Yield the path to each part."""
    if not isinstance(form, list | tuple | dict):
        yield path, form
        return
    for key, each in _items(form):
        yield from _paths(each, (*path, key))


def _filled(form: Any, parts: Sequence[Any]) -> Any:
    """Return a form with parts in the place of their numbers."""
    if isinstance(form, dict):
        return {key: _filled(each, parts) for key, each in form.items()}
    if isinstance(form, list | tuple):
        return type(form)([_filled(each, parts) for each in form])
    return parts[form]


def _match(
    form: Any,
    given: Any,
    path: tuple[Any, ...],
    wanted: set[int],
    found: dict[int, Any],
) -> None:
    """Note the wanted parts of a caller's containers; LookupError if they differ."""
    if not isinstance(form, list | tuple | dict):
        found[form] = given
        return
    if not any(place in wanted for _, place in _paths(form, ())):
        return
    if isinstance(form, dict) != isinstance(given, dict) or not isinstance(
        given, list | tuple | dict
    ):
        raise LookupError(f"{_at(path)} is a {type(given).__name__}")
    known = {place for _, place in _paths(form, ())} <= wanted
    if isinstance(form, dict):
        missing = [
            key
            for key, each in form.items()
            if key not in given and any(p in wanted for _, p in _paths(each, ()))
        ]
        extra = [key for key in given if key not in form]
        if missing or extra:
            raise LookupError(
                f"{_at(path)} has {', '.join(map(repr, given)) or 'nothing'}"
            )
    elif len(given) != len(form) and (known or len(given) < len(form)):
        raise LookupError(f"{_at(path)} has {len(given)} parts, not {len(form)}")
    for key, each in _items(form):
        if not isinstance(form, dict) or key in given:
            _match(each, given[key], (*path, key), wanted, found)


def _spread(form: Any, given: Any, path: tuple[Any, ...], result: list[Any]) -> None:
    """Write what a caller says of parts to a list; LookupError if it is otherwise."""
    if not isinstance(form, list | tuple | dict):
        result[form] = given
        return
    if given is None:
        return
    if not (path or isinstance(given, list | tuple | dict)):
        for _, place in _paths(form, ()):
            result[place] = given
        return
    _check_spread(form, given, path)
    for key, each in _items(form):
        if not isinstance(form, dict) or key in given:
            _spread(each, given[key], (*path, key), result)


def _check_spread(form: Any, given: Any, path: tuple[Any, ...]) -> None:
    """Raise LookupError if what a caller says is not of the parts of a container."""
    if not isinstance(given, list | tuple | dict):
        raise LookupError(f"{_at(path)} is one for {len(form)} outputs")
    if isinstance(form, dict) != isinstance(given, dict):
        raise LookupError(f"{_at(path)} is a {type(given).__name__}")
    if isinstance(form, dict):
        extra = [key for key in given if key not in form]
        if extra:
            raise LookupError(f"{_at(path)} has {extra[0]!r}")
    elif len(given) != len(form):
        raise LookupError(f"{_at(path)} has {len(given)} parts, not {len(form)}")


def _at(path: tuple[Any, ...]) -> str:
    """Return the place in nested containers as text."""
    return "[" + "][".join(map(repr, path)) + "]" if path else "the whole"


def _unquoted(shown: Any) -> str:
    return str(shown).replace('"', "")


def unique(names: Sequence[str]) -> list[str]:
    """Return names with a number appended to repeated ones."""
    taken: dict[str, int] = {}
    result = []
    for name in names:
        number = taken.get(name, 0)
        taken[name] = number + 1
        result.append(f"{name}_{number}" if number else name)
    return result


def is_array(given: Any) -> bool:
    """Return whether an object is, describes or converts to an array, not a scalar."""
    gives = hasattr(given, "__array__") or hasattr(given, "__dlpack__")
    if isinstance(given, type) or not (gives or hasattr(given, "shape")):
        return False
    return not gives or getattr(given, "shape", None) != ()


def are_arrays(given: Any) -> bool:
    """Return whether an object is a list or tuple of arrays."""
    return isinstance(given, list | tuple) and all(map(is_array, given))


def holds_numbers(given: Any) -> bool:
    """Return whether an object is a nested list of numbers, by its first elements."""
    while isinstance(given, list | tuple) and given:
        first = given[0]
        if not isinstance(first, list | tuple):
            return all(map(_is_number, given))
        if isinstance(given, tuple):
            return False  # several arrays, such as (x, y)
        given = first
    return False


def _is_number(given: Any) -> bool:
    return isinstance(given, Real) or getattr(given, "shape", None) == ()


def _shown(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
