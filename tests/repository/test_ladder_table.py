"""The table of what a limit costs: which of PyTorch's points stands beside ours."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "tables" / "ladder.py"
MIB = 2**20


def point(way, number, seconds, mebibytes, **more):
    sizes = {"seconds": seconds, "memory": mebibytes * MIB}
    return {"way": way, "number": number, **sizes, **more}


@pytest.fixture
def result():
    own = [(1000, "100 %", 1.0, 100), (500, "50 %", 1.1, 60), (300, "floor", 1.5, 20)]
    points = [
        point("memcfg", limit, seconds, nbytes, part=part, method="auto")
        for limit, part, seconds, nbytes in own
    ]
    points += [
        point("memcfg", 500, 1.05, 58, part="50 %", method="look_ahead"),
        point("eager", 0, 2.0, 100),
        point("checkpoint", 2, 2.4, 60),
        point("checkpoint", 4, 2.2, 58),
        point("checkpoint", 8, 2.1, 59),  # more than the faster method of ours
        point("compile", 1.0, 1.6, 101),
        point("compile", 0.5, 2.0, 80),
        point("compile", 0.1, 2.4, 58),
    ]
    size = {"network": "net", "pixels": 64, "batch": 8}
    return {**size, "default_peak_bytes": 1000, "points": points}


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_peer_is_the_cheapest_that_needs_no_more(result):
    rows = [cells(line) for line in runpy.run_path(str(SCRIPT))["rows"](result)]
    whole, half, floor = rows
    assert whole[:3] == ["net, 8, 64²", "100 %", "100"]
    assert whole[3:6] == ["**+0.0%**", "+0.0% (eager)", "+25.0% (budget 0.5)"]
    assert whole[6:] == ["1.000", "2.000"]
    assert half[1:3] == ["50 %", "58"]
    assert half[3:6] == ["**+5.0%**", "+10.0% (4 segments)", "+50.0% (budget 0.1)"]
    assert half[6:] == ["1.050", "2.200"]
    assert floor[1:] == [
        "floor, 30%",
        "20",
        "**+50.0%**",
        *["none"] * 2,
        "1.500",
        "none",
    ]


def test_the_table_has_every_network(result, tmp_path):
    place = {"processor": "P", "threads": 2, "torch": "2", "date": "2026-01-01"}
    path = tmp_path / "ladder.json"
    other = {**result, "network": "other"}
    path.write_text(json.dumps({"environment": place, "results": [result, other]}))
    table = runpy.run_path(str(SCRIPT))["table"]
    text = table(path)
    assert text.count("| net, 8") == text.count("| other, 8") == 3
    widths = {len(cells(line)) for line in text.splitlines() if line.startswith("|")}
    assert widths == {8}
    assert "P, 2 threads, PyTorch 2, 2026-01-01." in text
    assert table(tmp_path / "absent.json") == "None yet.\n"
