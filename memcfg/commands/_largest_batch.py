"""``memcfg plan NETWORK --largest-batch``: how many samples fit, by each method."""

from __future__ import annotations

from typing import TYPE_CHECKING

from memcfg._terminal import write
from memcfg.commands._at_work import shown
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.graph import with_profile
from memcfg.nn.training.alternatives._largest_batches import (
    LargestBatch,
    LargestBatches,
)
from memcfg.plan import NAMED_POLICIES
from memcfg.units import ALIGNMENT, exact, format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from memcfg.graph import Profile
    from memcfg.nn import Model
    from memcfg.plan import Policy

__all__ = ["USUAL", "largest_batches"]

# Methods of the product; others take --method, since each is planned several times.
USUAL = (
    *("keep_all", "share", "replay_elementwise", "sqrt_checkpoint"),
    *("repeated_blocks", "look_ahead", "auto"),
)


def largest_batches(
    model: Model,
    methods: Sequence[str],
    limit: int,
    program: str,
    profile: Profile | None = None,
    lengths: int | Sequence[int] | None = None,
) -> int:
    """Print the largest batch of each method, the best first; 1 if nothing fits.

    `lengths` are those of the axes of None of the model's inputs.

    The best is the one with the most samples and, of equal ones, the least time. Where
    nothing fits, the smallest limit of each method for one sample is printed, too.
    """
    rows: list[LargestBatch] = []
    needed: dict[str, int] = {}
    for name in methods:
        policy = NAMED_POLICIES[name]()
        with shown(f"planning: {name}"):
            try:
                batch = model.largest_batch(
                    limit, policy=policy, program=program, lengths=lengths
                )
                if not batch:
                    least = _smallest_limit(model, limit, policy, program, lengths)
                    needed[name] = least
                    rows.append(LargestBatch.too_small(name, least))
                    continue
                if profile is None:
                    plan = model.plan(
                        batch, limit, policy=policy, program=program, lengths=lengths
                    )
                else:  # of training, which has a public graph
                    graph = with_profile(model.graph(batch, lengths=lengths), profile)
                    plan = policy(graph, limit_bytes=limit)
            except MemcfgError as error:
                why = " ".join(str(error).split())
                rows.append(LargestBatch(name, why_not=why))
            else:
                rows.append(LargestBatch.of(name, batch, plan))
    found = LargestBatches(tuple(rows))
    write(f"Largest batch of {model.name!r} ({program}) within {format_bytes(limit)}\n")
    write(str(found))
    if needed and found.best is None:
        least = min(needed.values())
        by = next(name for name, nbytes in needed.items() if nbytes == least)
        write(f"\nThe smallest limit that would do is {exact(least)}, by {by}.")
    return 0 if found.best is not None else 1


def _smallest_limit(
    model: Model,
    limit: int,
    policy: Policy,
    program: str,
    lengths: int | Sequence[int] | None,
) -> int:
    """Return the smallest limit with a plan of one sample, above one without.

    It is tried, and so is one with 64 bytes less, until that has no plan.
    """

    def attempt(nbytes: int) -> tuple[int, int]:
        """Return the peak of a plan, or 0 and the smallest limit that is said to do."""
        try:
            plan = model.plan(
                1, nbytes, policy=policy, program=program, lengths=lengths
            )
        except InfeasiblePlanError as error:
            return 0, max(error.smallest_limit_bytes, nbytes + ALIGNMENT)
        return plan.peak_bytes, nbytes

    peak, least = attempt(limit)
    while not peak:
        peak, least = attempt(least)
    while peak := attempt(least - ALIGNMENT)[0]:
        least = peak if attempt(peak)[0] else least - ALIGNMENT
    return least
