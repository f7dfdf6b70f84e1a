"""Claims of ops to memory, and the orders in which a rule meets them.

The rules are those of `by_need`, `by_priority` and `balanced`. A claim is to bytes of a
step, or to a packed weight, which takes bytes in all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from memcfg.graph import Algorithm

Order: TypeAlias = Callable[["Claims"], list["Claim"]]


class Claim(NamedTuple):
    """What one op asks for: that its outputs stay, scratch, or a packed weight."""

    op: int
    seconds: float  # saved
    nbytes: int
    algorithm: Algorithm | None  # None: no scratch


@dataclass(frozen=True)
class Claims:
    """The claims of all ops."""

    rows: Mapping[int, Sequence[Claim]]  # by op
    seconds: Sequence[float]  # of each op of the graph


def by_rate(claims: Claims) -> list[Claim]:
    """Order claims by the seconds that each saves per byte."""
    flat = [each for row in claims.rows.values() for each in row]
    return sorted(flat, key=lambda each: (-_rate(each), each.op))


def _rate(claim: Claim) -> float:
    """Return seconds per byte, without the noise of the division."""
    return float(f"{claim.seconds / max(claim.nbytes, 1):.9g}")


def by_longest(claims: Claims) -> list[Claim]:
    """Order claims by the seconds of their ops."""
    order = sorted(claims.rows, key=lambda op: (-claims.seconds[op], op))
    return [each for op in order for each in claims.rows[op]]


def equally(claims: Claims) -> list[Claim]:
    """Order claims by the bytes that their op then has, as shares grow at one pace."""
    flat = []
    for op, row in claims.rows.items():
        ordered = sorted(row, key=lambda each: each.nbytes)
        shares = accumulate(each.nbytes for each in ordered)
        flat += [(share, op, each) for share, each in zip(shares, ordered, strict=True)]
    return [each for _, _, each in sorted(flat, key=lambda item: item[:2])]


def order_of(policy: object) -> Order:
    """Return the order in which a policy meets claims; most divide by need."""
    order: Order | None = getattr(policy, "order", None)
    return by_rate if order is None else order
