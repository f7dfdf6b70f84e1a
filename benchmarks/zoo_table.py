"""The table of the zoo's networks beside PyTorch, out of the committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
OTHER = "zoo_other_processor.json"
TITLES = "network, batch", "memcfg", "PyTorch", "speed", "there", "memcfg", "PyTorch"
HEAD = f"| {' | '.join(TITLES)} | memory |\n{'| --- ' * 8}|\n"


def row(result: dict, how: str = "", there: str = "") -> str:
    """Return a row; memory is compared with PyTorch's in float32."""
    seconds, memory = result["seconds"], result["memory"]
    peer = result["peer"]
    other = result.get("memory_peer", peer)
    cells = [
        f"{result['network']}, {result['batch']}{how}",
        f"{seconds['memcfg'] * 1e3:.2f}",
        f"{seconds[peer] * 1e3:.2f}",
        f"**{result['speed']:.2f}**",
        there,
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


def where(place: dict) -> str:
    """Return what was measured on, and when."""
    return (
        f"{place['processor']}, {place['threads']} threads, PyTorch "
        f"{place['torch']}, {place['date']}"
    )


def table(folder: Path = HERE / "results") -> str:
    """Return the table of a folder's results, as Markdown."""
    document, other = read(folder / "zoo.json"), read(folder / OTHER)
    results = document["results"]
    there = {each["network"]: f"{each['speed']:.2f}" for each in other["results"]}
    rows = [row(each, there=there.get(each["network"], "")) for each in results]
    notes = []
    for path in sorted(folder.glob("zoo_train_*.json")):
        of = read(path)
        used = of["environment"]
        how = [f"`{used['policy']}()`"] * (used["policy"] != "auto")
        dtype = used.get("dtype", "float32")
        how += [f"`{dtype}`"] * (dtype != "float32")
        name = "".join(f", {each}" for each in how)
        rows += [row(each, name) for each in of["results"]]
        notes.append(f"- {' '.join(how)}: {where(used)}.")
    own = [each for each in results if each["network"] in there]
    notes = [
        f"- Float32, `auto()`:\n  {where(document['environment'])};",
        f"  geometric mean of the speeds: {mean(results):.2f}.",
        f"- *There*: {where(other['environment'])}, on code of that day;",
        f"  geometric mean {mean(other['results']):.2f}, of the same networks here "
        f"{mean(own):.2f}.",
        *notes,
    ]
    note = """
Milliseconds a training step and MiB of the process, above what it had after its
imports; weights are part of both.

"""
    return HEAD + "\n".join(rows) + "\n" + note + "\n".join(notes) + "\n"
