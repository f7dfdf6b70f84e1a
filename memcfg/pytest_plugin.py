"""A plugin for pytest: ``@pytest.mark.limit_memory("64MiB")``.

The test function runs in a budget of the bytes in use before it and those of the mark.
A test that needs more fails with a `ResourceExhaustedError`, which names the holders.
Fixtures are not limited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

__all__: list[str] = []

_MARK = "limit_memory"


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark in ``pytest --markers``."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(limit): fail the test if models, datasets and NumPy's arrays take "
        'more bytes than the limit, such as "64MiB" (memcfg)',
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Run a test in the budget that its mark names."""
    mark = item.get_closest_marker(_MARK)
    if mark is None:
        return (yield)
    from memcfg import config  # not where no test has the mark
    from memcfg.units import parse_bytes

    if len(mark.args) != 1 or mark.kwargs:
        raise pytest.UsageError(f"{_MARK} takes one limit, such as '64MiB'")
    device = config.list_logical_devices("CPU")[0]
    with config.budget(config.get_memory_usage(device) + parse_bytes(mark.args[0])):
        return (yield)
