"""The tables of the allocator, from the committed results."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

RESULTS = Path(__file__).resolve().parents[1] / "results" / "allocators.json"
MALLOC = ("glibc", "mimalloc", "jemalloc", "tcmalloc")
BFC = ("bfc", "bfc-virtual", "bfc-fixed")  # configurations of one allocator

# Row | workload | case | metric | whether less (<) or more (>) is better
ROWS = """
allocate + free, 64 B, ns | pair | 64 B | ns | <
4 KiB | pair | 4 KiB | ns | <
64 KiB | pair | 64 KiB | ns | <
1 MiB | pair | 1 MiB | ns | <
64 MiB | pair | 64 MiB | ns | <
ten sizes, 256 B to 2 GiB | pair | ten sizes, 256 B to 2 GiB | ns | <
2 threads, 4 KiB, pairs/s | threads | 4 KiB, threads 2 | pairs/s | >
2 threads, 1 MiB, pairs/s | threads | 1 MiB, threads 2 | pairs/s | >
Larson benchmark, 2 threads, blocks/s | larson | threads 2 | replacements/s | >
live set, p99 ns, 64 B to 64 KiB | live_set | small, 64 B to 64 KiB | p99 ns | <
256 B to 32 MiB | live_set | mixed, 256 B to 32 MiB | p99 ns | <
64 KiB to 256 MiB | live_set | tensor, 64 KiB to 256 MiB | p99 ns | <
live set, p99.9 ns, 256 B to 32 MiB | live_set | mixed, 256 B to 32 MiB | p99.9 ns | <
requested ÷ reserved, 64 B to 64 KiB | growth | small, 64 B to 64 KiB | \
mean requested/reserved | >
256 B to 32 MiB | growth | mixed, 256 B to 32 MiB | mean requested/reserved | >
64 KiB to 256 MiB | growth | tensor, 64 KiB to 256 MiB | mean requested/reserved | >
batch 8 to 64, 50 layers | sawtooth | batch 8 to 64, 50 layers | \
mean requested/reserved | >
requested ÷ resident, 64 B to 64 KiB | resident_set | small, 64 B to 64 KiB | \
requested/resident | >
1 GiB limit, in use at the first out-of-memory, sizes to 1 MiB | \
first_refusal | sizes up to 1 MiB | mean use | >
to 8 MiB | first_refusal | sizes up to 8 MiB | mean use | >
to 64 MiB | first_refusal | sizes up to 64 MiB | mean use | >
failed allocations, of 10,000 on a full 16 GiB device | random_grid | \
10000 up to 64 MiB | failures | <
the same trace, ms | random_grid | 10000 up to 64 MiB | ms | <
16 GiB in 1 MiB blocks, untouched: resident MiB | metadata | \
16 GiB of blocks of 1 MiB | MiB | <
3.1 GiB touched and freed: resident MiB | release | 100 of 32 MiB | MiB, freed | <
after a trim | release | 100 of 32 MiB | MiB, trimmed | <
"""
NOTE = """
Medians of {repeats} interleaved runs; the best of a row is bold. BFC is TensorFlow's
own, from tensorflow-cpu {tensorflow-cpu}, in the best of three configurations for
each row; `–` is what an allocator does not have or report. glibc {glibc},
mimalloc {mimalloc}, jemalloc {jemalloc}, tcmalloc {tcmalloc};
{processor}, {cores} cores, {date}.
"""

Key = tuple[str, str, str]  # workload, case, metric
Found = tuple[float, str] | None  # a value, and the case it was found in


class Results:
    """The values of a document by workload, case and metric."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._values: dict[Key, dict[str, list[float]]] = {
            (row["workload"], row["case"], row["metric"]): row["values"]
            for row in document["results"]
        }

    def cases(self, workload: str, metric: str) -> list[str]:
        """Return the cases of a workload that have a metric."""
        return [c for w, c, m in self._values if (w, m) == (workload, metric)]

    def turns(self, key: Key, peer: str, *, less: bool) -> list[float]:
        """Return a peer's values; for "bfc", those of the best configuration."""
        values = self._values.get(key, {})
        names = BFC if peer == "bfc" else (peer,)
        known = [values[name] for name in names if name in values]
        best = min if less else max
        return best(known, key=statistics.median) if known else []

    def median(self, key: Key, peer: str = "ours", *, less: bool = True) -> float:
        """Return the median of `turns`, not-a-number where there are none."""
        turns = self.turns(key, peer, less=less)
        return statistics.median(turns) if turns else float("nan")

    def gain(self, key: Key, peer: str, *, less: bool) -> float:
        """Return how many times better memcfg is than a peer, turn against turn."""
        mine = self.turns(key, "ours", less=less)
        theirs = self.turns(key, peer, less=less)
        pairs = list(zip(mine, theirs, strict=False))
        quotients = [b / a if less else a / b for a, b in pairs]
        return statistics.median(quotients) if quotients else float("nan")


def least(found: list[tuple[float, str]]) -> Found:
    known = [(value, case) for value, case in found if value == value]
    return min(known) if known else None


def greatest(found: list[tuple[float, str]]) -> Found:
    known = [(value, case) for value, case in found if value == value]
    return max(known) if known else None


def least_gain(r: Results, workload: str, metric: str, *, less: bool = True) -> Found:
    """Return memcfg's gain over BFC in the case where it is smallest."""
    keys = [(workload, case, metric) for case in r.cases(workload, metric)]
    return least([(r.gain(key, "bfc", less=less), key[1]) for key in keys])


