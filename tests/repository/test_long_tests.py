"""Tests that an ordinary run leaves out are listed by name, and stay reachable."""

import ast
import runpy
from functools import cache
from pathlib import Path

import numpy as np
from long_tests import LISTED

ROOT = Path(__file__).resolve().parents[2]
choose = runpy.run_path(str(ROOT / "tests" / "record_long_tests.py"))["choose"]


@cache
def names_in(file):
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {getattr(node, "name", getattr(node, "id", None)) for node in ast.walk(tree)}


def test_each_line_names_a_test():
    lines = LISTED.read_text(encoding="utf-8").splitlines()
    assert lines == sorted({*lines})
    for line in lines:
        file, *names = line.partition("[")[0].split("::")
        assert {*names} - {"runTest"} <= names_in(file), line


def test_listed_tests_are_slow_but_for_a_mark(pytester, monkeypatch):
    listed = pytester.makefile(
        ".txt", it="test_it.py::test_a[1]\ntest_it.py::test_b\ntest_it.py::test_c"
    )
    monkeypatch.setattr("long_tests.LISTED", listed)
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.parametrize("n", [1, 2])
        def test_a(n): pass

        @pytest.mark.parametrize("n", [1, 2])
        def test_b(n): pass

        @pytest.mark.always
        def test_c(): pass
        """
    )
    pytester.makeini("[pytest]\nmarkers =\n  slow: x\n  always: x\n")
    run = pytester.inline_run("-p", "long_tests", "-m", "not slow")
    passed, _, _ = run.listoutcomes()
    assert [each.nodeid for each in passed] == [
        "test_it.py::test_a[2]",
        "test_it.py::test_c",
    ]


def test_what_is_listed_reaches_nothing_that_others_do_not():
    generator = np.random.default_rng(0)
    tests = [
        (
            f"tests/a.py::test_{i // 3}[{i % 3}]",
            generator.uniform(0, 2),
            np.flatnonzero(generator.random(200) < 0.02),
        )
        for i in range(300)
    ]
    listed = {*choose(tests)}
    left = [
        (name, seconds, arcs)
        for name, seconds, arcs in tests
        if not {name, name.partition("[")[0]} & listed
    ]
    everything = {arc for _, _, arcs in tests for arc in arcs.tolist()}
    assert {arc for _, _, arcs in left for arc in arcs.tolist()} == everything
    assert sum(s for _, s, _ in left) < 0.8 * sum(s for _, s, _ in tests)
    assert (
        min(s for n, s, _ in tests if (n, s) not in {(m, t) for m, t, _ in left}) > 0.15
    )
