"""The table of what a user waits for before training, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "cold_starts.json"
NAMES = {
    "memcfg": "memcfg",
    "keras": "Keras on PyTorch, eager",
    "compile": "`torch.compile`",
    "compile_cached": "`torch.compile`, from its cache",
}
HEAD = """| network | library | import | first step, more | a later step \
| second model, more | load and predict |
| --- | --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds = result["seconds"]
    later = seconds["later"]
    cells = [
        result["network"],
        NAMES[result["contender"]],
        f"{seconds['import']:.2f}",
        f"{seconds['first'] - later:.2f}",
        f"{later:.3f}",
        f"{seconds['second'] - later:.2f}",
        f"{seconds['load']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine, results = document["environment"], document["results"]
    sizes = {each["network"]: each["batch_size"] for each in results}
    batches = " and ".join(f"{size} of {name}" for name, size in sizes.items())
    facts = textwrap.fill(
        "Seconds. *More*: from building a model to the end of its first step, less a "
        f"later step; batches are {batches}. {machine['processor']}, "
        f"{machine['cores']} cores, PyTorch {machine['torch']}, {machine['date']}.",
        88,
    )
    return f"{HEAD}{chr(10).join(map(row, results))}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
