"""The setting of how long a refused model searches for alternatives."""

from __future__ import annotations

import pytest

from memcfg import config


def test_it_is_given_back_and_reset():
    assert config.get_alternatives_seconds() is None
    assert config.set_alternatives_seconds(0.5) is None
    assert config.set_alternatives_seconds(0) == 0.5
    assert config.get_alternatives_seconds() == 0
    config.reset()
    assert config.get_alternatives_seconds() is None


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ("1", TypeError),
        (True, TypeError),
        (-1, ValueError),
        (float("nan"), ValueError),
    ],
)
def test_it_is_a_number_that_is_not_negative(wrong, kind):
    with pytest.raises(kind, match="seconds"):
        config.set_alternatives_seconds(wrong)
    assert config.get_alternatives_seconds() is None
