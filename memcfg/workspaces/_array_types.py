"""What the arrays of a network are for.

Owns the names, which are those of DL4J's ArrayType. Refuses to say where any of them
lives: a `LayerWorkspaceMgr` does.
"""

from __future__ import annotations

from enum import StrEnum

__all__ = ["ArrayType"]


class ArrayType(StrEnum):
    """What an array of a network is for.

    References
    ----------
    Deeplearning4j 1.0.0-M1, ``org.deeplearning4j.nn.workspace.ArrayType``.
    """

    INPUT = "input"
    """What a layer reads."""
    ACTIVATIONS = "activations"
    """What a layer gives to others."""
    ACTIVATION_GRAD = "activation_grad"
    """The gradient of what a layer read, for the layers before it."""
    FF_WORKING_MEM = "ff_working_mem"
    """What a layer needs while it runs forward, and nobody after."""
    BP_WORKING_MEM = "bp_working_mem"
    """What a layer needs while it runs backward, and nobody after."""
    RNN_FF_LOOP_WORKING_MEM = "rnn_ff_loop_working_mem"
    """What one time step of a recurrent layer needs, forward."""
    RNN_BP_LOOP_WORKING_MEM = "rnn_bp_loop_working_mem"
    """What one time step of a recurrent layer needs, backward."""
    UPDATER_WORKING_MEM = "updater_working_mem"
    """What an optimizer needs while it updates."""
    FF_CACHE = "ff_cache"
    """What a layer keeps from its forward pass for its backward pass."""

    @classmethod
    def _missing_(cls, value: object) -> ArrayType | None:
        """Take a word in any case, as configurations do."""
        if isinstance(value, str) and value.lower() in cls._value2member_map_:
            return cls(value.lower())
        return None
