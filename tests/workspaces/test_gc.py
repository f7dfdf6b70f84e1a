"""Garbage collection under control: a timer that is real, occasions, pauses."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref
from functools import partial
from itertools import pairwise

import numpy as np
import pytest

import memcfg as mc
from memcfg.workspaces import gc as control
from memcfg.workspaces._collector import Collector


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


def wait_until(condition, seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.002)
    return condition()


def gone(*references: weakref.ref) -> bool:
    return all(reference() is None for reference in references)


def timers() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "memcfg-gc"]


@pytest.fixture(autouse=True)
def _as_at_the_beginning():
    gc.collect()
    yield
    control.set_periodic(False)
    control.set_window(100)
    control.set_occasional_frequency(0)
    control.toggle_averaging(False)
    assert wait_until(lambda: not timers())
    assert (gc.isenabled(), gc.get_freeze_count()) == (True, 0)
    assert not control.is_paused()


@pytest.fixture
def _only_ours():
    """Keep Python's own collections out, which could be taken for ours."""
    gc.disable()
    yield
    gc.enable()


def collected_by_the_timer() -> bool:
    """Leave an array in a cycle, and see whether it goes within ten seconds."""
    reference = garbage()
    reference().array = np.ones(10)
    return wait_until(partial(gone, reference))


def stays(reference: weakref.ref, seconds: float = 0.1) -> bool:
    time.sleep(seconds)
    return not gone(reference)


# --- settings


def test_the_names_are_reached_from_the_package():
    assert mc.gc is control


