"""Pauses of garbage collection: nested, in threads, over forks."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

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
