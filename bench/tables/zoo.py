"""The tables of the zoo's networks against PyTorch, from the committed results."""

from __future__ import annotations

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
OTHER = "zoo_other_processor.json"
AUTO = "memcfg, auto"
MEMORY = "memcfg", "PyTorch", "memory"


def head(*titles: str) -> str:
    return f"| {' | '.join(titles)} |\n{'| --- ' * len(titles)}|\n"


def row(result: dict, *after: str) -> str:
    """Return a row: times, speed, what a table has beside it, memory and its ratio."""
    seconds, memory = result["seconds"], result["memory"]
    peer = result["peer"]
    other = result.get("memory_peer", peer)
    cells = [
        f"{result['network']}, {result['batch']}",
        f"{seconds['memcfg'] * 1e3:.2f}",
        f"{seconds[peer] * 1e3:.2f}",
        f"**{result['speed']:.2f}**",
        *after,
        f"{memory['memcfg'] / 2**20:.0f}",
        f"{memory[other] / 2**20:.0f}",
        f"**{result['memory_ratio']:.2f}**",
    ]
    return "| " + " | ".join(cells) + " |\n"


def compiled(result: dict) -> str:
    """Return the speed beside `torch.compile`, where that ran."""
    found = result.get("compiled", result["seconds"])
    for side, seconds in found.items():
        if side.endswith("compiled"):
            return f"{seconds / found['memcfg']:.2f}"
    return ""


def floor(result: dict) -> str:
    """Return the ratio of memory that weights and momentum have alone."""
    taken = result["memory"][result["memory_peer"]]
    return f"{2 * 4 * result['parameters'] / taken:.2f}"


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
    """Return the tables of a folder's results, as Markdown."""
    document, other = read(folder / "zoo.json"), read(folder / OTHER)
    results = document["results"]
    there = {each["network"]: f"{each['speed']:.2f}" for each in other["results"]}
    text = head(
        *("network, batch", "memcfg", "PyTorch", "speed", "compiled", "older"), *MEMORY
    )
    for each in results:
        text += row(each, compiled(each), there.get(each["network"], ""))
    ratios = [float(ratio) for each in results if (ratio := compiled(each))]
    text += f"""
Milliseconds a training step, and MiB of the process above what it had after its
imports; both include the weights. *compiled*: `torch.compile`'s time over memcfg's.

- {where(document["environment"])};
  geometric mean of the speeds: {mean(results):.2f}."""
    if ratios:
        text += (
            f" Against `torch.compile`: {math.prod(ratios) ** (1 / len(ratios)):.2f}."
        )
    text += f"""
- *older*: the speed with older code; geometric mean {mean(other["results"]):.2f};
  {where(other["environment"])}.

In bfloat16, against `torch.autocast`; memory is compared with PyTorch's in float32:

"""
    of = read(folder / "zoo_train_bfloat16.json")
    text += head(
        *("network, batch", "memcfg", "PyTorch", "speed", "compiled", "floor"), *MEMORY
    )
    text += "".join(row(each, compiled(each), floor(each)) for each in of["results"])
    text += f"""
*floor*: weights and momentum in float32, as a part of PyTorch's memory.
{where(of["environment"])};
geometric mean of the speeds: {mean(of["results"]):.2f}.

With batch normalisation, activations, poolings and concatenations recomputed
(`replay_elementwise()`), in turn with `auto()` without a limit:

"""
    of = read(folder / "zoo_train_replay_elementwise.json")
    text += head(
        *("network, batch", "memcfg", "PyTorch", "speed", "more time", "less memory"),
        *MEMORY,
    )
    places: dict[str, list[str]] = {where(of["environment"]): []}
    for each in of["results"]:
        more, less = (
            each[k]["memcfg"] / each[k][AUTO] - 1 for k in ("seconds", "memory")
        )
        text += row(each, f"{more:.1%}", f"{-less:.0%}")
        if "environment" in each:  # measured elsewhere
            place = where(each["environment"])
            places.setdefault(place, []).append(each["network"])
    first, *others = places
    text += f"\n*more time*, *less memory*: compared with `auto()`.\n{first}"
    for place in others:
        text += f";\n{' and '.join(dict.fromkeys(places[place]))}:\n{place}"
    return text + ".\n"
