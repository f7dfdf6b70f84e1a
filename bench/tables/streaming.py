"""The table of inference from a compressed file, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "streaming.json"
NAMES = {
    "decoded": "decoded model",
    "streamed": "streamed",
    "least memory": "streamed, in the least memory",
    "by codes": "streamed, products by codes",
}


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, results = document["environment"], document["results"]
    heads = [f"peak, batch {each['batch']} | time" for each in results]
    text = f"| VGG-16 | {' | '.join(heads)} |\n"
    text += "| --- |" + " ---: | ---: |" * len(results) + "\n"
    for name, shown in NAMES.items():
        cells = [shown]
        for each in results:
            found = each["models"][name]
            cells += [f"{found['peak_bytes'] / 2**20:.1f} MiB", f"{found['ratio']:.2f}"]
        text += f"| {' | '.join(cells)} |\n"
    busy = place["load"] > place["cores"] + 1  # that of the benchmark's threads, and 1
    others = ": others worked on the machine" if busy else ""
    return f"""{text}
{document["dense_bytes"] / 2**20:.0f} MiB of weights in a file of
{document["file_bytes"] / 1e6:.1f} MB; medians of runs in turn, relative to the decoded
model. {place["processor"]}, {place["cores"]} cores, {place["date"]}, load
{place["load"]:.1f}{others}.
"""
