"""The table of the codes of AlexNet and VGG-16, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "coding.json"
CODERS = {"none": "fixed widths", "huffman": "Huffman codes", "range": "range codes"}


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    place, totals = document["environment"], document["totals"]
    text = "| | MB | times fewer | the paper's layers | decoded | slowest layer |\n"
    text += "| --- |" + " ---: |" * 5 + "\n"
    for name, total in totals.items():
        network, coder = name.split()
        rows = [
            each["decode_gigabytes_per_second"]
            for each in document["results"]
            if (each["network"], each["coder"]) == (network, coder)
        ]
        paper = total["paper_layers_bytes"] / 1e6 if coder == "huffman" else None
        cells = [
            f"{network}, {CODERS[coder]}",
            f"{total['nbytes'] / 1e6:.2f}",
            f"{total['ratio']:.1f}",
            "" if paper is None else f"{paper:.2f} MB",
            f"{total['decode_gigabytes_per_second']:.1f} GB/s",
            f"{min(rows):.2f} GB/s",
        ]
        text += f"| {' | '.join(cells)} |\n"
    text += f"""
Gigabytes (10^9) of float32 weights a second of one thread.
{place["processor"]}, {place["cores"]} cores, {place["date"]}, load {place["load"]:.1f}.
"""
    if place["load"] > 1:
        text += "Times are provisional: others used the machine.\n"
    return text
