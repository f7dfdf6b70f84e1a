"""The table of whole and encoded gradients, from the committed results."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "shared_gradients.json"
HEAD = """| workers | `training_mode` | accuracy in the test \
| sent | of whole gradients | in the last epoch |
| ---: | --- | ---: | ---: | ---: | ---: |
"""


def table(path: Path = RESULTS) -> str:
    """Return the table of a file of results, as Markdown."""
    document = json.loads(path.read_text(encoding="utf-8"))
    machine = document["environment"]
    rows = []
    for case in document["cases"]:
        if case["mode"] == "all_reduce":
            whole = case
        share = case["sent_bytes"] / whole["sent_bytes"]
        last = case["sent_in_last_epoch"] / whole["sent_in_last_epoch"]
        rows.append(
            f"| {case['workers']} | `{case['mode']}` | {case['accuracy']:.2%} "
            f"| {case['sent_bytes'] / 1e6:.2f} MB | {share:.1%} | {last:.1%} |"
        )
    facts = textwrap.fill(
        "The handwritten digits of scikit-learn, two dense layers, Adam, "
        f"{machine['epochs']} epochs; means of {machine['seeds']} seeds. Bytes are "
        f"those of all workers together. {machine['processor']}, {machine['date']}.",
        88,
    )
    return HEAD + "\n".join(rows) + f"\n\n{facts}\n"


if __name__ == "__main__":
    print(table())
