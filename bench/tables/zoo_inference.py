"""The table of the zoo's inference against PyTorch, from the committed results."""

from __future__ import annotations

import runpy
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KINDS = ("predict1", "predict32")
OTHER = "zoo_inference_other_processor.json"
SIDES = "memcfg", "PyTorch", "speed", "compiled", "older"


def cells(zoo: dict, result: dict | None, there: dict | None) -> list[str]:
    other = f"{there['speed']:.2f}" if there else ""
    if result is None:
        return ["", "", "", "", other]
    seconds, speed = result["seconds"], result["speed"]
    own, theirs = (f"{seconds[s] * 1e3:.2f}" for s in ("memcfg", result["peer"]))
    return [own, theirs, f"**{speed:.2f}**", zoo["compiled"](result), other]


def by_row(results: list[dict]) -> dict[tuple[str, str], dict]:
    return {(each["network"], each["kind"]): each for each in results}


def means(zoo: dict, results: list[dict]) -> str:
    """Return the geometric means of the speeds, of one sample and of 32."""
    kinds = [[each for each in results if each["kind"] == kind] for kind in KINDS]
    return " and ".join(f"{zoo['mean'](each):.2f}" for each in kinds)


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    zoo = runpy.run_path(str(HERE / "tables" / "zoo.py"))
    document, other = (
        zoo["read"](folder / name) for name in ("zoo_inference.json", OTHER)
    )
    results = document["results"]
    found, there = by_row(results), by_row(other["results"])
    text: str = zoo["head"]("network", *SIDES, *(f"{side}, 32" for side in SIDES))
    for name in dict.fromkeys(each["network"] for each in results):
        row = [
            cell
            for kind in KINDS
            for cell in cells(zoo, found.get((name, kind)), there.get((name, kind)))
        ]
        text += f"| {' | '.join([name, *row])} |\n"
    return (
        text
        + f"""
Milliseconds a batch of one sample, and of 32. *compiled*: `torch.compile`'s time over
memcfg's, where it was measured.

- {zoo["where"](document["environment"])};
  geometric means of the speeds: {means(zoo, results)}.
- *older*: the speed with older code; geometric means {means(zoo, other["results"])};
  {zoo["where"](other["environment"])}.
"""
    )
