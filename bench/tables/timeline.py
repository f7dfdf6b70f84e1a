"""A picture of the bytes in use over one training step, beside PyTorch's.

``python bench timeline --output bench/results/timeline.json`` measures them.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

RESULTS = Path(__file__).resolve().parents[1] / "results" / "timeline.json"
NAMES = {"resnet50": "ResNet-50", "mobilenet": "MobileNet"}
WIDE, HIGH, LEFT, RIGHT, TOP, FOOT = 760, 360, 56, 24, 66, 46
GROUND, INK, FAINT, GRID = "#fdfdfb", "#1c2126", "#5d666e", "#e3e5e7"
COLOURS = ("#9aa3ab", "#1f6fb2", "#2a8f57", "#c2571a")
GIB = 2**30


def text(x: float, y: float, words: str, anchor="start", fill=INK, size=12.5) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" '
        f'font-size="{size}">{escape(words)}</text>'
    )


def label(result: dict, most: int) -> str:
    """Return what the legend says of a side."""
    peak = result.get("peak_bytes", max(result["curve"]))
    name = "PyTorch, eager"
    if result["side"] == "memcfg":
        limit = result["limit_bytes"]
        name = f"memcfg within {limit / most:.0%}" if limit else "memcfg"
    return f"{name}: {peak / GIB:.2f} GiB, {result['seconds']:.1f} s"


def picture(path: Path = RESULTS) -> str:
    """Return the curves as SVG, which stands on a light ground of its own."""
    found = json.loads(path.read_text(encoding="utf-8"))
    results = found["results"]
    most = max(results[0]["curve"])
    longest = max(each["seconds"] for each in results)
    ceiling = most * 1.06
    wide, high = WIDE - LEFT - RIGHT, HIGH - TOP - FOOT
    name = NAMES[found["network"]]
    title = f"Bytes in use in one training step of {name}, batch {results[0]['batch']}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDE} {HIGH}" '
        f'width="{WIDE}" height="{HIGH}" font-family="system-ui, sans-serif">',
        f"<title>{escape(title)}</title>",
        f'<rect width="100%" height="100%" rx="6" fill="{GROUND}"/>',
        text(LEFT, 26, title, size=16),
    ]

    def at(seconds: float, live: float) -> tuple[float, float]:
        return LEFT + seconds / longest * wide, TOP + high * (1 - live / ceiling)

    step = GIB / 4 if most < 2 * GIB else GIB / 2
    for number in range(int(ceiling / step) + 1):
        _, y = at(0, number * step)
        parts.append(f'<path d="M{LEFT} {y:.1f}h{wide}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, y + 4, f"{number * step / GIB:g}", "end", FAINT))
    parts.append(text(LEFT - 8, TOP - 12, "GiB", "end", FAINT))
    for number in range(int(longest) + 1):
        x, _ = at(number, 0)
        parts.append(text(x, HIGH - FOOT + 18, f"{number} s", "middle", FAINT))
    for colour, each in zip(COLOURS, results, strict=False):
        width = each["seconds"] / len(each["curve"])
        points = [at(k * width, live) for k, live in enumerate(each["curve"])]
        path_ = " ".join(f"H{x:.1f}V{y:.1f}" for x, y in points)
        x, floor = at(0, 0)
        end, _ = at(each["seconds"], 0)
        line = f"M{x:.1f} {floor:.1f}{path_}H{end:.1f}V{floor:.1f}"
        fill = f'fill="{colour}" fill-opacity="{0.35 if each is results[0] else 0.12}"'
        parts.append(
            f'<path d="{line}" {fill} stroke="{colour}" stroke-width="1.6" '
            'stroke-linejoin="round"/>'
        )
    for number, each in enumerate(results):
        x = LEFT + number * wide / len(results)
        parts.append(
            f'<rect x="{x:.1f}" y="39" width="10" height="10" rx="2" '
            f'fill="{COLOURS[number]}"/>'
        )
        parts.append(text(x + 15, 48.5, label(each, most), size=11.5))
    place = found["environment"]
    words = f"{place['processor']}, {place['threads']} threads, {place['date']}"
    parts.append(text(WIDE - RIGHT, HIGH - 8, words, "end", FAINT, 10.5))
    return "\n".join([*parts, "</svg>"]) + "\n"
