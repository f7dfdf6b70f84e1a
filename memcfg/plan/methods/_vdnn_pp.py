"""After vDNN++: vDNN without barriers at the ends of layers.

Shriram, Garg and Kulkarni, "Dynamic Memory Management for GPU-Based Training of Deep
Neural Networks", IPDPS 2019.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from memcfg.plan.methods._timed_swaps import TimedSwaps
from memcfg.plan.methods._vdnn import layers_away
from memcfg.plan.search._full_tiers import within_tier
from memcfg.plan.search._policy import Method

if TYPE_CHECKING:
    from memcfg.plan.format._plan import Plan
    from memcfg.plan.search._policy import Policy
    from memcfg.plan.search._request import Request

_WHICH = ("all", "conv")


@dataclass(frozen=True)
class _Swapper:
    """Planning function for one choice of layers; a value, for comparison."""

    which: str

    def __post_init__(self) -> None:
        if self.which not in _WHICH:
            known = " or ".join(map(repr, _WHICH))
            raise ValueError(f"which must be {known}, not {self.which!r}")

    def __call__(self, request: Request) -> Plan:
        """Plan with as few waits as the limit allows."""
        swaps = TimedSwaps(request, *layers_away(request, self.which))
        return within_tier(request, swaps.plan())


def vdnn_pp(which: str = "all") -> Policy:
    """Swap out the same tensors as vDNN, without a barrier at the end of each layer.

    A tensor's bytes are free when its copy out has ended, and an op waits only for
    tensors that it reads. If that exceeds the limit, ops wait for the oldest copies
    out, and copies in start later. A tensor whose copy out has not ended when its copy
    in may start stays on the device.

    Parameters
    ----------
    which : {"all", "conv"}, default "all"
        Swap the inputs of all layers, as `vdnn_all`, or of convolutions, as
        `vdnn_conv`.

    Returns
    -------
    Policy
        A value that can be compared; calling it with a graph and a limit returns a
        plan.

    Raises
    ------
    ValueError
        If `which` is neither.

    Notes
    -----
    After Shriram et al., IPDPS 2019, without their compression on the host and their
    allocator. Ops use their default algorithms. Without a limit, no op waits longer
    than in vDNN's schedule of the same copies: each wait of that schedule is delayed or
    omitted.
    """
    return Method("vdnn_pp", _Swapper(which), "auto()", swaps=True)
