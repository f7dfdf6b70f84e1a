"""Assertions about workspaces: quiet where they hold, in words where they do not."""

from __future__ import annotations

import numpy as np
import pytest

import memcfg as mc
from memcfg import memory

PAGE = mc.WorkspaceConfig(initial_size=6400, allocation="strict", learning="none")
REUSED = PAGE.replace(on_escape="invalidate")


@pytest.fixture
def make():
    pool = memory.Pool()
    yield lambda name, settings=PAGE: mc.workspace(name, settings, resource=pool)
    mc.destroy_all_workspaces()


def test_no_workspace_is_open(make):
    ws = make("loop")
    mc.testing.assert_no_workspaces_open()
    with make("outer"), ws:
        with pytest.raises(AssertionError) as caught:
            mc.testing.assert_no_workspaces_open("before the epoch")
        assert str(caught.value) == (
            "before the epoch - Open/active workspaces: ['loop', 'outer']"
        )
        with mc.scope_out():
            mc.testing.assert_no_workspaces_open(allow_scoped_out=True)
            with pytest.raises(AssertionError):
                mc.testing.assert_no_workspaces_open()
        with pytest.raises(AssertionError):
            mc.testing.assert_no_workspaces_open(allow_scoped_out=True)
    mc.testing.assert_no_workspaces_open()


def test_a_workspace_is_open(make):
    ws = make("loop")
    for known in ("loop", ws):
        with pytest.raises(AssertionError, match="here - workspace 'loop' is closed; "):
            mc.testing.assert_open(known, "here")
    with pytest.raises(AssertionError, match=r"^workspace 'other' is closed; open are"):
        mc.testing.assert_open("other")
    with ws, make("inner"):
        mc.testing.assert_open(ws)
        mc.testing.assert_open("loop")


def test_a_workspace_is_current(make):
    ws = make("loop")
    mc.testing.assert_current(None)
    for known in (ws, "loop", "other"):
        with pytest.raises(AssertionError, match="the current workspace is none, not"):
            mc.testing.assert_current(known)
    with ws:
        mc.testing.assert_current(ws)
        mc.testing.assert_current("loop")
        with pytest.raises(AssertionError, match="is 'loop', not 'other'; open are"):
            mc.testing.assert_current("other")
        with pytest.raises(AssertionError, match=r"now - .* is 'loop', not None"):
            mc.testing.assert_current(None, "now")
        with mc.scope_out():
            mc.testing.assert_current(None)


def test_arrays_are_valid(make):
    with make("loop", REUSED) as ws:
        a = ws.ones(3)
        mc.testing.assert_valid({"x": [a, (a[1:], "text")], "y": np.ones(3)})
    for value in (a, [a], {"x": (1, a.T)}):
        with pytest.raises(
            AssertionError, match="batch - an array is of cycle 1 of workspace 'loop'"
        ):
            mc.testing.assert_valid(value, "batch")
    with make("quiet") as ws:
        kept = ws.ones(3)
    mc.testing.assert_valid([kept, 3, None])
