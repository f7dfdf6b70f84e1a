"""The tables of Deep Compression on digits, from the committed results."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from statistics import mean, median

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compression.json"
HEAD = """| network | weights | accuracy, dense | compressed | points | fixed codes | Huffman | range | times |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""  # noqa: E501  (a line of Markdown)
STAGES = """
| stage | bytes | times | accuracy | time | peak of `predict` | peak of training |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""
SHOWN = ("LeNet-5", "fewer, by rate")


def row(name: str, variant: str, results: list[dict]) -> str:
    """Return the means of a network's seeds."""
    dense, small = (
        mean(each["accuracy"][which] for each in results)
        for which in ("dense", "compressed")
    )
    nbytes = {
        coder: mean(each["file_bytes"][coder] for each in results)
        for coder in ("none", "huffman", "range")
    }
    cells = [
        name,
        variant,
        f"{dense:.2%}",
        f"{small:.2%}",
        f"{100 * (small - dense):+.2f}",
        *(f"{each:,.0f}" for each in nbytes.values()),
        f"**{results[0]['dense_bytes'] / min(nbytes.values()):.1f}**",
    ]
    return "| " + " | ".join(cells) + " |\n"


def stages(results: list[dict]) -> str:
    """Return the stages of a network, as means and medians of its seeds."""
    text = STAGES
    for rows in zip(*(each["stages"] for each in results), strict=True):
        nbytes = mean(each["nbytes"] for each in rows)
        dense = results[0]["dense_bytes"]
        peaks = (
            mean(each[which] for each in rows) / 2**20
            for which in ("predict_peak", "train_peak")
        )
        cells = [
            rows[0]["name"],
            f"{nbytes:,.0f}",
            f"{dense / nbytes:.1f}",
            f"{mean(each['accuracy'] for each in rows):.2%}",
            f"{1e3 * median(each['seconds'] for each in rows):.1f} ms",
            *(f"{each:.2f} MiB" for each in peaks),
        ]
        text += "| " + " | ".join(cells) + " |\n"
    return text


def table(path: Path = RESULTS) -> str:
    """Return the tables of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]

    def of(result: dict) -> tuple[str, str]:
        return result["network"], result["variant"]

    order: dict[tuple[str, str], None] = dict.fromkeys(map(of, document["results"]))
    found = sorted(document["results"], key=lambda each: list(order).index(of(each)))
    groups = {key: list(rows) for key, rows in groupby(found, of)}
    text = HEAD + "".join(row(*key, rows) for key, rows in groups.items())
    seeds = len(next(iter(groups.values())))
    text += f"""
Means of {seeds} seeds, each with its own division of the digits; 1,000 of the 5,000 are
held out. Bytes are those of whole files, headers and biases included.

The stages of {SHOWN[0]}, {SHOWN[1]}, with batches of 64:
{stages(groups[SHOWN])}
{place["processor"]}, {place["cores"]} cores, one thread, {place["date"]}, load
{place["load"]:.1f}.
"""
    if place["load"] > 1:
        text += "Times are provisional: others used the machine.\n"
    return text
