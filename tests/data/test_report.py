"""What a pass tells of itself, as a table."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from rich.cells import cell_len

from memcfg.data import Dataset, PipelineReport, StageReport


def stage(name="batch", **known):
    known = {"autotuned": False, "items": 0, "waited_seconds": 0.0} | known
    return StageReport(name=name, **known)


def test_a_table():
    report = PipelineReport(
        (
            stage(parallelism=2, buffer_size=3, items=640, waited_seconds=0.05),
            stage("prefetch", autotuned=True, buffer_size=8, nbytes=4 << 20),
        )
    )
    heading, _, batch, prefetch, legend = str(report).splitlines()
    assert " ".join(heading.split()) == "step threads buffer items waited an item held"
    assert " ".join(batch.split()) == "batch 2 3 640 50.0 ms 78.1 µs 0 B"
    assert " ".join(prefetch.split()) == "prefetch 1* 8* 0 0 s - 4.00 MiB"
    assert legend == "* chosen by AUTOTUNE"


def test_nothing_to_tell():
    assert str(PipelineReport(())) == "No step of this pass has threads or a buffer."
    assert "AUTOTUNE" not in str(PipelineReport((stage(),)))


@pytest.mark.parametrize("name", ["x" * 90, "[red]x[/]", "日本" * 20, "a\nb\x1b[31m"])
def test_whatever_its_name_is_a_line_fits_a_terminal(name):
    large = stage(
        name,
        autotuned=True,
        parallelism=128,
        buffer_size=1024,
        items=10**9,
        waited_seconds=98_765.4,
        nbytes=1 << 39,
    )
    lines = str(PipelineReport((large, large))).splitlines()
    assert len(lines) == 5
    assert max(map(cell_len, lines)) <= 80
    assert all(text in lines[2] for text in ("128*", "1,000,000,000", "512.00 GiB"))
    assert "\x1b" not in "".join(lines)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (12.345, "12.3 s"),
        (1.0, "1.00 s"),
        (0.999, "999 ms"),
        (0.0123, "12.3 ms"),
        (1e-3, "1.00 ms"),
        (4.56e-5, "45.6 µs"),
        (2e-7, "0.20 µs"),
        (5000.0, "5,000 s"),
    ],
)
def test_seconds(seconds, text):
    row = str(PipelineReport((stage(waited_seconds=seconds),))).splitlines()[2]
    assert " ".join(row.split()) == f"batch 1 0 0 {text} - 0 B"


def test_passes_of_a_step_are_told_together():
    one = stage(items=3, waited_seconds=1.0, nbytes=10, buffer_size=1, missing_bytes=5)
    two = stage(items=4, waited_seconds=0.5, nbytes=20, buffer_size=2, missing_bytes=3)
    both = stage(items=7, waited_seconds=1.5, nbytes=30, buffer_size=2, missing_bytes=8)
    assert one.beside(two) == both
    assert one.before(two) == dataclasses.replace(both, nbytes=20, missing_bytes=3)


def test_what_was_held_is_told_behind_the_end():
    dataset = Dataset.from_tensor_slices(np.zeros((64, 256), np.float32)).batch(16)
    batches = iter(dataset.prefetch(2))
    assert sum(1 for _ in batches) == 4
    assert batches.report().stages[0].nbytes == (2 + 2) * 16 * 256 * 4
