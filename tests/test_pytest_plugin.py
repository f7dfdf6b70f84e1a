"""``@pytest.mark.limit_memory``."""

from __future__ import annotations

from textwrap import dedent

import pytest


@pytest.fixture
def outcomes(pytester):
    """Return a function that runs a test file in a process of its own."""

    def run(text):
        pytester.makepyfile("import numpy as np, pytest\n" + dedent(text))
        done = pytester.runpytest_subprocess(
            "-p", "memcfg.pytest_plugin", "-W", "error"
        )
        return done, done.parseoutcomes()

    return run


def test_a_test_that_exceeds_fails_with_our_error(outcomes):
    done, counts = outcomes(
        """
        @pytest.fixture
        def outside():
            return np.ones(2**23)

        @pytest.mark.limit_memory("8MiB")
        def test_within(outside):
            assert np.ones(2**19).sum() == 2**19

        @pytest.mark.limit_memory("8MiB")
        def test_beyond():
            np.ones(2**21)

        def test_without():
            np.ones(2**21)
        """
    )
    assert counts == {"passed": 2, "failed": 1}
    done.stdout.fnmatch_lines(["*ResourceExhaustedError: A request does not fit*"])


def test_what_was_in_use_before_does_not_count(outcomes):
    _, counts = outcomes(
        """
        import memcfg as mc

        @pytest.fixture(scope="module")
        def held():
            return mc.config.logical_device("CPU:0").pool.allocate(2**24)

        @pytest.mark.limit_memory("8MiB")
        def test_within(held):
            np.ones(2**19)

        @pytest.mark.limit_memory(2**20)
        class TestAll:
            def test_within(self, held):
                np.ones(2**16)

            @pytest.mark.xfail(raises=mc.errors.ResourceExhaustedError, strict=True)
            def test_beyond(self, held):
                np.ones(2**18)
        """
    )
    assert counts == {"passed": 2, "xfailed": 1}


@pytest.mark.parametrize(
    "mark", ["limit_memory", "limit_memory()", "limit_memory(1, 2)"]
)
def test_a_mark_without_one_limit_is_an_error(outcomes, mark):
    done, counts = outcomes(f"@pytest.mark.{mark}\ndef test_it(): pass")
    assert counts == {"failed": 1}
    done.stdout.fnmatch_lines(["*limit_memory takes one limit*"])


def test_the_mark_is_described_and_costs_nothing_unused(pytester):
    pytester.makepyfile(
        "import sys\ndef test_it(): assert 'memcfg.config' not in sys.modules"
    )
    done = pytester.runpytest_subprocess(
        "-p", "memcfg.pytest_plugin", "--strict-markers"
    )
    assert done.ret == 0
    done = pytester.runpytest_subprocess("-p", "memcfg.pytest_plugin", "--markers")
    done.stdout.fnmatch_lines(["@pytest.mark.limit_memory(limit): *"])
