"""The table of the zoo's inference beside PyTorch, out of the committed results."""

from __future__ import annotations

import runpy
from pathlib import Path

HERE = Path(__file__).resolve().parent
KINDS = ("predict1", "predict32")
SIDES = "memcfg", "PyTorch", "speed", "compiled"


def cells(zoo: dict, result: dict | None) -> list[str]:
    if result is None:
        return [""] * len(SIDES)
    seconds, speed = result["seconds"], result["speed"]
    own, other = (f"{seconds[s] * 1e3:.2f}" for s in ("memcfg", result["peer"]))
    return [own, other, f"**{speed:.2f}**", zoo["compiled"](result)]


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    zoo = runpy.run_path(str(HERE / "zoo_table.py"))
    document = zoo["read"](folder / "zoo_inference.json")
    results, place = document["results"], document["environment"]
    found = {(each["network"], each["kind"]): each for each in results}
    rows = [
        " | ".join(
            [name, *(c for k in KINDS for c in cells(zoo, found.get((name, k))))]
        )
        for name in dict.fromkeys(each["network"] for each in results)
    ]
    means = [
        f"{zoo['mean'](each):.2f}"
        for kind in KINDS
        if (each := [one for one in results if one["kind"] == kind])
    ]
    note = f"""
Milliseconds a batch, of one sample and of 32. *compiled*: `torch.compile`'s time over
memcfg's, where it was measured.
{place["processor"]}, {place["threads"]} threads, PyTorch {place["torch"]},
{place["date"]}. Geometric means of the speeds: {" and ".join(means)}.
"""
    text: str = zoo["head"]("network", *SIDES, *(f"{side}, 32" for side in SIDES))
    return text + "".join(f"| {each} |\n" for each in rows) + note
