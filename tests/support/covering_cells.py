"""A plugin of pytest: the cells of a product that an ordinary run can spare are slow.

In what is left any two values of different parameters of a test meet, or any so many as
its mark `strength` says; `-m "slow or not slow"` runs the product.
"""

from __future__ import annotations

import pytest
from covering import covering


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "strength(t): so many parameters' values meet in an ordinary run, by default 2;"
        " the whole product is slow",
    )


@pytest.hookimpl(tryfirst=True)  # before marks are selected
def pytest_collection_modifyitems(items):
    tests: dict[str, list[pytest.Function]] = {}
    for item in items:
        if hasattr(item, "callspec"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for cells in tests.values():
        # What is slow anyway covers nothing in an ordinary run.
        cells = [cell for cell in cells if not cell.get_closest_marker("slow")]
        if cells:
            _mark_spare_ones(cells)


def _mark_spare_ones(cells):
    mark = cells[0].get_closest_marker("strength")
    chosen = {*covering(_rows(cells), mark.args[0] if mark else 2)}
    for place, cell in enumerate(cells):
        if place not in chosen:
            cell.add_marker(pytest.mark.slow)


def _rows(cells):
    """Which value each cell has on each axis; arguments given together are one axis."""
    columns = []
    for name in cells[0].callspec.params:
        numbers = {}  # a value is one object in all cells
        values = [id(cell.callspec.params[name]) for cell in cells]
        columns.append(tuple(numbers.setdefault(each, len(numbers)) for each in values))
    return list(zip(*dict.fromkeys(columns), strict=True))
