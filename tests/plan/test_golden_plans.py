"""Plans of the zoo are those that were recorded, and those of `auto` no slower."""

from __future__ import annotations

import json

import pytest
from golden_plans import AUTO, NETWORKS, RECORD, is_worse, rows, short

KNOWN = json.loads(RECORD.read_text(encoding="utf-8"))


def changes(network, methods=None, **settings):
    """List the plans that changed: of `auto` those that are slower, or are no more."""
    found, compared = [], 0
    for key, planned, _ in rows([network], methods, KNOWN, **settings):
        method = key.split()[-1]
        if method == "limits":  # those of the record
            continue
        for now, before in zip(short(method, planned), KNOWN[key], strict=False):
            compared += 1
            if now != before and (method not in AUTO or is_worse(now, before)):
                found.append((key, before, now))
    assert compared
    return found


@pytest.mark.parametrize("network", ["lenet5", "lstm_lm"])
def test_auto_is_no_slower_than_it_was(network):
    assert changes(network, ["auto"], settings=["alone", "host"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("network", NETWORKS)
def test_every_plan_is_as_it_was(network):
    assert changes(network) == []


@pytest.mark.parametrize(
    ("now", "before", "worse"),
    [
        (["a", 1, 2.0], ["b", 2, 2.0], False),
        (["a", 1, 2.1], ["b", 2, 2.0], True),
        (["refused", 9, None], ["b", 2, 2.0], True),
        (["a", 1, 9.0], ["refused", 9, None], False),
        (["refused", 9, None], ["refused", 8, None], True),
    ],
)
def test_what_is_slower_or_refused_is_worse(now, before, worse):
    assert is_worse(now, before) == worse
