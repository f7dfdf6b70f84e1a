"""Arrays that outlive their cycle are named, and nothing keeps them for that."""

from __future__ import annotations

import gc
import re
import subprocess
import sys
import threading
import tracemalloc
import weakref
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import WorkspaceLeakError, WorkspaceLeakWarning

PAGE = mc.WorkspaceConfig(initial_size=64_000, allocation="strict", learning="none")
STRICT = PAGE.replace(on_escape="error")


@pytest.fixture
def ws(pool):
    return mc.workspace("loop", STRICT, resource=pool)


def message(ws, act) -> str:
    """Run a cycle in a frame of its own; return what its end says."""
    with pytest.raises(WorkspaceLeakError) as caught:
        act(ws)
    return str(caught.value)


def test_a_variable_is_named(ws):
    def train(ws):
        with ws:
            weights = ws.ones((10, 3))
            ws.zeros(100)
        return weights

    name = "test_a_variable_is_named.<locals>.train()"
    assert message(ws, train) == (
        f"1 array outlives cycle 1 of workspace 'loop': weights in {name} (float64 "
        "(10, 3), 240 B). Call memcfg.detach(x) inside the with block for what is "
        "needed later, and `del` the rest there. After tracemalloc.start(10) this "
        "message has the lines they are of."
    )
    assert not ws.is_open
    assert mc.workspaces.current_workspace() is None


@dataclass
class Model:
    cache: dict = field(default_factory=dict)


class Slotted:
    __slots__ = ("state",)


@pytest.mark.parametrize(
    ("hold", "words"),
    [
        (lambda a: [0, a], "held[1]"),
        (lambda a: {"loss": a}, "held['loss']"),
        (lambda a: {("a", 1): a}, "held[…]"),
        (lambda a: ([{"x": (a,)}],), "held[0][0]['x'][0]"),
        (lambda a: Model({"act": a}), "held.cache['act']"),
        (lambda a: SimpleNamespace(x=a), "held.x"),
        (lambda a: a[2:4].reshape(2, 1), "held"),
        (lambda a: memoryview(a[1:]), "held in"),
        (lambda a: [[[[[[a]]]]]], "[0] in a list"),
        (lambda a: lambda: a, "a cell"),
    ],
)
def test_containers_are_gone_through(ws, hold, words):
    def train(ws):
        with ws:
            held = hold(ws.ones(5))
        return held, None

    assert words in message(ws, train)


def test_a_slot_is_found_by_its_holder(ws):
    def train(ws):
        with ws:
            held = Slotted()
            held.state = ws.ones(5)
        return held

    assert "it in a Slotted (float64 (5,), 40 B)" in message(ws, train)


def test_variables_of_modules(ws):
    module = ModuleType("user")
    vars(module).update(ws=ws)
    with pytest.raises(WorkspaceLeakError, match="kept in module user "):
        exec("with ws:\n    kept = ws.ones(2)", vars(module))
    with pytest.raises(WorkspaceLeakError, match=r"\['later'\] in module user "), ws:
        module.later = ws.ones(3)


def test_variables_of_callers_and_of_generators(ws):
    def callee(box):
        with ws:
            box.append(ws.ones(1))
            next(numbers)
            del box

    def generator():
        mine = ws.ones(2)
        yield mine.size

    numbers = generator()
    box = []
    with pytest.raises(WorkspaceLeakError) as caught:
        callee(box)
    text = str(caught.value)
    assert "2 arrays outlive cycle 1" in text
    assert "box[0] in test_variables_of_callers_and_of_generators()" in text
    assert "mine in test_variables_of_callers_and_of_generators.<loc" in text
    numbers.close()
    box.clear()


def test_other_threads_are_looked_into(ws):
    made, done = threading.Event(), threading.Event()
    box = []

    def other():
        theirs = box.pop()
        made.set()
        done.wait(10)
        del theirs

    thread = threading.Thread(target=other)
    ws.open()
    box.append(ws.ones(3))
    thread.start()
    made.wait(10)
    with pytest.raises(WorkspaceLeakError, match=r"theirs in .*other\(\)"):
        ws.close()
    done.set()
    thread.join()


def test_eight_are_named(ws):
    def train(ws):
        with ws:
            kept = [ws.full(1, n) for n in range(11)]
        return kept, None

    text = message(ws, train)
    assert "11 arrays outlive cycle" in text
    assert re.findall(r"kept\[(\d+)\]", text) == [str(n) for n in range(8)]
    assert "; and 3 more. Call" in text


def test_only_this_cycle_of_this_workspace_is_told_of(pool, ws):
    quiet = mc.workspace("quiet", PAGE, resource=pool)
    with quiet:
        foreign = quiet.ones(1)
    with pytest.raises(WorkspaceLeakError), ws:
        first = ws.ones(2)
    with pytest.raises(WorkspaceLeakError) as caught, ws:
        second = ws.ones(3)
    assert "1 array outlives cycle 2" in str(caught.value)
    assert "second in" in str(caught.value)
    assert "first" not in str(caught.value)
    assert "foreign" not in str(caught.value)
    del foreign, first, second


def test_what_a_ring_has_come_round_to_is_found(pool):
    ring = mc.RingWorkspace(
        2,
        mc.WorkspaceConfig(initial_size=6400, learning="none", on_escape="warn"),
        resource=pool,
    )
    kept = []
    for _ in range(2):
        with ring:
            kept.append(ring.ones(800))
    with pytest.warns(WorkspaceLeakWarning) as caught, ring:
        kept.append(ring.ones(800))
    text = str(caught[-1].message)
    assert re.findall(r"kept\[(\d)\]", text) == ["0", "1"]


