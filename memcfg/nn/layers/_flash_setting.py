"""Whether layers of attention compute scores in blocks, unless they say it."""

from __future__ import annotations

__all__ = [
    "disable_flash_attention",
    "enable_flash_attention",
    "flash_or_default",
    "is_flash_attention_enabled",
]

_enabled: bool | None = None  # None: unless the scores are returned


def enable_flash_attention() -> None:
    """Have layers of attention compute scores in blocks, as at the start.

    It is for layers that are made from now on, without ``flash_attention``. They store
    the scores where a call returns them.
    """
    global _enabled
    _enabled = None


def disable_flash_attention() -> None:
    """Have layers of attention store all scores, as with ``flash_attention=False``.

    It is for layers that are made from now on, without ``flash_attention``.
    """
    global _enabled
    _enabled = False


def is_flash_attention_enabled() -> bool | None:
    """Return whether layers of attention compute scores in blocks.

    Returns
    -------
    bool or None
        False after `disable_flash_attention`, else None, as in Keras: unless a call
        returns the scores.
    """
    return _enabled


def flash_or_default(given: bool | None) -> bool | None:
    """Return a layer's ``flash_attention``, or the setting for None."""
    return _enabled if given is None else bool(given)
