"""The choices that a workspace offers, each an enumeration.

Owns their names, which are those of ND4J's WorkspaceConfiguration. A member is also its
lower-case word, so that ``"strict"`` may stand for `AllocationPolicy.STRICT`.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = [
    "AllocationPolicy",
    "DebugMode",
    "EscapePolicy",
    "LearningPolicy",
    "LocationPolicy",
    "MirroringPolicy",
    "ResetPolicy",
    "SpillPolicy",
]


class _Policy(StrEnum):
    """A word out of a list; capitals make no difference."""

    @classmethod
    def _missing_(cls, value: object) -> _Policy | None:
        if isinstance(value, str) and value.lower() in cls._value2member_map_:
            return cls(value.lower())
        return None


class AllocationPolicy(_Policy):
    """How large a page is made for what was learned."""

    STRICT = "strict"
    """As large as that."""
    OVERALLOCATE = "overallocate"
    """Larger by the share `overallocation`."""


class LearningPolicy(_Policy):
    """When a workspace without a page learns how large it has to be."""

    FIRST_LOOP = "first_loop"
    """At the end of the first cycle."""
    OVER_TIME = "over_time"
    """At the end of cycle `learning_cycles`; never by itself if that is 0."""
    NONE = "none"
    """Never: `initial_size` is what there is."""


class SpillPolicy(_Policy):
    """What becomes of a request that the page has no room for."""

    EXTERNAL = "external"
    """It gets a block of its own."""
    REALLOCATE = "reallocate"
    """It gets a block of its own, and the page grows at the end of the cycle."""
    FAIL = "fail"
    """It is refused."""


class ResetPolicy(_Policy):
    """When a page is used from its start again."""

    BLOCK_LEFT = "block_left"
    """In each cycle."""
    ENDOFBUFFER_REACHED = "endofbuffer_reached"
    """When it is used up: a ring. ``"end_of_buffer"`` is the same."""

    @classmethod
    def _missing_(cls, value: object) -> _Policy | None:
        if isinstance(value, str) and value.lower() == "end_of_buffer":
            return cls.ENDOFBUFFER_REACHED
        return super()._missing_(value)


class MirroringPolicy(_Policy):
    """Whether a device's memory is mirrored on the host; a CPU's is the host's."""

    FULL = "full"
    """There is a mirror."""
    HOST_ONLY = "host_only"
    """There is host memory only."""


class LocationPolicy(_Policy):
    """Where a page lies."""

    RAM = "ram"
    """In the memory of a pool."""
    MMAP = "mmap"
    """In a mapped file."""


class EscapePolicy(_Policy):
    """What becomes of arrays that outlive the cycle that they were made in."""

    RETIRE = "retire"
    """The page is theirs, and the next cycle gets another one."""
    WARN = "warn"
    """As RETIRE, and a warning names them."""
    ERROR = "error"
    """As RETIRE, and the end of the scope raises an error that names them."""
    INVALIDATE = "invalidate"
    """The page is used again, over them: ND4J's rule."""


class DebugMode(_Policy):
    """What all workspaces of the process do while a fault is being looked for."""

    DISABLED = "disabled"
    """What they are configured for."""
    SPILL_EVERYTHING = "spill_everything"
    """Every array gets a block of its own; nothing is learned."""
    BYPASS_EVERYTHING = "bypass_everything"
    """Arrays are made as if there were no workspaces."""
