"""How many random examples an ordinary run draws."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ([], {"many": 30, "few": 5, "fewest": 3, "method": 25}),
        (
            ["--hypothesis-profile=full"],
            {"many": 120, "few": 20, "fewest": 3, "method": 200},
        ),
    ],
)
def test_a_quarter_is_drawn_but_never_next_to_none(pytester, options, counts):
    pytester.makeconftest("""
        from hypothesis import settings
        settings.register_profile("full", max_examples=200, database=None)
        settings.register_profile("usual", max_examples=100, database=None)
        settings.load_profile("usual")
    """)
    pytester.makepyfile("""
        from collections import Counter
        from hypothesis import given, settings
        from hypothesis import strategies as st
        from hypothesis.stateful import RuleBasedStateMachine, rule

        drawn = Counter()

        @given(st.integers())
        @settings(max_examples=120)
        def test_many(number): drawn["many"] += 1

        @settings(max_examples=20)
        @given(st.integers())
        def test_few(number): drawn["few"] += 1

        @given(st.integers())
        @settings(max_examples=3)
        def test_fewest(number): drawn["fewest"] += 1

        class TestMethods:
            @given(st.integers())
            def test_method(self, number): drawn["method"] += 1

        class Machine(RuleBasedStateMachine):
            @rule()
            def step(self): pass

        TestMachine = Machine.TestCase  # whose settings are its own

        def test_counts(): print("drawn:", sorted(drawn.items()))
    """)
    result = pytester.runpytest("-p", "fewer_examples", "-q", "-s", *options)
    result.assert_outcomes(passed=6)
    assert f"drawn: {sorted(counts.items())}\n" in result.stdout.str()
