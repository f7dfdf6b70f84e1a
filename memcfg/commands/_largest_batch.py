"""``memcfg plan NETWORK --largest-batch``: how many samples fit, by each method."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from memcfg._tables import draw, new_table
from memcfg._terminal import width, write
from memcfg.commands._at_work import shown
from memcfg.errors import InfeasiblePlanError, MemcfgError
from memcfg.graph import with_profile
from memcfg.plan import NAMED_POLICIES
from memcfg.units import ALIGNMENT, exact, format_bytes, format_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

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
) -> int:
    """Print the largest batch of each method, the best first; 1 if nothing fits.

    The best is the one with the most samples and, of equal ones, the least time. Where
    nothing fits, the smallest limit of each method for one sample is printed, too.
    """
    write(f"Largest batch of {model.name!r} ({program}) within {format_bytes(limit)}\n")
    rows: list[tuple[int, float, str, int]] = []
    missing: dict[str, str] = {}
    needed: dict[str, int] = {}
    for name in methods:
        policy = NAMED_POLICIES[name]()
        with shown(f"planning: {name}"):
            try:
                batch = model.largest_batch(limit, policy=policy, program=program)
                if not batch:
                    least = _smallest_limit(model, limit, policy, program)
                    missing[name] = f"one sample does not fit; it needs {exact(least)}"
                    needed[name] = least
                    continue
                if profile is None:
                    plan = model.plan(batch, limit, policy=policy, program=program)
                else:  # of training, which has a public graph
                    graph = with_profile(model.graph(batch), profile)
                    plan = policy(graph, limit_bytes=limit)
            except MemcfgError as error:
                missing[name] = " ".join(str(error).split())
                continue
        rows.append((batch, plan.elapsed_seconds / batch, name, plan.peak_bytes))
    rows.sort(key=lambda row: (-row[0], row[1]))
    if rows:
        numbers = ["Batch", "Peak", "Time of a sample"]
        table = new_table("Method", numbers=numbers)
        for batch, each, name, peak in rows:
            mark = " *" * (len(rows) > 1 and (batch, each) == rows[0][:2])
            table.add_row(
                name + mark, str(batch), format_bytes(peak), format_seconds(each)
            )
        write(draw(table))
        if len(rows) > 1:
            write("\n* the largest batch; of equal ones, the least time of a sample")
    _write_missing(missing)
    if needed and not rows:
        least = min(needed.values())
        by = next(name for name, nbytes in needed.items() if nbytes == least)
        write(f"\nThe smallest limit that would do is {exact(least)}, by {by}.")
    return 0 if rows else 1


def _write_missing(missing: Mapping[str, str]) -> None:
    """Print why methods have no row."""
    if missing:
        write("\nNot there:")
    for name, why in missing.items():
        write(textwrap.fill(f"  {name}: {why}", width(), subsequent_indent="    "))


def _smallest_limit(model: Model, limit: int, policy: Policy, program: str) -> int:
    """Return the smallest limit with a plan of one sample, above one without.

    It is tried, and so is one with 64 bytes less, until that has no plan.
    """

    def attempt(nbytes: int) -> tuple[int, int]:
        """Return the peak of a plan, or 0 and the smallest limit that is said to do."""
        try:
            plan = model.plan(1, nbytes, policy=policy, program=program)
        except InfeasiblePlanError as error:
            return 0, max(error.smallest_limit_bytes, nbytes + ALIGNMENT)
        return plan.peak_bytes, nbytes

    peak, least = attempt(limit)
    while not peak:
        peak, least = attempt(least)
    while peak := attempt(least - ALIGNMENT)[0]:
        least = peak if attempt(peak)[0] else least - ALIGNMENT
    return least
