"""Covering arrays: the few rows of a product in which any t values still meet."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence


def covering(rows: Sequence[Sequence[Hashable]], strength: int) -> list[int]:
    """Choose rows that hold every combination of `strength` values that `rows` hold.

    Greedy, and the same for the same rows: of the combination that is left and met by
    the fewest rows, the row that brings the most new ones, and of those the one whose
    values were chosen least so far. Rows of fewer values than `strength` are all
    chosen.

    Parameters
    ----------
    rows : sequence of sequences
        Rows of one length; a value counts with its column.
    strength : int
        How many values meet; 2 is pairwise testing.

    Returns
    -------
    list of int
        The places of the chosen rows, ascending.
    """
    if not rows or len(rows[0]) < strength:
        return list(range(len(rows)))
    groups = list(combinations(range(len(rows[0])), strength))
    holds = [
        [(group, tuple(row[column] for column in group)) for group in groups]
        for row in rows
    ]
    met = Counter(each for row in holds for each in row)
    holders: dict[object, list[int]] = {}
    for place, row in enumerate(holds):
        for each in row:
            holders.setdefault(each, []).append(place)
    left = dict.fromkeys(sorted(met, key=met.__getitem__))
    chosen: list[int] = []
    uses: Counter[object] = Counter()
    for rarest in list(left):
        if rarest in left:
            best = max(
                holders[rarest],
                key=lambda place: (
                    sum(each in left for each in holds[place]),
                    -sum(uses[each] for each in enumerate(rows[place])),
                ),
            )
            chosen.append(best)
            uses.update(enumerate(rows[best]))
            for each in holds[best]:
                left.pop(each, None)
    return sorted(chosen)
