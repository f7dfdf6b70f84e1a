"""The table of codecs, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "codecs.json"
HEAD = """| codec | array | nonzero | encode, GB/s | decode, GB/s | copy, GB/s | times fewer bytes |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""  # noqa: E501  (a line of Markdown)
PROMISED = {"mask": 2.0, "zvc": 2.0}  # GB/s a core


def row(result: dict) -> str:
    speed = result["gigabytes_per_second"]
    promise = PROMISED.get(result["codec"], 0)
    cells = [
        f"`{result['codec']}`",
        result["size"],
        f"{result['density']:.0%}",
        *(
            f"{speed[way]:.3g}" if speed[way] >= promise else f"**{speed[way]:.3g}**"
            for way in ("encode", "decode")
        ),
        f"{speed['copy']:.3g}",
        f"{result['ratio']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place = document["environment"]
    results = document["results"]
    off = max(
        abs(each["ratio"] / each["zvc_formula"] - 1)
        for each in results
        if each["codec"] == "zvc" and each["density"] < 1
    )
    clock = "processor time of the thread" if place["clock"] == "thread" else "time"
    note = f"""
GB (10^9 bytes of the array) a second of {clock} on one
core, medians of {place["repeats"]} interleaved runs. The target of `zvc` and
`mask` is 2 GB/s; lower rates are bold. The ratio of `zvc` is cDMA's 128 / (128 d + 4)
within {off:.2%}, except for the header of 64 bytes.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load {place["load"]:.1f}.
"""
    if place["load"] > 1:
        note += "Provisional: others used the machine, its caches and its memory.\n"
    return HEAD + "\n".join(map(row, results)) + "\n" + note
