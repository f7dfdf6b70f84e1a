"""The table of densities during training, from the committed results.

``python bench density --output bench/results/density.json`` writes them.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean
from textwrap import fill

RESULTS = Path(__file__).resolve().parents[1] / "results" / "density.json"
STEPS = (0, 15, 30, 60, 90, 180, 450, 900)
PROMISED = 2.0  # times fewer bytes


def of(name: str, values: list[str]) -> str:
    return f"| {name} | {' | '.join(values)} |"


def marked(ratio: float) -> str:
    return f"{ratio:.2f}" if ratio >= PROMISED else f"**{ratio:.2f}**"


def lanes_ratio(entry: dict) -> float:
    ratio: float = entry["lanes"]["nbytes"] / entry["lanes"]["code_bytes"]
    return ratio


def rows(result: dict) -> list[str]:
    entries = {each["step"]: each for each in result["series"]}
    shown = [entries[step] for step in STEPS]
    found = []
    for place, head in enumerate(result["maps"]):
        densities = [f"{each['map_density'][place]:.2f}" for each in shown]
        found.append(of(f"`{head['map']}`", densities))
    densities = [f"{each['density']:.2f}" for each in shown]
    found += [
        of("all ReLUs", densities),
        of("ReLUs: times fewer bytes", [marked(each["ratio"]) for each in shown]),
        of("ReLUs and poolings", [marked(e["ratio_with_pools"]) for e in shown]),
        of("copied tensors", [marked(lanes_ratio(each)) for each in shown]),
        of("loss", [f"{each['loss']:.2g}" for each in shown]),
    ]
    return found


def sentence(result: dict) -> str:
    series = result["series"]
    ratios = [each["ratio"] for each in series]
    last = max((e["step"] for e in series if e["ratio"] < PROMISED), default=None)
    low = "never below 2" if last is None else f"last below 2 in step {last}"
    return fill(
        f"With {result['network']}, the codes of all ReLUs are {fmean(ratios):.2f} "
        f"times smaller than the maps, as the mean of {len(series)} measured steps "
        f"(at least {min(ratios):.2f}, {low}). The codes of copied tensors are "
        f"{fmean(map(lanes_ratio, series)):.2f} times smaller.",
        width=88,
    )


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    lines = []
    for result in document["results"]:
        lines += [
            of(f"{result['network']}: step", [str(step) for step in STEPS]),
            "| --- |" + " ---: |" * len(STEPS),
            *rows(result),
            "",
        ]
    header, nets = 64, document["results"]
    off = max(
        abs(entry["map_ratio"][i] / entry["map_formula"][i] - 1)
        for each in nets
        for entry in each["series"]
        for i, head in enumerate(each["maps"])
        if head["nbytes"] >= 2**17 and entry["map_density"][i] < 1
    )
    means = "\n".join(map(sentence, nets))
    return (
        "\n".join(lines)
        + f"""
Density is the nonzero part of a map, at batch {nets[0]["batch"]}. *Times fewer bytes*
is the size of the maps over that of their `zvc` codes; ratios below 2 are bold. They
are cDMA's 128 / (128 d + 4), except for the header of {header} bytes: within
{off:.2%} for maps of 128 KiB and more.
{means}
{place["processor"]}, {place["cores"]} cores, {place["date"]}.
"""
    )
