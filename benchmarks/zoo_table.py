"""The table of the zoo's networks beside PyTorch, out of the committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEAD = """| network, batch | memcfg | PyTorch | speed | memcfg | PyTorch | memory |
| --- | --- | --- | --- | --- | --- | --- |
"""


def row(result: dict, policy: str = "") -> str:
    seconds, memory = result["seconds"], result["memory"]
    peer = result["peer"]
    cells = [
        f"{result['network']}, {result['batch']}{policy}",
        f"{seconds['memcfg'] * 1e3:.2f}",
        f"{seconds[peer] * 1e3:.2f}",
        f"**{result['speed']:.2f}**",
        f"{memory['memcfg'] / 2**20:.0f}",
        f"{memory[peer] / 2**20:.0f}",
        f"**{result['memory_ratio']:.2f}**",
    ]
    return "| " + " | ".join(cells) + " |"


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    document = json.loads((folder / "zoo.json").read_text(encoding="utf-8"))
    results, place = document["results"], document["environment"]
    speeds = [math.log(each["speed"]) for each in results]
    mean = math.exp(sum(speeds) / len(speeds))
    note = f"""
Milliseconds a training step and MiB of the process, above what it had after its
imports; weights are part of both. {place["processor"]}, {place["threads"]} threads,
PyTorch {place["torch"]}, {place["date"]}. Geometric mean of the speeds under `auto()`:
{mean:.2f}.
"""
    rows = list(map(row, results))
    for path in sorted(folder.glob("zoo_*.json")):
        other = json.loads(path.read_text(encoding="utf-8"))
        name = f", `{other['environment']['policy']}()`"
        rows += [row(each, name) for each in other["results"]]
    return HEAD + "\n".join(rows) + "\n" + note
