"""`Config`: settings of a program, read as attributes or as entries."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Config"]


class Config(MutableMapping[str, Any]):
    """A dictionary whose entries are attributes, and which can be frozen.

    Parameters
    ----------
    **kwargs : object
        The entries.

    Examples
    --------
    >>> import memcfg as mc
    >>> config = mc.nn.utils.Config(rate=0.1)
    >>> config.units = 3
    >>> config.freeze()
    >>> config["rate"], config.units, config.frozen
    (0.1, 3, True)
    """

    __slots__ = ("_entries", "_frozen")

    _entries: dict[str, Any]
    _frozen: bool

    def __init__(self, **kwargs: Any) -> None:
        object.__setattr__(self, "_entries", kwargs)
        object.__setattr__(self, "_frozen", False)

    @property
    def frozen(self) -> bool:
        """Whether entries cannot be changed."""
        return self._frozen

    def freeze(self) -> None:
        """Refuse changes from now on."""
        object.__setattr__(self, "_frozen", True)

    def unfreeze(self) -> None:
        """Allow changes again."""
        object.__setattr__(self, "_frozen", False)

    def as_dict(self) -> dict[str, Any]:
        """Return the entries.

        Returns
        -------
        dict
            A copy.
        """
        return dict(self._entries)

    def to_json(self) -> str:
        """Return the entries as JSON.

        Returns
        -------
        str
            The text.
        """
        return json.dumps(self._entries)

    def _changeable(self) -> dict[str, Any]:
        if self._frozen:
            raise ValueError("the config is frozen: call unfreeze to change it")
        return self._entries

    def __getitem__(self, key: str) -> Any:
        return self._entries[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self._changeable()[key] = value

    def __delitem__(self, key: str) -> None:
        del self._changeable()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise AttributeError(
                f"{name!r} is a method of Config: use config[{name!r}]"
            )
        self._changeable()[name] = value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if name in self._entries:
            return self._entries[name]
        near = get_close_matches(name, list(self._entries), 1)
        hint = f": did you mean {near[0]!r}?" if near else ""
        raise AttributeError(f"the config has no {name!r}{hint}", name=name, obj=self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (self._entries, self._frozen)

    def __repr__(self) -> str:
        return f"<Config {self._entries}>"


def _remade(entries: dict[str, Any], frozen: bool) -> Config:
    """Return a copy of a config."""
    made = Config(**entries)
    if frozen:
        made.freeze()
    return made
