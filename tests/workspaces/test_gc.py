"""Pauses of garbage collection: nested, in threads, over forks."""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import memcfg as mc
from memcfg.workspaces import gc as control


class Node:
    """One half of a cycle."""

    def __init__(self, act=None):
        self.self = self
        self.act = act

    def __del__(self):
        if self.act is not None:
            self.act()


def garbage(act=None) -> weakref.ref:
    """Leave a cycle behind that only a collection finds."""
    return weakref.ref(Node(act))


def gone(*references: weakref.ref) -> bool:
    return all(reference() is None for reference in references)


@pytest.fixture(autouse=True)
def _as_at_the_beginning():
    gc.unfreeze()  # what conftest froze
    gc.collect()
    yield
    try:
        assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
        assert not control.is_paused()
    finally:
        gc.freeze()


def test_the_names_are_reached_from_the_package():
    assert mc.gc is control


def test_a_bad_pause_is_refused_before_it_begins():
    with pytest.raises(TypeError, match="freeze must be True or False, not 'all'"):
        control.paused(freeze="all")
    assert (control.is_paused(), gc.isenabled()) == (False, True)


def test_collect_finds_cycles():
    reference = garbage()
    assert control.collect() >= 1
    assert gone(reference)


def test_threads_may_call_everything_at_once():
    end = time.monotonic() + 0.5
    errors = []

    def work(number):
        try:
            while time.monotonic() < end:
                with control.paused(freeze=number % 2 == 1):
                    assert not gc.isenabled()
                    assert control.is_paused()
                garbage()
                control.collect()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[i]) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_finalizers_may_pause():
    done = []

    def use():
        with control.paused(freeze=True):
            done.append(control.is_paused())

    with control.paused():
        garbage(use)
        control.collect()
    assert done == [True]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("inside", [None, gc.enable, gc.disable])
def test_a_pause_puts_back_what_it_found(before, inside):
    (gc.enable if before else gc.disable)()
    try:
        with control.paused():
            assert not gc.isenabled()
            assert control.is_paused()
            if inside is not None:
                inside()
        assert gc.isenabled() == before
        assert not control.is_paused()
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_pause_ends_whatever_is_raised(error):
    with pytest.raises(error), control.paused(freeze=True):
        raise error
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)


def test_pauses_are_nested_exactly():
    with control.paused():
        with pytest.raises(ValueError, match="inner"), control.paused():
            raise ValueError("inner")
        assert not gc.isenabled()
        gc.enable()
        with control.paused():
            assert not gc.isenabled()
        assert gc.isenabled()
        gc.disable()
    assert gc.isenabled()


@pytest.mark.parametrize("before", [True, False])
def test_pauses_of_threads_may_end_in_any_order(before):
    (gc.enable if before else gc.disable)()
    try:
        first, second, third = (control.paused() for _ in range(3))
        for each in first, second, third:
            each.__enter__()
        for each in second, first:
            each.__exit__(None, None, None)
            assert not gc.isenabled()
        third.__exit__(None, None, None)
        assert gc.isenabled() == before
    finally:
        gc.enable()


def test_a_pause_that_is_forgotten_ends():
    pause = control.paused()
    pause.__enter__()
    assert not gc.isenabled()
    del pause
    assert gc.isenabled()


def test_freezing_hides_older_garbage_until_the_end():
    older = None
    with control.paused():
        older = garbage()
        with control.paused(freeze=True):
            newer = garbage()
            control.collect()
            assert gone(newer)
            assert not gone(older)
            assert gc.get_freeze_count() > 0
        assert gc.get_freeze_count() == 0
    control.collect()
    assert gone(older)


def test_what_was_frozen_before_stays_frozen():
    gc.freeze()
    try:
        before = gc.get_freeze_count()
        with control.paused(freeze=True), control.paused(freeze=True):
            pass
        assert gc.get_freeze_count() > before / 2
    finally:
        gc.unfreeze()


def test_a_frozen_pause_that_ends_first_leaves_the_thaw_to_the_newer():
    first, second = control.paused(freeze=True), control.paused()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_freeze_count() > 0
    second.__exit__(None, None, None)
    assert gc.get_freeze_count() == 0


# --- forks and the end of the interpreter

