"""Notebooks as Markdown, with the outputs that were committed with them."""

from __future__ import annotations

import re
from typing import Any

ANSI = re.compile(r"\x1b\[[0-9;]*m")


def as_markdown(notebook: dict[str, Any]) -> str:
    """Return the cells and outputs of a notebook of format 4."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        parts += [shown(output) for output in cell["outputs"]]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict[str, Any]) -> str:
    """Return an output: HTML if it has that, else text."""
    if output["output_type"] == "stream":
        text = "".join(output["text"])
    elif output["output_type"] == "error":
        text = f"{output['ename']}: {output['evalue']}"
    elif "text/html" in output["data"]:
        html = "".join(output["data"]["text/html"])
        return f'````{{raw}} html\n<div class="output">{html}</div>\n````'
    else:
        text = "".join(output["data"]["text/plain"])
    text = ANSI.sub("", text).rstrip("\n")
    return f"````text\n{text}\n````" if text else ""
