"""Names of arrays that outlive their cycle, for messages.

The search follows the variables of running functions through a few levels of
containers, then examines every object that the garbage collector tracks. It keeps no
reference and runs no user code. A million objects take about half a second, spent only
when an escape is reported.
"""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from inspect import CO_OPTIMIZED
from itertools import islice
from pathlib import Path
from types import CoroutineType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np

from memcfg._core import blocks_of, placement_of
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from memcfg._core import Placement, Scope

_DEPTH = 4  # containers between a variable and an array
_NAMED = 8  # arrays named in one message
_WIDE = 10_000  # entries searched per container
_CHUNK = 1000  # objects whose referents are fetched in one call
# Types whose contents the search does not follow.
_CLOSED: tuple[Any, ...] = (ModuleType, FunctionType, type, FrameType)


def describe_escapes(scope: Scope, name: str, count: int, *, ring: bool) -> str:
    """Describe the arrays that outlive the ending cycle and the remedy."""
    search = _Search(scope, count, ring=ring)
    search.look_into_frames()
    search.look_at_everything()
    outlive = "1 array outlives" if count == 1 else f"{count} arrays outlive"
    advice = (
        "Call memcfg.detach(x) inside the with block for what is needed later, and "
        "`del` the rest there."
    )
    if not tracemalloc.is_tracing():
        advice += " After tracemalloc.start(10) this message has the lines they are of."
    return (
        f"{outlive} cycle {search.generation} of workspace {name!r}: "
        f"{search.words()}. {advice}"
    )


class _Search:
    """Search for escaped arrays; `_found` maps their addresses to descriptions."""

    def __init__(self, scope: Scope, count: int, *, ring: bool) -> None:
        self.generation = scope.counters()["generation"]
        self._scope = scope
        self._count = count
        self._ring = ring
        self._found: dict[int, str] = {}
        self._seen: set[int] = set()

    @property
    def done(self) -> bool:
        """Whether every escaped array has been found."""
        return len(self._found) >= self._count

    def words(self) -> str:
        """Describe the first `_NAMED` arrays and count the rest."""
        named = list(islice(self._found.values(), _NAMED))
        rest = self._count - len(named)
        if rest > 0 and len(named) == _NAMED:
            named.append(f"and {rest} more")
        elif rest > 0:
            named.append(
                f"{'and ' if named else ''}{rest} that no variable names, such as a "
                f"result on its way out of the block{self._sizes(rest)}"
            )
        return "; ".join(named)

    def _sizes(self, rest: int) -> str:
        """Return the sizes of the unnamed arrays, or "" if they cannot be separated."""
        blocks = blocks_of(self._scope.memory)
        sizes = [nbytes for at, nbytes, *_ in blocks if at not in self._found]
        if len(sizes) != rest:
            return ""
        lines = [
            f"{format_bytes(size)}{_line_of_size(size)}" for size in sizes[:_NAMED]
        ]
        return f" ({', '.join(lines)})"

    def look_into_frames(self) -> None:
        """Search the variables of all running functions in all threads."""
        for top in sys._current_frames().values():
            frame: FrameType | None = top
            while frame is not None and not self.done:
                if frame.f_globals is not globals():
                    self._look_into(frame)
                frame = frame.f_back

    def look_at_everything(self) -> None:
        """Search every object that the garbage collector tracks.

        Referents are tested per chunk first, since almost no chunk refers to an array
        of this workspace; only the holders of a matching chunk are examined one by one.
        """
        if self.done:
            return
        everything = gc.get_objects()
        for start in range(0, len(everything), _CHUNK):
            chunk = everything[start : start + _CHUNK]
            if not self._any_in(gc.get_referents(*chunk)):
                continue
            for holder in chunk:
                if self._any_in(gc.get_referents(holder)):
                    self._tell_of(holder)

    def _tell_of(self, holder: object) -> None:
        frame = _frame_of(holder)
        if frame is not None and frame.f_globals is not globals():
            self._look_into(frame)
        self._seen.discard(id(holder))
        self._look(holder, "", _owner(holder), 2)
        # also those without an attribute or key
        for referent in gc.get_referents(holder):
            self._look(referent, "it", _owner(holder), 0)

    def _look_into(self, frame: FrameType) -> None:
        owner = f"{frame.f_code.co_qualname}()"
        if frame.f_code.co_name == "<module>":
            owner = f"module {frame.f_globals.get('__name__')}"
        for name, value in _variables(frame):
            self._look(value, name, owner, _DEPTH)

    def _look(self, value: object, path: str, owner: str, depth: int) -> None:
        """Record an array, or the arrays in a container."""
        if _is_array(value):
            self._note(value, path, owner)
        elif depth > 0 and not _is(value, *_CLOSED) and id(value) not in self._seen:
            self._seen.add(id(value))
            for name, item in islice(_items(value), _WIDE):
                self._look(item, path + name, owner, depth - 1)

    def _note(self, array: np.ndarray[Any, Any], path: str, owner: str) -> None:
        placement = self._placement(array)
        if placement is not None and placement.address not in self._found:
            self._found[placement.address] = (
                f"{path} in {owner} ({array.dtype} {array.shape}, "
                f"{format_bytes(placement.nbytes)}{_line_of(array)})"
            )

    def _any_in(self, referents: Iterable[object]) -> bool:
        """Return whether any referent is an escaped array not yet recorded."""
        for value in referents:
            if _is_array(value):
                placement = self._placement(value)
                if placement is not None and placement.address not in self._found:
                    return True
            elif _is_hidden(value) and self._any_in(gc.get_referents(value)):
                return True
        return False

    def _placement(self, array: np.ndarray[Any, Any]) -> Placement | None:
        """Return the placement of an array that outlives this cycle or its ring page.

        None if the array does not.
        """
        result = placement_of(array)
        if result is None or result.scope is not self._scope:
            return None
        if self._ring:
            return result if result.kind == "retired" else None
        mine = result.generation == self.generation and result.kind != "outside"
        return result if mine else None