def medians(r: Results, workload: str, metric: str) -> list[tuple[float, str]]:
    cases = r.cases(workload, metric)
    return [(r.median((workload, case, metric)), case) for case in cases]


def over_mimalloc(r: Results) -> Found:
    sizes = ("64 B", "256 B", "1 KiB", "4 KiB", "16 KiB", "64 KiB")
    keys = [("pair", size, "ns") for size in sizes]
    return greatest([(1 / r.gain(key, "mimalloc", less=True), key[1]) for key in keys])


def scaling(r: Results) -> Found:
    found = medians(r, "threads", "scaling")
    return least([(rate, case) for rate, case in found if case.endswith("threads 2")])


def taken(r: Results) -> Found:
    found = medians(r, "live_set", "requested/reserved")
    return least(found + medians(r, "growth", "mean requested/reserved"))


def steepest(r: Results) -> Found:
    """Return the largest slow-down from 4,096 free chunks to 65,536."""
    found = []
    for case in r.cases("holes", "ns"):
        if case.startswith("4096 "):
            rest = case.removeprefix("4096 ")
            many, few = (
                r.median(("holes", f"{n} {rest}", "ns")) for n in (65536, 4096)
            )
            found.append((many / few, rest.replace("holes", "chunks")))
    return greatest(found)


def fitting(r: Results) -> Found:
    metrics = ("16 MiB blocks, of 3", "15 MiB block, of 1")
    found = [r.median(("tight", "64 MiB limit", metric)) for metric in metrics]
    return least([(sum(found), "64 MiB limit")])


def metadata(r: Results) -> Found:
    found = medians(r, "metadata", "MiB")
    return greatest([(value, case) for value, case in found if case.endswith(" 1 MiB")])


# The targets of the pool, and the case that comes closest to missing each.
PROMISES: list[tuple[str, str, float, Callable[[Results], Found]]] = [
    ("pair: BFC's time ÷ memcfg's", "≥", 1, lambda r: least_gain(r, "pair", "ns")),
    ("delayed free: the same", "≥", 1, lambda r: least_gain(r, "delayed", "ns")),
    (
        *("threads: memcfg's rate ÷ BFC's", "≥", 1),
        lambda r: least_gain(r, "threads", "pairs/s", less=False),
    ),
    ("pair up to 64 KiB: time ÷ mimalloc's", "≤", 2, over_mimalloc),
    ("rate of 2 threads ÷ rate of 1", "≥", 1.6, scaling),
    (
        *("live set: BFC's p99 ÷ memcfg's", "≥", 1),
        lambda r: least_gain(r, "live_set", "p99 ns"),
    ),
    ("live set: requested ÷ reserved", "≥", 0.95, taken),
    (
        *("in use at the first out-of-memory", "≥", 0.95),
        lambda r: least(medians(r, "first_refusal", "mean use")),
    ),
    (
        *("growing batch: requested ÷ reserved", "≥", 0.95),
        lambda r: least(medians(r, "sawtooth", "mean requested/reserved")),
    ),
    ("12 bytes, then 3 × 16 MiB and 15 MiB: blocks that fit", "≥", 4, fitting),
    ("65,536 free chunks: time ÷ that with 4,096", "≤", 1.25, steepest),
    ("metadata of 16 GiB in 1 MiB blocks, MiB", "≤", 16, metadata),
    (
        *("resident after a trim, MiB above the start", "≤", 4),
        lambda r: greatest(medians(r, "release", "MiB, trimmed")),
    ),
]


def number(value: float) -> str:
    """Return three digits, or a dash for not-a-number."""
    if value != value:
        return "–"
    if value >= 1e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def row(line: str, results: Results) -> str | None:
    """Return a row of ROWS as Markdown, None when nobody was measured."""
    label, workload, case, metric, better = (cell.strip() for cell in line.split("|"))
    less = better == "<"
    key = (workload, case, metric)
    peers = ("ours", "bfc", *MALLOC)
    found = [results.median(key, peer, less=less) for peer in peers]
    known = [value for value in found if value == value]
    if not known:
        return None
    best = (min if less else max)(known)
    cells = [f"**{number(v)}**" if v == best else number(v) for v in found]
    return "| " + " | ".join([label, *cells]) + " |"


def judged(results: Results) -> list[str]:
    lines = []
    for text, sense, wanted, find in PROMISES:
        found = find(results)
        if found is None:
            lines.append(f"| {text} {sense} {wanted:g} | – | – | not measured |")
            continue
        value, case = found
        kept = value >= wanted if sense == "≥" else value <= wanted
        cells = [f"{text} {sense} {wanted:g}", number(value), case]
        lines.append(f"| {' | '.join(cells)} | {'yes' if kept else '**no**'} |")
    return lines


def table(document: dict[str, Any] | None = None) -> str:
    """Return the tables of a document, as Markdown; None is what is committed."""
    if document is None:
        document = json.loads(RESULTS.read_text(encoding="utf-8"))
    results = Results(document)
    rows = [row(line, results) for line in ROWS.strip().splitlines()]
    place = {name: value or "–" for name, value in document["environment"].items()}
    return "\n".join(
        [
            "| | memcfg | BFC | " + " | ".join(MALLOC) + " |",
            "| --- " + "| ---: " * 6 + "|",
            *filter(None, rows),
            "",
            "| target | worst case | where | met |",
            "| --- | ---: | --- | --- |",
            *judged(results),
            NOTE.format_map(place),
        ]
    )
