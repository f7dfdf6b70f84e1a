"""A plugin of pytest: tests that take long and reach nothing new are slow.

``long_tests.txt`` names them, a line each: a test with its parameters, or all cells of
a test. ``python tests/record_long_tests.py`` writes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LISTED = Path(__file__).with_suffix(".txt")


def pytest_collection_modifyitems(items):  # after `covering_cells`, before marks
    listed = {*LISTED.read_text(encoding="utf-8").splitlines()}
    for item in items:
        names = {item.nodeid, item.nodeid.partition("[")[0]}
        if names & listed and not item.get_closest_marker("always"):
            item.add_marker(pytest.mark.slow)