def test_the_defaults():
    program = (
        "from memcfg.workspaces import gc as g; "
        "print(g.get_window(), g.is_periodic(), g.get_occasional_frequency(), "
        "g.last_collection_time(), g.is_paused(), g.get_average_loop_time())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "100 False 0 None False None\n"


def state() -> tuple:
    return (
        control.get_window(),
        control.is_periodic(),
        control.get_occasional_frequency(),
        control.is_paused(),
        gc.isenabled(),
    )


@pytest.mark.parametrize(
    ("call", "values", "error"),
    [
        ("set_window", [True, 1.5, "100", None], TypeError),
        ("set_window", [-1, 2**31], ValueError),
        ("set_occasional_frequency", [False, 2.0, "5", None], TypeError),
        ("set_occasional_frequency", [-1], ValueError),
        ("set_periodic", [1, "yes", None, np.True_], TypeError),
        ("toggle_averaging", [0, None], TypeError),
    ],
)
def test_bad_input_changes_nothing(call, values, error):
    control.set_window(50)
    control.set_occasional_frequency(3)
    control.set_periodic(True)
    before = state()
    for value in values:
        with pytest.raises(error):
            getattr(control, call)(value)
        assert state() == before


def test_a_bad_pause_is_refused_before_it_begins():
    with pytest.raises(TypeError, match="freeze must be True or False, not 'all'"):
        control.paused(freeze="all")
    assert state() == (100, False, 0, False, True)


@pytest.mark.parametrize("value", [0, 1, 2**31 - 1, np.int64(7)])
def test_a_window_is_what_was_set(value):
    control.set_window(value)
    assert control.get_window() == value
    assert type(control.get_window()) is int


# --- collect


def test_collect_finds_cycles_and_notes_the_time():
    reference, before = garbage(), time.time()
    found = control.collect()
    assert found >= 1
    assert gone(reference)
    assert before <= control.last_collection_time() <= time.time()


def test_what_python_collects_by_itself_is_not_noted():
    control.collect()
    noted = control.last_collection_time()
    gc.collect()
    assert control.last_collection_time() == noted


# --- the timer


@pytest.mark.usefixtures("_only_ours")
def test_the_timer_collects_cycles_that_hold_arrays():
    control.set_window(5)
    control.set_periodic(True)
    assert control.is_periodic()
    noted = control.last_collection_time()
    assert collected_by_the_timer()
    assert wait_until(lambda: control.last_collection_time() != noted)
    assert collected_by_the_timer()


@pytest.mark.usefixtures("_only_ours")
def test_it_collects_once_a_window():
    control.set_window(50)
    times = []

    def note(phase, _):
        if phase == "start":
            times.append(time.monotonic())

    gc.callbacks.append(note)
    try:
        times.append(time.monotonic())
        control.set_periodic(True)
        assert wait_until(lambda: len(times) >= 5)
    finally:
        gc.callbacks.remove(note)
    assert min(b - a for a, b in pairwise(times)) >= 0.049


@pytest.mark.usefixtures("_only_ours")
def test_switched_off_it_collects_no_more():
    control.set_window(1)
    control.set_periodic(True)
    assert collected_by_the_timer()
    control.set_periodic(False)
    assert not control.is_periodic()
    assert stays(garbage())
    assert wait_until(lambda: not timers())


@pytest.mark.usefixtures("_only_ours")
def test_a_window_of_zero_collects_nothing_and_says_so():
    control.set_window(0)
    control.set_periodic(True)
    assert not control.is_periodic()
    assert stays(garbage())
    control.set_window(1)
    assert control.is_periodic()
    assert collected_by_the_timer()
    control.set_window(0)
    assert not control.is_periodic()


@pytest.mark.usefixtures("_only_ours")
def test_a_new_window_holds_for_a_timer_that_waits():
    control.set_window(2**31 - 1)
    control.set_periodic(True)
    reference = garbage()
    assert stays(reference, 0.03)
    control.set_window(1)
    assert wait_until(partial(gone, reference))


def test_there_is_one_timer_however_often_it_is_asked_for():
    for _ in range(3):
        control.set_periodic(True)
    assert len(timers()) == 1
    assert timers()[0].daemon
    for _ in range(20):
        control.set_periodic(False)
        control.set_periodic(True)
    assert wait_until(lambda: len(timers()) == 1)
    assert control.is_periodic()


def test_without_a_thread_to_have_it_stays_off(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        control.set_periodic(True)
    assert not control.is_periodic()
    monkeypatch.undo()
    control.set_periodic(True)
    assert control.is_periodic()


@pytest.mark.usefixtures("_only_ours")
def test_switching_off_waits_for_the_collection_at_work():
    inside, ended = threading.Event(), []

    def slow():
        inside.set()
        time.sleep(0.2)
        ended.append(control.is_periodic())

    reference = garbage(slow)
    control.set_window(1)
    control.set_periodic(True)
    assert inside.wait(10)
    control.set_periodic(False)
    assert ended == [True]
    assert wait_until(partial(gone, reference))


@pytest.mark.usefixtures("_only_ours")
def test_finalizers_that_the_timer_runs_may_use_everything_here():
    done = []

    def use():
        with control.paused(freeze=True):
            control.collect()
        control.set_window(control.get_window())
        control.set_periodic(False)
        control.set_periodic(True)
        done.append(threading.current_thread().name)

    control.set_window(1)
    control.set_periodic(True)
    garbage(use)
    assert wait_until(lambda: done == ["memcfg-gc"])
    assert collected_by_the_timer()


def test_threads_may_call_everything_at_once():
    end = time.monotonic() + 1
    errors = []
    control.set_occasional_frequency(2)

    def work(number):
        try:
            while time.monotonic() < end:
                control.set_window(number % 3)
                control.set_periodic(number % 2 == 0)
                with control.paused(freeze=number % 2 == 1):
                    assert not gc.isenabled()
                    control.collect_occasionally()
                control.is_periodic()
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
    control.set_window(1)
    control.set_periodic(True)
    assert collected_by_the_timer()


# --- occasions


def test_by_default_no_occasion_comes():
    control.set_window(0)
    assert not any(control.collect_occasionally() for _ in range(20))


@pytest.mark.usefixtures("_only_ours")
def test_every_nth_call_collects():
    control.set_window(0)
    control.set_occasional_frequency(3)
    reference = garbage()
    told = []
    for _ in range(9):
        told.append(control.collect_occasionally())
        assert gone(reference) == (len(told) >= 3)
    assert told == [False, False, True] * 3


def test_within_a_window_no_second_occasion_comes():
    control.set_occasional_frequency(1)
    control.set_window(60_000)
    control.collect()
    noted = control.last_collection_time()
    assert not any(control.collect_occasionally() for _ in range(5))
    assert control.last_collection_time() == noted
    control.set_window(5)
    time.sleep(0.006)
    assert control.collect_occasionally()
    assert control.last_collection_time() > noted


def test_of_several_threads_one_collects_for_a_window():
    collector = Collector()
    collector.set_frequency(1)
    collector.set_window(60_000)
    told, barrier = [], threading.Barrier(8)

    def call():
        barrier.wait()
        told.append(collector.collect_occasionally())

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(told) == [False] * 7 + [True]


@pytest.mark.usefixtures("_only_ours")
def test_no_occasion_comes_while_a_collection_longer_than_the_window_is_at_work():
    control.set_occasional_frequency(1)
    control.set_window(1)
    began, end = threading.Event(), threading.Event()

    def hold():
        began.set()
        end.wait(60)

    reference = garbage(hold)
    thread = threading.Thread(target=control.collect)
    thread.start()
    assert began.wait(60)
    time.sleep(0.002)
    told = [control.collect_occasionally() for _ in range(3)]
    end.set()
    thread.join()
    assert told == [False] * 3
    assert gone(reference)
    time.sleep(0.002)
    assert control.collect_occasionally()


def test_a_pause_lets_an_occasion_pass():
    control.set_window(0)
    control.set_occasional_frequency(1)
    with control.paused():
        assert not control.collect_occasionally()
    assert control.collect_occasionally()


def test_the_mean_of_the_times_between_calls():
    assert control.get_average_loop_time() is None
    control.toggle_averaging(True)
    assert control.get_average_loop_time() is None
    control.collect_occasionally()
    assert control.get_average_loop_time() is None
    time.sleep(0.5)
    control.collect_occasionally()
    assert 500 <= control.get_average_loop_time() < 5000
    for _ in range(150):  # the last hundred count
        control.collect_occasionally()
    assert control.get_average_loop_time() < 2
    control.toggle_averaging(False)
    assert control.get_average_loop_time() is None


# --- pauses


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


@pytest.mark.usefixtures("_only_ours")
def test_the_timer_rests_during_a_pause_and_goes_on_after_it():
    control.set_window(1)
    control.set_periodic(True)
    with control.paused():
        reference = garbage()
        assert stays(reference)
        assert control.is_periodic()
        assert control.collect() > 0  # it was told to
        assert gone(reference)
    assert collected_by_the_timer()


@pytest.mark.usefixtures("_only_ours")
def test_a_pause_waits_for_the_collection_at_work():
    inside, ended = threading.Event(), []

    def slow():
        inside.set()
        time.sleep(0.2)
        ended.append(True)

    garbage(slow)
    control.set_window(1)
    control.set_periodic(True)
    assert inside.wait(10)
    with control.paused():
        assert ended == [True]


@pytest.mark.usefixtures("_only_ours")
def test_collect_waits_for_the_collection_at_work_and_collects():
    inside = threading.Event()

    def slow():
        inside.set()
        time.sleep(0.2)

    garbage(slow)
    control.set_window(1)
    control.set_periodic(True)
    assert inside.wait(10)
    control.set_window(0)
    reference = garbage()
    assert control.collect() > 0
    assert gone(reference)


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
import atexit, gc, os, signal, sys, threading, time, warnings, weakref
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
from memcfg.workspaces import gc as control
from memcfg.workspaces._collector import Collector
gc.disable()

class Node:
    def __init__(self, act=None):
        self.self, self.act = self, act
    def __del__(self):
        if self.act is not None:
            self.act()

def collects():
    reference = weakref.ref(Node())
    end = time.monotonic() + 10
    while reference() is not None and time.monotonic() < end:
        time.sleep(0.002)
    return reference() is None

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

control.set_window(2)
"""
FORKS = {
    "the timer is off in the child, and can be started": """
control.set_periodic(True)
assert collects()
def act():
    assert not control.is_periodic()
    assert control.get_window() == 2
    assert threading.active_count() == 1
    control.set_periodic(True)
    assert control.is_periodic() and collects()
in_child(act)
assert control.is_periodic() and collects()
""",
    "a collection at work is waited for": """
inside = threading.Event()
def slow():
    inside.set()
    time.sleep(0.3)
Node(slow)
control.set_periodic(True)
assert inside.wait(10)
def act():
    reference = weakref.ref(Node())
    assert control.collect() > 0
    assert reference() is None
in_child(act)
""",
    "a collection that was called for is waited for, too": """
inside = threading.Event()
def slow():
    inside.set()
    time.sleep(0.3)
Node(slow)
thread = threading.Thread(target=control.collect, daemon=True)
thread.start()
assert inside.wait(10)
def act():
    reference = weakref.ref(Node())
    assert control.collect() > 0
    assert reference() is None
in_child(act)
thread.join()
""",
    "a collection that hangs is not waited for": """
inside, go_on = threading.Event(), threading.Event()
def hang():
    inside.set()
    go_on.wait(20)
Node(hang)
control.set_periodic(True)
assert inside.wait(10)
began = time.monotonic()
in_child(lambda: control.set_periodic(False))
assert time.monotonic() - began < 5
go_on.set()
assert collects()
""",
    "a pause of the thread that forks holds in the child": """
gc.enable()
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
gc.enable()
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
        control.set_window(1)
        control.set_periodic(True)
        with control.paused():
            Node()
        control.collect()
        control.set_periodic(False)
threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
def act():
    assert not control.is_periodic() and not control.is_paused()
    control.set_periodic(True)
    assert collects()
    control.set_periodic(False)
for _ in range(15):
    in_child(act)
stop.set()
for thread in threads:
    thread.join(30)
    assert not thread.is_alive()
""",
}
ENDS = {
    "a timer at work": """
control.set_periodic(True)
assert collects()
""",
    "a timer that waits for long": """
control.set_window(2**31 - 1)
control.set_periodic(True)
""",
    "a timer without a window": """
control.set_window(0)
control.set_periodic(True)
""",
    "garbage all the time": """
control.set_window(1)
control.set_periodic(True)
def more():
    if alive:
        Node(more)
alive = True
for _ in range(100):
    Node(more)
time.sleep(0.05)
""",
    "a finalizer that hangs": """
inside = threading.Event()
def hang():
    inside.set()
    time.sleep(30)
Node(hang)
control.set_periodic(True)
assert inside.wait(10)
""",
    "a pause that is never left": """
control.set_periodic(True)
pause = control.paused(freeze=True)
pause.__enter__()
""",
    "a timer that is started while all ends": """
def late():
    try:
        control.set_periodic(True)
    except RuntimeError:  # from 3.12 on: no new threads by now
        assert not control.is_periodic()
    else:
        assert control.is_periodic()
atexit.register(late)
control.set_periodic(True)
""",
    "an exception": """
control.set_periodic(True)
sys.exit(0)
""",
}
REENTRY = """
gc.enable()
gc.set_threshold(1)  # a collection at any place, amid the settings too
called = []
def call():
    control.set_periodic(control.is_periodic())
    with control.paused():
        called.append(control.get_average_loop_time())
    if len(called) < 2000:
        Node(call)
control.toggle_averaging(True)
for i in range(200):
    Node(call)
    control.set_periodic(i % 2 == 0)
    control.collect_occasionally()
assert len(called) >= 200
"""


def run(program: str) -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", START + program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert time.monotonic() - began < 20


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX processes")
@pytest.mark.parametrize("name", FORKS)
def test_forks(name):
    run(FORKS[name])


@pytest.mark.parametrize("name", ENDS)
def test_the_timer_keeps_no_interpreter_alive(name):
    run(ENDS[name])


def test_finalizers_may_call_amid_a_call():
    run(REENTRY)
