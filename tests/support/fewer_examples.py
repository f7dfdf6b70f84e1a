"""A plugin of pytest: ordinary runs draw a quarter of a test's random examples.

All of them, and more, are drawn where a profile of Hypothesis is asked for.
"""

from __future__ import annotations

from hypothesis import settings

LEAST = 5  # which are drawn in any case


def pytest_collection_modifyitems(config, items):
    if config.getoption("--hypothesis-profile"):
        return
    done = set()  # parameters have one test
    for item in items:
        test = getattr(item, "obj", None)
        test = getattr(test, "__func__", test)
        # Hypothesis has no public way to change the settings of a test. A state
        # machine has its own, which are left as they are.
        full = getattr(test, "_hypothesis_internal_use_settings", None)
        if full is not None and test not in done:
            done.add(test)
            count = max(full.max_examples // 4, min(LEAST, full.max_examples))
            test._hypothesis_internal_use_settings = settings(full, max_examples=count)
