"""What speaks against each method of a comparison, from the comparison's own numbers.

The last column of a table of all methods, as the survey of Ma et al. (2020) has one:
what a method refuses that others plan, what it costs, where it is not lossless. Nothing
here is an opinion about a method: it follows from a document.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcfg.commands.comparison._method_cells import MIDDLE
from memcfg.commands.comparison._method_document import at_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PART = 0.02  # from which part of the time, or of the memory, a cost is named
_LONG = 1.0  # seconds of planning


def drawbacks(document: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the drawbacks of each method of a comparison, in short words.

    Networks that a method does not take at all have the letters of the document; on the
    others, its refusals count where a lossless method has a plan.
    """
    rates = document["bandwidths"]
    lossless = {row["method"] for row in document["methods"] if row["lossless"]}
    letters = {each["network"]: each["letter"] for each in document["networks"]}
    planned: dict[str, set[tuple[str, str]]] = {}
    taken: dict[str, set[str]] = {}
    for cell in document["cells"]:
        at = at_rate(cell, rates[MIDDLE])
        own = planned.setdefault(cell["method"], set())
        if at["reason"] is None:
            own.add((cell["network"], cell["budget"]))
        if at["reason"] is None or at["needs_bytes"] is not None:
            taken.setdefault(cell["method"], set()).add(cell["network"])
    known = set().union(*(planned[each] for each in lossless))
    result = {}
    for row in document["methods"]:
        method = row["method"]
        networks = taken.get(method, set())
        others = [name for name in letters if name not in networks]
        fits = {cell for cell in known if cell[0] in networks}
        refused = len(fits - planned[method])
        words = []
        if others:
            words.append(f"does not take {''.join(letters[each] for each in others)}")
        if row["least"] is not None and row["least"] >= 1:
            words.append("saves nothing beyond `share`")
        elif refused:
            words.append(f"refuses {refused} of {len(fits)} that others plan")
        result[method] = words + _costs(row, rates)
    return result


def _costs(row: Mapping[str, Any], rates: Sequence[Any]) -> list[str]:
    """Say what the plans of a method cost, and whether it rounds."""
    words = [] if row["lossless"] else ["not lossless"]
    if row["host_peak"] is not None and row["host_peak"] > _PART:
        words.append(f"{row['host_peak']:.0%} on the host")
    if row["dynamic"]:
        words.append("first steps are measured")
    slow = row["slowdowns"]
    usual = slow[MIDDLE]
    if usual is not None and usual - 1 > _PART:
        words.append(f"{usual - 1:+.0%} time")
    for rate, each in list(zip(rates, slow, strict=True))[MIDDLE + 1 :]:
        if None not in (each, usual) and each - usual > _PART:
            words.append(f"{each - 1:+.0%} at {rate / 1e9:g} GB/s")
    seconds = row["planning_seconds"]
    if seconds is not None and seconds > _LONG:
        words.append(f"plans for {seconds:.1f} s")
    return words
