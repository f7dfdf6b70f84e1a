"""The memory that a device leaves to one model.

Owns the budget and the error raised when something exceeds it. Takes no memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from memcfg._advice import larger_limit_or
from memcfg._core._holders import margin_beside
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
    from memcfg.graph import Graph
    from memcfg.runtime._placement import Buffer

__all__ = ["Budget", "ends_of_pages"]

_PLANNING = (
    "plan the program, which needs least: workspace mode 'enabled' without "
    "layer_workspaces"
)


_NUMPY = "numpy"  # the tag of arrays that a program's budget counts


@dataclass(frozen=True)
class Budget:
    """Memory budget of one model: the device's limit minus the bytes of others.

    `elsewhere` are the bytes that others hold, of which they give `spare` back if the
    model needs them; `arena` are those of the model, and `values` those of its state
    outside of the arena, which go as it is loaded. `promised` are those reserved for
    others, and `aside` those of the model's own buffers outside of the arena. `margin`
    covers page fragmentation of these buffers. In a program's budget `arrays` are left
    to arrays of the program, or `initial`, the largest initial value, if that is more.
    """

    device: Device
    owner: str
    elsewhere: int
    promised: int = 0
    arena: int = 0
    values: int = 0
    spare: int = 0
    arrays: int = 0
    initial: int = 0
    aside: int = 0
    margin: int = 0
    times: str = "nominal"  # source of the op times that policies receive
    # measured seconds, keyed as in `Kernels`
    took: Mapping[object, float] = field(default_factory=dict)
    lowest: bool = False  # refuse every plan, to learn the smallest limit
    asked: int | None = None  # a limit that is asked about, instead of the device's

    @property
    def nbytes(self) -> int | None:
        """The bytes available to the model's arena, at least 1; None without a limit.

        The minimum is 1 because policies require a positive limit. No model fits in one
        byte.
        """
        limit = self.limit
        if self.lowest:
            return 1
        if limit is None:
            return None
        whole = limit - limit % self.device.page_bytes
        return max(whole - self._others - self._left_to_arrays - self.aside, 1)

    @property
    def limit(self) -> int | None:
        """The limit of the device, or the one that is asked about."""
        return self.device.pool.limit if self.asked is None else self.asked

    @property
    def _others(self) -> int:
        return max(0, self.elsewhere - self.spare) + self.promised

    @property
    def _left_to_arrays(self) -> int:
        return max(self.arrays, self.initial) if self.arrays else 0

    def _with_arrays(self, needed: int) -> int:
        """Return the smallest limit with these bytes and those for arrays."""
        if not self.arrays:
            return needed
        return needed + max(margin_beside(needed), self.initial)

    def beside(self, needed: int, enough: int) -> Budget:
        """Return a budget that sets bytes aside for buffers outside of the arena.

        `needed` is their total size, `enough` the total with page fragmentation.
        """
        return replace(self, aside=needed, margin=enough - needed)

    def refusal(self, program: str, error: InfeasiblePlanError) -> InfeasiblePlanError:
        """Restate an error in terms of the device's limit, including others' bytes."""
        return self._refusal(
            program,
            error.smallest_limit_bytes,
            error.lower_bound_bytes + self.aside,
            error.hint,
            is_smallest=error.is_smallest,
        )

    def check(self, program: str, graph: Graph, arena: int, bound: int) -> None:
        """Raise if the arena of an unplanned program does not fit next to `aside`."""
        left = self.nbytes
        if left is not None and arena > left:
            hint = larger_limit_or(graph.batch_size, _PLANNING)
            raise self._refusal(program, arena, bound, hint)

    def check_workspace(self, program: str, buffer: Buffer) -> None:
        """Raise if a program needs more bytes of a workspace than its limit."""
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
        others = Counter(self.device.pool.owners())
        # another copy of the model may share the name
        others[model_tag(self.owner)] -= self.arena
        others[_NUMPY] -= self.values
        limit = self.limit
        left = None
        if limit is not None:
            left = max(limit - self._others - self._left_to_arrays, 0)
        read_ahead = ""
        if self.promised:
            read_ahead = (
                f" beside {format_bytes(self.promised)} for batches read ahead and "
                "elements that are shuffled"
            )
            hint = f"Prefetch fewer batches, or shuffle fewer elements. {hint}"
        return InfeasiblePlanError(
            f"{self.owner} does not fit: {program or 'its step'} needs too much"
            f"{read_ahead}.",
            smallest_limit_bytes=align_up(
                self._with_arrays(arena + self.aside + self.margin + self._others),
                self.device.page_bytes,
            ),
            lower_bound_bytes=self._with_arrays(bound + self._others),
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
    """Return the bytes lost to page fragmentation if they caused the failure, else 0.

    A budget counts bytes, but the blocks of others occupy whole pages. So a plan that
    uses its budget to the last byte can exceed the limit by that difference.
    """
    free = error.largest_free_bytes
    if isinstance(error, InfeasiblePlanError) or free is None:
        return 0
    lost = error.reserved_bytes - error.in_use_bytes
    return lost if lost > 0 and free + lost >= error.requested_bytes else 0
