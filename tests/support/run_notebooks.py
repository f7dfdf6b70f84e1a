"""The notebooks of docs/notebooks, run by a kernel.

``python tests/support/run_notebooks.py --record`` replaces the outputs that are
committed with them; names of notebooks select some. Without it, what differs is told.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

import nbclient
import nbformat

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("[0-9]*.ipynb"))
ALIKE = 0.8  # the part of the lines that is the same on every machine


def run(path: Path) -> dict:
    """Return a notebook with what its cells show now; an error of a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook, timeout=120, resources={"metadata": {"path": folder}}
        )
        client.execute()
    found: dict = json.loads(nbformat.writes(notebook))
    for cell in found["cells"]:
        cell["metadata"] = {}  # times
        if cell["cell_type"] == "code":
            cell["outputs"] = [*joined(cell["outputs"])]
    return found


def joined(outputs: list[dict]) -> Iterator[dict]:
    """Yield outputs: streams in one piece, and HTML without its text form."""
    stream: list[str] = []
    for output in outputs:
        if output["output_type"] == "stream":
            assert output["name"] == "stdout", output["text"]
            stream += output["text"]
            continue
        if "text/html" in output["data"]:
            del output["data"]["text/plain"]
        yield {**output, "metadata": {}}
    if stream:
        lines = "".join(stream).splitlines(keepends=True)
        yield {"name": "stdout", "output_type": "stream", "text": lines}


def text_of(cell: dict) -> str:
    """Return what a cell shows as text."""
    parts = []
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        html = re.sub(r"<[^>]*>", "\n", "".join(data.get("text/html", "")))
        parts.append("".join(output.get("text", data.get("text/plain", html))))
    return "\n".join(parts)


def words(text: str) -> list[str]:
    """The lines of a text without numbers, bars and addresses."""
    plain = re.sub(r"0x[0-9a-f]+|[\d.,]+|[█*_#-]+", "0", text)
    return [" ".join(line.split()) for line in plain.splitlines()]


def differences(recorded: dict, found: dict) -> list[str]:
    """Tell which cells show something else than what was recorded."""
    told = []
    for one, other in zip(recorded["cells"], found["cells"], strict=True):
        wanted, got = text_of(one), text_of(other)
        alike = SequenceMatcher(None, words(wanted), words(got), autojunk=False)
        if alike.ratio() < ALIKE:
            told.append(f"{''.join(one['source'])}\nwas\n{wanted}\nis\n{got}")
    return told


def main() -> int:
    """Run notebooks, and record or compare what they show."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--record", action="store_true")
    options = parser.parse_args()
    status = 0
    for path in NOTEBOOKS:
        if options.names and not any(name in path.name for name in options.names):
            continue
        found = run(path)
        if options.record:
            text = json.dumps(found, indent=1, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
            continue
        for told in differences(json.loads(path.read_text(encoding="utf-8")), found):
            print(f"{path.name}: {told}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
