"""What a device leaves to one model.

Owns the budget and the refusal when something does not fit it. Takes no memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memcfg.errors import (
    InfeasiblePlanError,
    ResourceExhaustedError,
    WorkspaceFullError,
)
from memcfg.runtime._state import model_tag
from memcfg.units import align_up, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from memcfg.devices import Device
    from memcfg.runtime._placement import Buffer

__all__ = ["Budget", "ends_of_pages"]

_UNPLANNED_HINT = (
    "Raise the limit, lower the batch size, or plan the program, which needs least: "
    "workspace mode 'enabled' without layer_workspaces."
)


@dataclass(frozen=True)
class Budget:
    """What a device leaves to one model: its limit less what others hold."""

    device: Device
    owner: str
    elsewhere: int
    promised: int = 0
    aside: int = 0
    margin: int = 0
    times: str = "nominal"  # of ops, as policies are given them
    took: Mapping[object, float] = field(default_factory=dict)  # as of `Kernels`
    lowest: bool = False  # whether all is refused, to be told the smallest limit

    @property
    def nbytes(self) -> int | None:
        """Bytes that the model's arena may take, at least 1; None without a limit.

        Policies want a positive limit, and no model fits one byte.
        """
        limit = self.device.pool.limit
        if self.lowest:
            return 1
        if limit is None:
            return None
        whole = limit - limit % self.device.page_bytes
        return max(whole - self._others - self.aside, 1)

    @property
    def _others(self) -> int:
        return self.elsewhere + self.promised

    def beside(self, needed: int, enough: int) -> Budget:
        """Return the same budget with bytes put aside."""
        return replace(self, aside=needed, margin=enough - needed)

    def refusal(self, program: str, error: InfeasiblePlanError) -> InfeasiblePlanError:
        """Say the same of the device's limit, others' bytes included."""
        return self._refusal(
            program,
            error.smallest_limit_bytes,
            error.lower_bound_bytes + self.aside,
            error.hint,
            is_smallest=error.is_smallest,
        )

    def check(self, program: str, arena: int, bound: int) -> None:
        """Refuse a program that is not planned if an arena and `aside` do not fit."""
        left = self.nbytes
        if left is not None and arena > left:
            raise self._refusal(program, arena, bound, _UNPLANNED_HINT)

    def check_workspace(self, program: str, buffer: Buffer) -> None:
        """Refuse a program that needs more of a workspace than that has."""
        limit = buffer.limit_bytes
        if limit is None or buffer.nbytes <= limit:
            return
        field = "max_size" if buffer.config is None else "initial_size"
        excess = buffer.nbytes - limit
        raise WorkspaceFullError(
            f"{self.owner} does not fit: {program or 'its step'} needs "
            f"{excess} B more of workspace {buffer.name!r} than its {field}.",
            requested_bytes=buffer.nbytes,
            limit_bytes=limit,
            device=f"workspace {buffer.name}",
            hint=f"Smallest {field} that would do: {buffer.nbytes} B. Set that, lower "
            "the batch size, or give some kinds of arrays another workspace.",
        )

    def _refusal(
        self,
        program: str,
        arena: int,
        bound: int,
        hint: str,
        *,
        is_smallest: bool = True,
    ) -> InfeasiblePlanError:
        pool = self.device.pool
        own = pool.stats().current_bytes - self.elsewhere
        others = Counter(pool.owners())
        others[model_tag(self.owner)] -= own  # a copy of the model has the same name
        limit = pool.limit
        left = None if limit is None else max(limit - self._others, 0)
        beside = ""
        if self.promised:
            beside = f", beside {format_bytes(self.promised)} for batches read ahead"
            hint = f"Prefetch fewer batches. {hint}"
        return InfeasiblePlanError(
            f"{self.owner} does not fit: {program or 'its step'} needs too much"
            f"{beside}.",
            smallest_limit_bytes=align_up(
                arena + self.aside + self.margin + self._others, self.device.page_bytes
            ),
            lower_bound_bytes=bound + self._others,
            is_smallest=is_smallest,
            program=program,
            requested_bytes=arena + self.aside,
            in_use_bytes=self.elsewhere,
            limit_bytes=limit,
            largest_free_bytes=left,
            device=self.device.name,
            owners=+others,
            hint=hint,
        )


def ends_of_pages(error: ResourceExhaustedError) -> int:
    """Return what is lost to the ends of pages, if that is why there is no arena.

    A budget counts bytes, and others' blocks have whole pages: a plan that takes its
    budget to the last byte can be too large by those.
    """
    free = error.largest_free_bytes
    if isinstance(error, InfeasiblePlanError) or free is None:
        return 0
    lost = error.reserved_bytes - error.in_use_bytes
    return lost if lost > 0 and free + lost >= error.requested_bytes else 0