def _is_hidden(value: object) -> bool:
    """Return whether the collector does not track a container."""
    return type(value) in (dict, tuple) and not gc.is_tracked(value)


def _variables(frame: FrameType) -> Iterator[tuple[str, object]]:
    """Yield the variables of a running function without keeping them alive.

    Before Python 3.13 a frame caches the dictionary that `f_locals` returns, and so
    keeps arrays that the function has deleted. No one else refers to that dictionary
    unless the function called `locals`.
    """
    shown = frame.f_locals
    yield from list(shown.items())
    optimized = frame.f_code.co_flags & CO_OPTIMIZED
    if optimized and type(shown) is dict and sys.getrefcount(shown) <= 3:
        shown.clear()


def _items(value: object) -> Iterator[tuple[str, object]]:
    """Yield the items of a container or instance with their path suffixes."""
    if _is(value, dict):
        for key, item in list(dict.items(value)):
            yield (f"[{key!r}]" if type(key) in (str, int) else "[…]"), item
    for kind in (list, tuple):
        if _is(value, kind):
            for number, item in enumerate(kind.__iter__(value)):
                yield f"[{number}]", item
    if _is(value, memoryview):
        yield "", _shown_by(value)
    yield from _attributes(value)


def _attributes(value: object) -> Iterator[tuple[str, object]]:
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if type(held) is dict:
        for name, item in list(held.items()):
            yield f".{name}", item


def _shown_by(view: memoryview) -> object:
    try:
        return view.obj
    except ValueError:  # released
        return None


def _frame_of(holder: object) -> FrameType | None:
    """Return the frame of a suspended function, or the holder if it is a frame."""
    if isinstance(holder, GeneratorType):
        return holder.gi_frame
    if isinstance(holder, CoroutineType):
        return holder.cr_frame
    return holder if isinstance(holder, FrameType) else None


def _owner(holder: object) -> str:
    if type(holder) is dict and isinstance(holder.get("__name__"), str):
        return f"module {holder['__name__']}"
    name = type(holder).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _is_array(value: object) -> TypeGuard[np.ndarray[Any, Any]]:
    return _is(value, np.ndarray)


def _is(value: object, *kinds: type) -> TypeGuard[Any]:
    """Return whether a value's type is one of `kinds`.

    `isinstance` would read the value's ``__class__``, which may run user code.
    """
    return issubclass(type(value), kinds)


# Folders whose code creates arrays on behalf of its callers.
_LIBRARIES = tuple(
    str(folder) + os.sep
    for folder in (Path(__file__).parents[1], Path(np.__file__).parent)
)


def _line_of(array: np.ndarray[Any, Any]) -> str:
    """Return the line that created an array, or "" if tracemalloc has no record."""
    root: object = array
    while _is_array(root):
        array, root = root, root.base
    traceback = tracemalloc.get_object_traceback(array)
    return "" if traceback is None else _made_at(traceback)


def _line_of_size(nbytes: int) -> str:
    """Return the line that allocated `nbytes`, or "" unless it is unique."""
    if not tracemalloc.is_tracing():
        return ""
    lines = {
        _made_at(trace.traceback)
        for trace in tracemalloc.take_snapshot().traces
        if trace.domain == np.lib.tracemalloc_domain and trace.size == nbytes
    }
    return lines.pop() if len(lines) == 1 else ""


def _made_at(traceback: tracemalloc.Traceback) -> str:
    own = [frame for frame in traceback if not frame.filename.startswith(_LIBRARIES)]
    frame = (own or list(traceback))[-1]
    return f", made at {frame.filename}:{frame.lineno}"
