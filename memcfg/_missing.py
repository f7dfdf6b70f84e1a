"""Errors for names that memcfg does not have, but another library or nearly so.

Using such a name raises an AttributeError that says what to do instead, so ``hasattr``
returns False. ``from module import name`` would replace that error by one without a
reason, so it raises an ImportError with the same sentence.
"""

from __future__ import annotations

import opcode
import sys
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from types import FrameType
    from typing import NoReturn

__all__ = ["MissingModules", "by_name", "instead", "nearest", "refuse"]

_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]


def by_name(rows: Mapping[str, str]) -> dict[str, str]:
    """Return a table with one name per key, from one whose keys hold several names.

    A name may be a shell pattern, such as ``*3D``.
    """
    return {name: why for names, why in rows.items() for name in names.split()}


def instead(table: Mapping[str, str], name: str) -> str | None:
    """Return the table's advice for a name, or for a pattern that matches it.

    A pattern in lower case matches only lower-case names, so that a misspelt class is
    not taken for a function.
    """
    if name in table:
        return table[name]
    for each, why in table.items():
        if fnmatchcase(name, each) and (name.islower() or not each.islower()):
            return why
    return None


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name that was probably meant, or None.

    It is written in other letters' case, has all words of the given one, is similar, or
    begins with it.
    """
    given = name.lower()
    by_lower = {each.lower(): each for each in reversed(list(known))}
    words = given.split("_")
    near = [given] if given in by_lower else []
    if len(words) > 1:
        longer = [each for each in by_lower if {*words} <= {*each.split("_")}]
        near += sorted(longer, key=len)
    near += get_close_matches(given, by_lower, 1, cutoff)
    near += [each for each in reversed(by_lower) if given and each.startswith(given)]
    return by_lower[near[0]] if near else None


def _imports(frame: FrameType) -> bool:
    """Return whether a frame is executing ``from module import name``."""
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def refuse(module: str, name: str, why: str = "") -> NoReturn:
    """Raise the error of a module's ``__getattr__`` for an unknown name.

    `why` follows the name, as in ``": use Dense"``; without it the nearest name of the
    module's ``__all__`` is proposed.
    """
    if not why and (near := nearest(name, sys.modules[module].__all__)):
        why = f": did you mean {near!r}?"
    if _imports(sys._getframe(2)):
        raise ImportError(
            f"cannot import name {name!r} from {module!r}{why}", name=name
        )
    raise AttributeError(f"module {module!r} has no attribute {name!r}{why}", name=name)


class MissingModules:
    """A finder that explains why modules are missing, by a ModuleNotFoundError.

    Parameters
    ----------
    reasons : mapping of str to str
        What to do instead, by full name of the module.
    """

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = reasons

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        """Raise an error if the module has a reason."""
        if name in self.reasons:
            raise ModuleNotFoundError(
                f"No module named {name!r}: {self.reasons[name]}", name=name
            )
