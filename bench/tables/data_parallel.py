"""The table of training over two processes, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "data_parallel.json"
HEAD = """| network | samples a rank | memcfg, ms a step | DDP, ms a step \
| × as fast | of turns |
| --- | ---: | ---: | ---: | ---: | ---: |
"""


def row(result: dict) -> str:
    seconds = result["seconds"]
    cells = [
        f"`{result['network']}`",
        f"{result['batch']}",
        f"{seconds['memcfg'] * 1e3:,.0f}",
        f"{seconds['ddp'] * 1e3:,.0f}",
        f"{result['ratio']:.2f}",
        f"{min(result['ratios']):.2f} to {max(result['ratios']):.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    facts = textwrap.fill(
        "Two processes of one thread each, SGD with momentum, `all_reduce` over MPI "
        "beside DistributedDataParallel over gloo, in turns; resnet18 takes images of "
        f"32 × 32. {machine['processor']}, {machine['cores']} cores, "
        f"load {machine['load']:.1f}, {machine['date']}.",
        88,
    )
    rows = "\n".join(map(row, document["results"]))
    return f"{HEAD}{rows}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
