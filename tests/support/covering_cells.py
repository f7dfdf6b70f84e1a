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
        "strength(t, unless): so many parameters' values meet in an ordinary run, by "
        "default 2, and the whole product is slow; there is no cell whose parameters "
        "`unless` takes and is true for",
    )


@pytest.hookimpl(tryfirst=True)  # before marks are selected
def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if _is_left_out(item)]
    config.hook.pytest_deselected(items=left_out)
    gone = {*left_out}
    items[:] = [item for item in items if item not in gone]
    tests: dict[tuple[str, bool], list[pytest.Function]] = {}
    for item in items:
        # What is slow anyway, or needs a GPU, covers nothing where that does not run.
        if hasattr(item, "callspec") and not item.get_closest_marker("slow"):
            name, needs_gpu = item.nodeid.partition("[")[0], "gpu" in item.keywords
            tests.setdefault((name, needs_gpu), []).append(item)
    for cells in tests.values():
        mark = cells[0].get_closest_marker("strength")
        strength = mark.args[0] if mark and mark.args else 2
        chosen = {*covering(_rows(cells), strength)}
        for place, cell in enumerate(cells):
            if place not in chosen:
                cell.add_marker(pytest.mark.slow)


def _is_left_out(item):
    mark = item.get_closest_marker("strength")
    unless = mark and mark.kwargs.get("unless")
    return (
        unless is not None
        and hasattr(item, "callspec")
        and unless(item.callspec.params)
    )


def _rows(cells):
    """Which value each cell has on each axis; arguments given together are one axis."""
    axes = {name: (name,) for name in cells[0].callspec.params}
    for mark in cells[0].iter_markers("parametrize"):
        names = mark.args[0]
        if isinstance(names, str):
            names = [name.strip() for name in names.split(",")]
        axes |= dict.fromkeys(names, tuple(names))
    # A value is one object in all cells.
    return [
        [
            tuple(id(cell.callspec.params.get(name)) for name in names)
            for names in dict.fromkeys(axes.values())
        ]
        for cell in cells
    ]
