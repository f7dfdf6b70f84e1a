"""What is computed once, whatever forks meanwhile; text that is cut; older files."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from calls import traced
from hypothesis import given, settings
from hypothesis import strategies as st
from terminal_columns import LETTERS, columns

from memcfg import _cached, nn
from memcfg import _terminal as terminal  # every table and report is cut by it
from memcfg._advice import larger_limit_or
from memcfg._cached import cached_property  # no public name shows the moment
from memcfg.nn import _saving
from memcfg.nn.layers._operators import Function, OfNumber, Pointwise


class Slow:
    """Counts how often it computes, and waits meanwhile."""

    def __init__(self, wait=lambda: None):
        self.wait, self.times = wait, 0

    @cached_property
    def value(self):
        self.times += 1
        self.wait()
        return object()


def locks_of(slow):
    """The locks of that instance; an interrupt may have left some of another."""
    return [lock for (owner, _), lock in _cached._turns.items() if owner == id(slow)]


def test_it_is_computed_once():
    slow = Slow()
    assert slow.value is slow.value
    assert slow.times == 1
    assert isinstance(Slow.value, cached_property)


def test_threads_at_once_compute_it_once():
    for _ in range(20):
        barrier, slow = threading.Barrier(8), Slow(lambda: time.sleep(0.002))
        found = []

        def ask(slow=slow, barrier=barrier, found=found):
            barrier.wait()
            found.append(slow.value)

        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert slow.times == 1
        assert len({id(each) for each in found}) == 1
        assert not locks_of(slow)


def test_where_computing_fails_it_is_tried_again():
    def fail():
        if slow.times < 3:
            raise ValueError("no")

    slow = Slow(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            _ = slow.value
    assert slow.value is slow.value
    assert slow.times == 3
    assert not locks_of(slow)


def test_an_exception_at_any_opcode_leaves_no_lock_taken():
    for opcode in range(1, 200):
        slow, left = Slow(), opcode

        def trace(frame, event, _):
            nonlocal left
            frame.f_trace_opcodes = frame.f_code.co_filename == _cached.__file__
            if event == "opcode":
                left -= 1
                if left == 0:
                    raise KeyboardInterrupt
            return trace

        try:
            with traced(trace):
                _ = slow.value
        except KeyboardInterrupt:
            pass
        else:
            assert left > 0  # it has ended before that opcode
            return
        thread = threading.Thread(target=lambda slow=slow: slow.value, daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
    pytest.fail("it has more opcodes than that")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_computes_while_its_parent_does():
    inside, go_on = threading.Event(), threading.Event()

    def wait():
        inside.set()
        assert go_on.wait(60)

    slow = Slow(wait)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        slow.wait = lambda: None
        os._exit(Slow().value is None or slow.value is None)
    go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert slow.times == 1


# Text on terminals.

NAMES = st.text(LETTERS, max_size=90)


@settings(deadline=None)
@given(NAMES, st.integers(1, 40), st.sampled_from(["start", "end", "ends"]))
def test_a_text_is_cut_to_its_columns_at_the_end_asked_for(name, room, keep):
    shown = terminal.printable(name)
    cut = terminal.shorten(name, room, keep=keep)
    assert columns(cut) <= room
    start, _, end = cut.partition("…") if columns(shown) > room else (cut, "", "")
    assert shown.startswith(start)
    assert shown.endswith(end)
    assert columns(terminal.fit(name, room, keep=keep)) == room


def test_both_ends_of_a_long_name_are_kept():
    assert terminal.shorten("block_12/convolution/kernel", 15) == "block_1…/kernel"
    assert terminal.shorten("abcdef", 4, keep="start") == "abc…"
    assert terminal.shorten("abcdef", 4, keep="end") == "…def"


@settings(deadline=None)
@given(st.lists(st.text("abc def-", min_size=1, max_size=100), max_size=20))
def test_a_paragraph_fits_and_loses_nothing(words):
    text = terminal.paragraph("  kept  ", words)
    assert max(map(columns, text.splitlines())) <= 80
    assert all(line.startswith(" " * 8) for line in text.splitlines()[1:])
    if all(len(word) <= 72 for word in words):
        assert "".join(text.split()) == "kept" + "".join("".join(words).split())


def test_without_a_standard_output_nothing_is_replaced(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert terminal.writable("短い …") == "短い …"


def test_a_file_with_comparisons_of_differences_is_still_read(tmp_path, monkeypatch):
    """As models were saved whose comparisons were rectified differences."""
    named = _saving.class_name
    monkeypatch.setattr(
        _saving,
        "class_name",
        lambda kind: "layers.Bound" if kind is OfNumber else named(kind),
    )
    x, y = nn.Input((4,)), nn.Input((4,))
    greater = Function("unequal", {"to": 0.0})(Function("relu", {})(x - y))
    chosen = Pointwise("choose")([greater, x, OfNumber("maximum", 0.5)(y)])
    root = Function("inverse_root", {"least": 0.0})(nn.Rescaling(2.0)(chosen))
    model = nn.Model([x, y], root)
    model.save(tmp_path / "older.memcfg")
    other = nn.models.load_model(tmp_path / "older.memcfg")
    a, b = np.float32([[1, 2, 3, 4]]), np.float32([[2, 1, 0.25, 8]])
    expected = 1 / np.sqrt(2 * np.where(a > b, a, np.maximum(b, 0.5)))
    for each in (model, other):
        np.testing.assert_allclose(each.predict([a, b], verbose=0), expected, 1e-6)


@pytest.mark.parametrize(
    ("batch", "others", "text"),
    [
        (None, (), "Raise the limit or lower the batch size."),
        (8, ("drop x",), "Raise the limit, lower the batch size, or drop x."),
        (1, (), "Raise the limit."),
        (1, ("drop x",), "Raise the limit or drop x."),
        (1, ("drop x", "close y"), "Raise the limit, drop x, or close y."),
    ],
)
def test_one_sample_is_not_advised_to_be_fewer(batch, others, text):
    assert larger_limit_or(batch, *others) == text