def test_a_cycle_without_escapes_is_quiet(ws):
    for _ in range(3):
        with ws:
            a = ws.ones(10)
            out = ws.detach(a)
            del a
    assert out.sum() == 10


def test_an_exception_on_its_way_is_left_alone(ws):
    kept = []

    def fail(ws):
        with ws:
            kept.append(ws.ones(3))
            raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        fail(ws)
    assert caught.value.__context__ is None
    assert (kept[0] == 1).all()
    assert not ws.is_open


def test_nobodys_code_is_called(ws):
    class Proxy:
        @property
        def __class__(self):
            raise AssertionError("asked for its class")

        def __getattr__(self, name):
            raise AssertionError(f"asked for {name}")

    class Stack(list):
        def __iter__(self):
            raise AssertionError("iterated")

    def train(ws):
        with ws:
            proxy, stack = Proxy(), Stack([ws.ones(1)])
            proxy.x = ws.ones(2)
        return proxy, stack

    text = message(ws, train)
    assert "proxy.x in" in text
    assert "stack[0] in" in text


def test_the_array_stays_as_it_is(ws):
    with pytest.raises(WorkspaceLeakError), ws:
        kept = ws.full(1000, 7.0)
    for _ in range(3):
        with ws:
            ws.full(1000, -1.0)
    assert (kept == 7).all()
    assert mc.workspaces.is_valid(kept)


def test_spilled_arrays_are_named_too(pool):
    ws = mc.workspace("cold", mc.WorkspaceConfig(on_escape="error"), resource=pool)
    with pytest.raises(WorkspaceLeakError, match="kept in test_spilled_arrays"), ws:
        kept = ws.ones(3)
    del kept


def test_a_warning_points_at_the_block(pool):
    ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)
    with (
        pytest.warns(WorkspaceLeakWarning, match="kept in test_a_warning") as caught,
        ws,
    ):
        kept = ws.ones(3)
    assert caught[0].filename == __file__
    assert (kept == 1).all()


def test_a_warning_that_is_an_error_is_one(pool):
    ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)
    with pytest.raises(WorkspaceLeakWarning), ws:
        kept = ws.ones(3)
    assert not ws.is_open
    del kept


def test_close_tells_as_well(ws):
    ws.open()
    kept = ws.ones(3)
    with pytest.raises(WorkspaceLeakError, match="kept in test_close_tells"):
        ws.close()
    assert not ws.is_open
    del kept


# In a process of its own: the search for a name goes through all that tests hold.
NAMELESS = """
import tracemalloc
import numpy as np
import memcfg as mc

def train(ws):
    with ws:
        return np.ones(1234) + 1  # line 8

ws = mc.workspace("loop", mc.WorkspaceConfig(on_escape="warn"))
tracemalloc.start(10)
train(ws)
"""


def test_the_line_of_a_result_that_nothing_names(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(NAMELESS)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert "1 that no variable names" in done.stderr
    assert f"(9.64 KiB, made at {script}:8)" in done.stderr


class TestTracemalloc:
    @pytest.fixture(autouse=True)
    def _traced(self):
        tracemalloc.start(10)
        yield
        tracemalloc.stop()

    @pytest.mark.parametrize(
        "make", [lambda ws: np.full(5, 1.0)[1:], lambda ws: ws.ones(5)[1:]]
    )
    def test_the_line_is_told(self, ws, make):
        def train(ws):
            with ws:
                line = make.__code__.co_firstlineno
                kept = make(ws)
            return kept, line

        text = message(ws, train)
        assert f"made at {__file__}:{make.__code__.co_firstlineno})" in text
        assert "tracemalloc" not in text

    def test_an_array_from_before_tracing_has_none(self, ws):
        tracemalloc.stop()
        ws.open()
        kept = ws.ones(5)
        tracemalloc.start()
        with pytest.raises(WorkspaceLeakError) as caught:
            ws.close()
        assert "made at" not in str(caught.value)
        del kept


class TestNothingIsKept:
    def test_what_a_function_deletes_goes(self, pool):
        ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)
        other = Model()
        known = weakref.ref(other)
        with pytest.warns(WorkspaceLeakWarning, match=r"kept\[0\] in"), ws:
            kept = [ws.ones(3)]
        del kept, other
        assert ws.stats().live_arrays == 0
        assert known() is None

    def test_a_dictionary_that_the_user_has_stays(self, pool):
        ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)

        def train():
            with ws:
                kept = ws.ones(3)
                shown = locals()
            return kept, shown

        with pytest.warns(WorkspaceLeakWarning, match=r"kept in .*train\(\)"):
            kept, shown = train()
        assert shown["kept"] is kept
        del kept, shown

    def test_variables_are_what_they_were(self, pool):
        ws = mc.workspace("loop", PAGE.replace(on_escape="warn"), resource=pool)
        number, text = 3, "text"
        with pytest.warns(WorkspaceLeakWarning), ws:
            kept = ws.ones(3)
        assert (number, text, kept.size) == (3, "text", 3)
        assert {"kept", "number", "pool", "self", "text", "ws"} <= set(locals())

    def test_the_error_keeps_no_array(self, ws):
        def train(ws):
            with ws:
                kept = [ws.ones(3)]
            return kept, None

        try:
            train(ws)
        except WorkspaceLeakError as error:
            told = error
        told.__traceback__ = None
        gc.collect()
        assert ws.stats().live_arrays == 0
        assert "kept[0]" in str(told)
