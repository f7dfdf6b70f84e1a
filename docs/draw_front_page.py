"""Draw the pictures at the top of the README, as files beside this one.

`timeline.svg` is the timeline of a training step of ResNet-50 within half of the memory
that it takes without a limit. Its plan is that of the reference kernels, which is the
same on every machine. `badges.svg` says what pyproject.toml says of the package. Both
have colours for light and for dark pages, and a ground of their own.

``python docs/draw_front_page.py``
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
TIMELINE, BADGES = ROOT / "docs" / "timeline.svg", ROOT / "docs" / "badges.svg"
COMMAND = ("timeline", "resnet50", "--batch", "32", "--limit", "50%", "--output")

LETTER, PAD, GAP, HEIGHT = 6.6, 8, 6, 22  # pixels; a letter is one of 11 pixels
STYLE = (
    "<style>.l{fill:#24292f}.v{fill:#e7ebef}.t{fill:#1b1f24}.w{fill:#fff}"
    "@media (prefers-color-scheme:dark)"
    "{.l{fill:#3d444d}.v{fill:#1f262e}.t{fill:#e6e8eb}}</style>"
)


def facts() -> list[tuple[str, str]]:
    """What badges say: a label and a value, from the metadata of the package."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    project = tomllib.loads(text)["project"]
    named = [each.split(" :: ") for each in project["classifiers"]]
    pythons = [each[-1] for each in named if re.fullmatch(r"3\.\d+", each[-1])]
    systems = [each[-1] for each in named if each[0] == "Operating System"]
    stage = next(each[-1] for each in named if each[0] == "Development Status")
    return [
        ("Python", f"{pythons[0]} to {pythons[-1]}"),
        ("system", ", ".join(systems)),
        ("licence", project["license"]),
        ("types", "checked" if ["Typing", "Typed"] in named else "none"),
        ("status", stage.partition(" - ")[2].lower()),
    ]


def badges() -> str:
    """Return the badges, side by side."""
    shapes, left = [], 0.0
    for label, value in facts():
        for text, box, letters in ((label, "l", "w"), (value, "v", "t")):
            wide = LETTER * len(text) + 2 * PAD
            middle = left + wide / 2
            shapes.append(
                f'<rect x="{left:.1f}" width="{wide:.1f}" height="{HEIGHT}" '
                f'class="{box}"/><text x="{middle:.1f}" y="15" class="{letters}" '
                f'text-anchor="middle">{escape(text)}</text>\n'
            )
            left += wide
        left += GAP
    words = ", ".join(f"{label} {value}" for label, value in facts())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left - GAP:.0f}" '
        f'height="{HEIGHT}" role="img" aria-label="{escape(words)}" font-size="11" '
        f'font-family="Helvetica, Arial, sans-serif">{STYLE}\n{"".join(shapes)}</svg>\n'
    )


def draw_timeline(path: Path) -> None:
    """Plan the step and write its timeline."""
    command = [sys.executable, "-m", "memcfg", *COMMAND, str(path)]
    kept = {name: text for name, text in os.environ.items() if "MEMCFG" not in name}
    environment = kept | {"MEMCFG_KERNELS": "reference"}
    subprocess.run(command, check=True, env=environment, cwd=ROOT)


if __name__ == "__main__":
    BADGES.write_text(badges(), encoding="utf-8")
    draw_timeline(TIMELINE)
