"""The right of a thread to compute on a replica."""

from __future__ import annotations

__all__ = ["Lease"]


class Lease:
    """The right of a thread to compute on a replica, while this object is alive."""

    __slots__ = ("__weakref__",)
