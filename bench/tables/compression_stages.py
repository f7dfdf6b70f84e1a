"""The table of the stages of compression, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "compression_stages.json"
HEAD = """| network | stage | bytes | times fewer | accuracy in validation | in the test | time | peak of `predict` | peak of training |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""  # noqa: E501  (a line of Markdown)


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, text, dense = document["environment"], HEAD, {}
    for row in document["results"]:
        given = dense.setdefault(row["network"], row["nbytes"])
        cells = [
            row["network"],
            row["stage"],
            f"{row['nbytes']:,}",
            f"{given / row['nbytes']:.1f}",
            f"{row['validation']:.1%}",
            f"{row['accuracy']:.1%}",
            f"{1e3 * row['seconds']:.2f} ms",
            f"{row['predict_peak'] / 2**20:.2f} MiB",
            f"{row['train_peak'] / 2**20:.2f} MiB",
        ]
        text += f"| {' | '.join(cells)} |\n"
    text += f"""
Batches of 64; one seed. {place["processor"]}, {place["cores"]} cores, one thread for
products, {place["date"]}, load {place["load"]:.1f}.
"""
    if place["load"] > 1.5:
        text += "Times are provisional: others used the machine.\n"
    return text
