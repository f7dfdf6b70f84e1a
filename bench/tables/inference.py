"""The table of the modes of ParallelInference, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "inference.json"
HEAD = """| mode | requests a second | × sequential \
| processor time a request, µs | samples a batch \
| a lone request, µs | × `predict_on_batch` |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
"""


def row(case: dict) -> str:
    cells = [
        f"`{case['mode']}`",
        f"{case['requests_a_second']:,.0f}",
        f"{case['times_sequential']:.1f}",
        f"{case['processor_seconds'] * 1e6:,.0f}",
        f"{case['samples_a_batch']:.1f}",
        f"{case['lone_seconds'] * 1e6:,.0f}",
        f"{case['times_predict_on_batch']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    facts = textwrap.fill(
        f"Requests of one sample to {machine['network']} with one worker: "
        f"{machine['requests']:,} from {machine['threads']} threads, the median of "
        f"{machine['rounds']} rounds in turns. {machine['processor']}, "
        f"{machine['cores']} cores, load {machine['load']:.1f}, {machine['date']}.",
        88,
    )
    rows = "\n".join(map(row, document["cases"]))
    return f"{HEAD}{rows}\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
