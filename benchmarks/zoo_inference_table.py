"""The table of the zoo's inference beside PyTorch, out of the committed results."""

from __future__ import annotations

import runpy
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ("predict1", "predict32")
HEAD = """| network | memcfg | PyTorch | speed | memcfg, 32 | PyTorch, 32 | speed |
| --- | --- | --- | --- | --- | --- | --- |
"""


def cells(result: dict | None) -> list[str]:
    if result is None:
        return ["", "", ""]
    seconds, speed = result["seconds"], result["speed"]
    own, other = seconds["memcfg"], seconds[result["peer"]]
    return [f"{own * 1e3:.2f}", f"{other * 1e3:.2f}", f"**{speed:.2f}**"]


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    zoo = runpy.run_path(str(HERE / "zoo_table.py"))
    document = zoo["read"](folder / "zoo_inference.json")
    results, place = document["results"], document["environment"]
    found = {(each["network"], each["kind"]): each for each in results}
    rows = [
        "| "
        + " | ".join([name, *(c for k in KINDS for c in cells(found.get((name, k))))])
        for name in dict.fromkeys(each["network"] for each in results)
    ]
    means = [
        f"{zoo['mean'](each):.2f}"
        for kind in KINDS
        if (each := [one for one in results if one["kind"] == kind])
    ]
    note = f"""
Milliseconds a batch, of one sample and of 32.
{place["processor"]}, {place["threads"]} threads, PyTorch {place["torch"]},
{place["date"]}. Geometric means of the speeds: {" and ".join(means)}.
"""
    return HEAD + "".join(f"{each} |\n" for each in rows) + note
