"""In the manner of vDNN++: vDNN without the barriers at the ends of layers.

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
    """What plans for one choice of layers: equal policies are equal."""

    which: str

    def __post_init__(self) -> None:
        if self.which not in _WHICH:
            known = " or ".join(map(repr, _WHICH))
            raise ValueError(f"which is {known}, not {self.which!r}")

    def __call__(self, request: Request) -> Plan:
        """Plan with no more waiting than the limit asks for."""
        swaps = TimedSwaps(request, *layers_away(request, self.which))
        return within_tier(request, swaps.plan())


def vdnn_pp(which: str = "all") -> Policy:
    """Swap out what vDNN does, without its barrier at the end of each layer.

    The bytes of what leaves are free when its copy has ended, and an op waits for what
    it reads, for nothing else. Where a limit would not hold so, ops wait for the copies
    that left first, and copies in start later. What is still on its way out when it
    may come back stays.

    Parameters
    ----------
    which : {"all", "conv"}, default "all"
        Whether the inputs of all layers leave, as of `vdnn_all`, or those of
        convolutions, as of `vdnn_conv`.

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
    In the manner of Shriram et al., IPDPS 2019, whose compression on the host and
    allocator are not part of it. Ops have their default algorithms. Without a limit no
    op waits longer than by vDNN's schedule of the same copies: each wait is one of its
    waits, put off or left out.
    """
    return Method("vdnn_pp", _Swapper(which), "auto()", swaps=True)
