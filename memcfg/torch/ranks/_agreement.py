"""One refusal refuses all: ranks tell each other, before a step, whether it may run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import distributed

from memcfg.torch.trace._infeasible import InfeasibleStepError
from memcfg.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


class Agreement:
    """The agreement of all ranks on one step.

    Each rank settles once, by an `all_reduce` of two numbers for each group. A rank
    that refuses tells the others and raises its own error; each of the others raises
    one that names it. Nothing of the step has run by then.

    Parameters
    ----------
    groups : sequence of torch.distributed.ProcessGroup
        The groups that have to agree; more than one for a mesh of several dimensions.
    device : torch.device
        A device whose tensors the groups reduce.
    """

    def __init__(
        self, groups: Sequence[distributed.ProcessGroup], device: torch.device
    ) -> None:
        self._groups = groups
        self._device = device
        self._is_settled = False

    def settle(self, refusal: Exception | None = None) -> None:
        """Tell the other ranks that this one may run, or the error for which it won't.

        Only the first call tells. Raises InfeasibleStepError, or RuntimeError if the
        bytes are not known, if this rank may run and another may not.
        """
        if self._is_settled:
            return
        self._is_settled = True
        worst = self._reduced(refusal)
        if refusal is not None or worst[0] == 0:
            return
        rank, needed = worst[0] - 1, worst[1]
        if not needed:
            raise RuntimeError(
                f"rank {rank} cannot run this step, so no rank does: the error of that "
                "rank says why"
            )
        raise InfeasibleStepError(
            f"Rank {rank} has no plan of this step within its limit, so no rank runs "
            f"it. It needs at least {format_bytes(needed, exact=True)}.",
            smallest_limit_bytes=needed,
            lower_bound_bytes=0,
            is_smallest=False,
            requested_bytes=needed,
            hint="Raise the limit or lower the batch size of all ranks.",
        )

    def _reduced(self, refusal: Exception | None) -> list[int]:
        """Return 1 + the last rank that refuses, or 0, and the most that one needs."""
        own = 0 if refusal is None else distributed.get_rank() + 1
        needed = getattr(refusal, "smallest_limit_bytes", None) or 0
        told = torch.tensor([own, needed], dtype=torch.int64, device=self._device)
        for group in self._groups:
            distributed.all_reduce(told, distributed.ReduceOp.MAX, group)
        return [int(each) for each in told.tolist()]