START = """
import gc, os, signal, sys, threading, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
from memcfg.workspaces import gc as control

class Node:
    def __init__(self, act=None):
        self.self, self.act = self, act
    def __del__(self):
        if self.act is not None:
            self.act()

def in_child(act):
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends a child that hangs
        try:
            act()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
FORKS = {
    "a pause of the thread that forks holds in the child": """
with control.paused():
    def act():
        assert control.is_paused() and not gc.isenabled()
    in_child(act)
    child = os.fork()
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert gc.isenabled() and not control.is_paused()
if not child:
    os._exit(0)
""",
    "a pause of another thread ends in the child": """
entered, leave = threading.Event(), threading.Event()
def pause():
    with control.paused(freeze=True):
        entered.set()
        leave.wait(30)
thread = threading.Thread(target=pause)
thread.start()
entered.wait()
def act():
    assert gc.isenabled() and not control.is_paused()
    assert gc.get_freeze_count() == 0
in_child(act)
assert control.is_paused() and not gc.isenabled()
leave.set()
thread.join()
assert gc.isenabled()
""",
    "threads at work while others fork": """
stop = threading.Event()
def work():
    while not stop.is_set():
        with control.paused(freeze=True):
            Node()
threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
def act():
    assert not control.is_paused() and gc.isenabled()
    with control.paused():
        assert control.is_paused()
    assert gc.isenabled()
for _ in range(15):
    in_child(act)
stop.set()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
""",
}
ALONE = {
    "a pause that is never left": """
pause = control.paused(freeze=True)
pause.__enter__()
""",
    "finalizers amid a call": """
gc.set_threshold(1)  # a collection at any place
called = []
def call():
    with control.paused():
        called.append(control.is_paused())
    if len(called) < 2000:
        Node(call)
for i in range(200):
    Node(call)
    with control.paused(freeze=i % 2 == 0):
        pass
assert len(called) >= 200 and all(called)
""",
}


def run(program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
@pytest.mark.parametrize("name", FORKS)
def test_forks(name):
    run(FORKS[name])


@pytest.mark.parametrize("name", ALONE)
def test_alone_in_a_process(name):
    run(ALONE[name])


@pytest.fixture
def window():
    yield control
    control.set_auto_gc_window(None)
    control.toggle_periodic_gc(True)


@pytest.fixture
def began():
    """When automatic collections began, in seconds."""
    times = []

    def note(phase, info):
        if phase == "start":
            times.append(time.monotonic())

    gc.callbacks.append(note)
    yield times
    gc.callbacks.remove(note)


def litter(*_):
    """Leave more behind than Python's collector waits for."""
    for _ in range(2 * gc.get_threshold()[0]):
        garbage()


class Littering(mc.nn.callbacks.Callback):
    """Leaves garbage behind in every batch, and spends some time."""

    def __init__(self, seconds=0.0, act=lambda: None):
        super().__init__()
        self.seconds, self.act = seconds, act

    def on_train_batch_end(self, batch, logs=None):
        litter()
        time.sleep(self.seconds)
        self.act()

    on_test_batch_end = on_train_batch_end


@pytest.fixture
def model():
    made = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(1)])
    made.compile("sgd", "mse")
    yield made
    made.close()


def fit(model, *callbacks, batches=20, held=False):
    x = np.ones((2 * batches, 2), np.float32)
    y = np.ones((2 * batches, 1), np.float32)
    validation = (x, y) if held else None
    model.fit(
        x, y, batch_size=2, verbose=0, callbacks=callbacks, validation_data=validation
    )


def test_settings_of_the_window_are_read_and_checked(window):
    assert window.get_auto_gc_window() is None
    assert window.set_auto_gc_window(100) is None
    assert window.set_auto_gc_window(0) == 100
    assert not window.is_periodic_gc_active()
    window.set_auto_gc_window(0.5)
    assert window.toggle_periodic_gc(False) is True
    assert not window.is_periodic_gc_active()
    assert window.toggle_periodic_gc(True) is False
    assert window.is_periodic_gc_active()
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="finite and not negative"):
            window.set_auto_gc_window(wrong)
    for wrong in ("100", True, [1]):
        with pytest.raises(TypeError, match="a number or None"):
            window.set_auto_gc_window(wrong)
    with pytest.raises(TypeError, match="True or False"):
        window.toggle_periodic_gc(0)
    assert window.get_auto_gc_window() == 0.5


