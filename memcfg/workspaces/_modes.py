"""How the programs of a model use workspaces.

Owns the four names. Refuses to carry any out: `memcfg.nn` does.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["WorkspaceMode"]


class WorkspaceMode(StrEnum):
    """Where the tensors of a step live; the numbers that come out are the same bits.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.conf.WorkspaceMode``. SINGLE and
    SEPARATE mean what they meant in 0.9.1; since then DL4J takes both for ENABLED.
    """

    NONE = "none"
    """Each tensor is an allocation of its own, freed when its last reader is done."""
    ENABLED = "enabled"
    """The step is planned and compiled: every tensor has its place beforehand."""
    SINGLE = "single"
    """One workspace for the iteration; nothing in it is freed before its end."""
    SEPARATE = "separate"
    """Workspaces by kind of array and by layer, closed as soon as they may be."""

    @classmethod
    def _missing_(cls, value: object) -> WorkspaceMode | None:
        """Take a word in any case, as configurations do."""
        if isinstance(value, str) and value.lower() in cls._value2member_map_:
            return cls(value.lower())
        return None
