"""The table of the codes of AlexNet and VGG-16, from the committed results."""

from __future__ import annotations

import json
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results"
DECODERS = {"coding.json": "constriction", "coding_alexnet.json": "memcfg"}
CODERS = {"none": "fixed widths", "huffman": "Huffman codes", "range": "range codes"}


def part(file: str, decoder: str) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads((RESULTS / file).read_text(encoding="utf-8"))
    place, totals = document["environment"], document["totals"]
    text = f"{place['processor']}, {place['cores']} cores, {place['date']}, load "
    text += f"{place['load']:.1f};\n{decoder} decodes range codes:\n\n"
    text += "| | MB | times fewer | the paper's layers | decoded | slowest layer |\n"
    text += "| --- |" + " ---: |" * 5 + "\n"
    for name, total in totals.items():
        network, coder = name.split()
        slowest = min(
            each["decode_gigabytes_per_second"]
            for each in document["results"]
            if (each["network"], each["coder"]) == (network, coder)
        )
        paper = total["paper_layers_bytes"] / 1e6 if coder == "huffman" else None
        cells = [
            f"{network}, {CODERS[coder]}",
            f"{total['nbytes'] / 1e6:.2f}",
            f"{total['ratio']:.1f}",
            "" if paper is None else f"{paper:.2f} MB",
            f"{total['decode_gigabytes_per_second']:.1f} GB/s",
            f"{slowest:.2f} GB/s",
        ]
        text += f"| {' | '.join(cells)} |\n"
    return f"{text}\n"


def table() -> str:
    """Return the tables of all results, as Markdown."""
    text = "".join(part(*each) for each in DECODERS.items())
    return f"{text}Gigabytes (10^9) of float32 weights a second of one thread.\n"