def test_without_a_window_python_collects_as_it_likes(model, began):
    fit(model, Littering())
    assert len(began) >= 20


@pytest.mark.parametrize("held", [False, True])
def test_at_most_one_collection_begins_in_a_window(model, began, window, held):
    window.set_auto_gc_window(40)
    inside, steps = [], []

    def act():
        steps.append(len(began))
        inside[:] = began[steps[0] :]  # one may have begun just before the first step

    fit(model, Littering(0.01, act), held=held)
    assert len(inside) >= 2
    between = [later - before for before, later in itertools.pairwise(inside)]
    assert min(between) >= 0.04
    before = len(began)
    litter()  # no model fits any more
    assert len(began) > before


@pytest.mark.parametrize(
    "forbid",
    [lambda: control.set_auto_gc_window(0), lambda: control.toggle_periodic_gc(False)],
)
def test_no_collection_begins_if_none_may(model, began, window, forbid):
    control.set_auto_gc_window(1)
    forbid()
    left, counts = [], []

    def act():
        left.append(garbage())
        counts.append(len(began))
        assert not any(map(gone, left))

    fit(model, Littering(0.001, act))
    assert counts == counts[:1] * 20  # some time before the first step one may
    assert gc.isenabled()
    control.collect()
    assert gone(*left)


def test_what_a_caller_collects_begins_a_window(model, began, window):
    window.set_auto_gc_window(10_000)
    fit(model, Littering(act=control.collect), batches=5)
    asked = 5
    assert len(began) in (asked, asked + 1)  # one may begin before the first


def test_a_window_holds_at_once_for_models_that_fit(model, began, window):
    acts = [
        *([lambda: None] * 3),
        lambda: window.set_auto_gc_window(0),
        *([lambda: None] * 3),
        lambda: window.set_auto_gc_window(None),
    ]
    counts = []
    each = iter(acts)

    def act():
        counts.append(len(began))
        next(each)()

    fit(model, Littering(act=act), batches=8)
    assert counts[0] < counts[2] < counts[3]
    assert counts[3] == counts[7]
    assert len(began) > counts[7]


def test_a_pause_of_ones_own_stays_one_in_a_window(model, began, window):
    window.set_auto_gc_window(0.01)
    with control.paused():
        fit(model, Littering(0.001), batches=5)
        assert control.is_paused()
        assert began == []

    def paused():
        before = len(began)
        with control.paused():
            litter()
            time.sleep(0.001)
        assert len(began) == before
        assert not control.is_paused()

    fit(model, Littering(act=paused), batches=5)
    gc.disable()
    try:
        before = len(began)
        fit(model, Littering(0.001), batches=5)
        assert len(began) == before
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_amid_fit_ends_the_window(model, window):
    before = [*gc.callbacks]  # Hypothesis leaves one of its own
    window.toggle_periodic_gc(False)

    def fail():
        assert not gc.isenabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fit(model, Littering(act=fail))
    assert gc.isenabled()
    assert gc.callbacks == before


def test_models_that_fit_in_several_threads_share_the_window(window):
    window.toggle_periodic_gc(False)
    inside, out = threading.Barrier(2), threading.Event()

    def work():
        own = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(1)])
        own.compile("sgd", "mse")
        fit(own, Littering(act=lambda: (inside.wait(10), out.wait(10))), batches=1)

    thread = threading.Thread(target=work)
    thread.start()
    inside.wait(10)
    other = mc.nn.Sequential([mc.nn.Input((2,)), mc.nn.Dense(1)])
    other.compile("sgd", "mse")
    fit(other, batches=1)
    assert not gc.isenabled()  # the first fits still
    out.set()
    thread.join()
    assert gc.isenabled()


def test_the_child_of_a_fork_has_the_windows_of_its_thread_alone(model, window):
    window.toggle_periodic_gc(False)
    found = []

    def child(check):
        number = os.fork()
        if number == 0:
            os._exit(0 if check() else 1)
        return os.waitstatus_to_exitcode(os.waitpid(number, 0)[1])

    fit(model, Littering(act=lambda: found.append(child(lambda: not gc.isenabled()))))
    inside, out = threading.Event(), threading.Event()

    def elsewhere():
        with control.while_fitting():
            inside.set()
            out.wait(10)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    inside.wait(10)
    found.append(child(gc.isenabled))
    out.set()
    thread.join()
    assert set(found) == {0}
