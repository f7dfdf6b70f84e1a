"""The table of Deep Compression on digits, from the committed results."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import mean

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compression.json"
HEAD = """| network | weights | accuracy in validation, dense | compressed | in the test, dense | compressed | points | fixed codes | Huffman | range | times |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""  # noqa: E501  (a line of Markdown)
CODERS = ("none", "huffman", "range")
QUANTIZERS = {"k_means": "", "rate": ", by rate"}
# The times fewer bytes that a factor has to reach to be chosen: those of the paper, and
# more by rate.
TIMES = {
    ("LeNet-300-100", "k_means"): 40,
    ("LeNet-5", "k_means"): 39,
    ("LeNet-300-100", "rate"): 60,
    ("LeNet-5", "rate"): 60,
}

Rows = list[dict]


def accuracy(rows: Rows, kind: str, which: str) -> float:
    return mean(each[kind][which] for each in rows)


def nbytes(rows: Rows) -> dict[str, float]:
    return {coder: mean(each["file_bytes"][coder] for each in rows) for coder in CODERS}


def row(network: str, what: str, rows: Rows) -> str:
    """Return the means of seeds."""
    scores = [
        accuracy(rows, kind, which)
        for kind in ("validation", "accuracy")
        for which in ("dense", "compressed")
    ]
    sizes = nbytes(rows)
    cells = [
        network,
        what,
        *(f"{each:.2%}" for each in scores),
        f"{100 * (scores[3] - scores[2]):+.2f}",
        *(f"{each:,.0f}" for each in sizes.values()),
        f"**{rows[0]['dense_bytes'] / min(sizes.values()):.1f}**",
    ]
    return "| " + " | ".join(cells) + " |\n"


def chosen(groups: dict[tuple, Rows], network: str, quantizer: str) -> float | None:
    """Return the factor of the best validation, of those with files small enough."""
    best, most = None, 0.0
    for (name, factor, by), rows in groups.items():
        if (name, by) != (network, quantizer) or factor is None:
            continue
        times = rows[0]["dense_bytes"] / min(nbytes(rows).values())
        found = accuracy(rows, "validation", "compressed")
        if times >= TIMES[network, by] and found > most:
            best, most = factor, found
    return best


def rows_of(groups: dict[tuple, Rows], network: str) -> str:
    """Return the rows of a network."""
    text = row(network, "dense, trained as long", groups[network, 1, None])
    for quantizer, words in QUANTIZERS.items():
        best = chosen(groups, network, quantizer)
        for (name, factor, by), rows in groups.items():
            if (name, by) == (network, quantizer) and factor is not None:
                mark = "**chosen:** " if factor == best else ""
                text += row(network, f"{mark}{factor:g} of the paper's{words}", rows)
    for quantizer, words in QUANTIZERS.items():
        rows = groups.get((network, None, quantizer))
        if rows:
            text += row(network, f"as `compress` finds{words}", rows)
    return text


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, groups = document["environment"], defaultdict(list)
    for each in document["results"]:
        groups[each["network"], each["factor"], each["quantizer"]].append(each)
    networks = dict.fromkeys(network for network, *_ in groups)
    text = HEAD + "".join(rows_of(groups, network) for network in networks)
    seeds = max(map(len, groups.values()))
    found = min(len(rows) for (_, factor, _), rows in groups.items() if factor is None)
    return f"""{text}
Means of {seeds} seeds; what `compress` finds is that of {found}. Of 5,000 digits
1,000 are the test set, 1,000 are for validation, drawn by the seed, and 3,000 for
training. Bytes are those of whole files, headers and biases included.
{place["processor"]}, one thread, {place["date"]}.
"""
