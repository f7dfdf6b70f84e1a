"""The table of the zoo's networks beside PyTorch, out of the committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """| network, batch | memcfg | PyTorch | speed | memcfg | PyTorch | memory |
| --- | --- | --- | --- | --- | --- | --- |
"""


def row(result: dict, how: str = "") -> str:
    """Return a row; memory is compared with PyTorch's in float32."""
    seconds, memory = result["seconds"], result["memory"]
    peer = result["peer"]
    other = result.get("memory_peer", peer)
    cells = [
        f"{result['network']}, {result['batch']}{how}",
        f"{seconds['memcfg'] * 1e3:.2f}",
        f"{seconds[peer] * 1e3:.2f}",
        f"**{result['speed']:.2f}**",
        f"{memory['memcfg'] / 2**20:.0f}",
        f"{memory[other] / 2**20:.0f}",
        f"**{result['memory_ratio']:.2f}**",
    ]
    return "| " + " | ".join(cells) + " |"


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def mean(results: list[dict]) -> float:
    """Return the geometric mean of the speeds."""
    return math.exp(sum(math.log(each["speed"]) for each in results) / len(results))


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    document = read(folder / "zoo.json")
    results, place = document["results"], document["environment"]
    note = f"""
Milliseconds a training step and MiB of the process, above what it had after its
imports; weights are part of both. {place["processor"]}, {place["threads"]} threads,
PyTorch {place["torch"]}, {place["date"]}. Geometric mean of the speeds under `auto()`:
{mean(results):.2f}.
"""
    rows = list(map(row, results))
    for path in sorted(folder.glob("zoo_train_*.json")):
        other = read(path)
        used = other["environment"]
        how = [f"`{used['policy']}()`"] * (used["policy"] != "auto")
        dtype = used.get("dtype", "float32")
        how += [f"`{dtype}`"] * (dtype != "float32")
        name = "".join(f", {each}" for each in how)
        rows += [row(each, name) for each in other["results"]]
    return HEAD + "\n".join(rows) + "\n" + note
