"""Locks in turns, and how many programs run at once."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from memcfg import config
from memcfg._core import CallbackKernel, Lock, Pool, Program, holds_turn

pytestmark = pytest.mark.usefixtures("fresh_config")


class Interrupted(Exception):  # noqa: N818
    """What a signal handler raises."""


@pytest.fixture
def fresh_config():
    yield
    config.reset()


@pytest.fixture
def interrupt():
    """Give a function that raises `Interrupted` in the main thread."""

    def handler(number, frame):
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def once(condition):
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_a_lock_is_re_entrant_and_excludes():
    lock, total = Lock("m"), [0]

    def add(_):
        for _ in range(500):
            with lock.turn(), lock.turn():
                value = total[0]
                with lock.turn():
                    total[0] = value + 1

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert total == [2000]


def test_a_loop_lets_others_in():
    lock, turns, inside = Lock("m"), [], threading.Event()

    def other():
        assert inside.wait(60)
        with lock.turn():
            turns.append("other")

    thread = threading.Thread(target=other)
    thread.start()
    for turn in itertools.count():
        with lock.turn():
            if "other" in turns:
                break
            turns.append(turn)
            inside.set()
            once(lambda: lock.waiting)
    thread.join(60)
    assert turns == [0, "other"]


def test_the_lock_is_handed_over_in_the_order_of_arrival():
    lock, order = Lock("m"), []

    def enter(number):
        with lock.turn():
            order.append(number)

    threads = [threading.Thread(target=enter, args=(i,)) for i in range(5)]
    with lock.turn():
        for count, thread in enumerate(threads):
            thread.start()
            once(lambda count=count: lock.waiting == count + 1)
    for thread in threads:
        thread.join(60)
    assert order == list(range(5))


def free(lock):
    """Whether another thread can have the lock."""

    def enter():
        with lock.turn(), lock.session("held"):
            return True

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(enter).result(60)


def test_an_error_inside_leaves_it():
    lock = Lock("m")
    with pytest.raises(ZeroDivisionError), lock.turn(), lock.session("held"):
        _ = 1 / 0
    assert free(lock)


def test_a_context_that_is_dropped_leaves_it():
    lock = Lock("m")
    turn = lock.turn()
    turn.__enter__()
    del turn
    assert free(lock)


def test_a_context_that_another_thread_drops_is_still_of_the_first():
    lock, own = Lock("m"), Lock("own")
    turns = []

    def enter():
        turns.append(lock.turn())
        turns[0].__enter__()

    def drop():
        with own.turn():
            turns.pop()
            return holds_turn(), lock.turn_within(0).__enter__()

    with ThreadPoolExecutor(1) as first, ThreadPoolExecutor(1) as second:
        first.submit(enter).result(60)
        assert second.submit(drop).result(60) == (True, False)
        assert not turns
        assert not second.submit(holds_turn).result(60)
        assert first.submit(holds_turn).result(60)


def test_a_session_admits_one_thread_and_turns_of_others():
    lock = Lock("m")
    with lock.session("held"), lock.session("held"), ThreadPoolExecutor(1) as pool:
        lock.require_no_session("held")
        with pytest.raises(RuntimeError, match=r"^held$"):
            pool.submit(lock.session("held").__enter__).result(60)
        with pytest.raises(RuntimeError, match=r"^held$"):
            pool.submit(lock.require_no_session, "held").result(60)

        def turn():
            with lock.turn():
                return True

        assert pool.submit(turn).result(60)
    assert free(lock)


@pytest.mark.parametrize("late", [False, True], ids=["waiting", "handed over"])
def test_a_wait_that_a_signal_ends_holds_nothing(interrupt, late):
    """`late`: the lock is handed over while the handler runs."""
    lock, taken, leave = Lock("m"), threading.Event(), threading.Event()

    def hold():
        with lock.turn():
            taken.set()
            assert leave.wait(60)

    def handler(number, frame):
        if late:
            leave.set()
            thread.join(60)
        raise Interrupted

    signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    waiter = threading.Thread(target=lambda: (once(lambda: lock.waiting), interrupt()))
    waiter.start()
    with pytest.raises(Interrupted), lock.turn():
        pytest.fail("it was held")
    leave.set()
    thread.join(60)
    waiter.join(60)
    assert free(lock)


def test_a_handler_may_enter_amid_a_wait_of_its_thread():
    lock, taken, leave, done = Lock("m"), threading.Event(), threading.Event(), []

    def hold():
        with lock.turn():
            taken.set()
            assert leave.wait(60)

    def handler(number, frame):
        leave.set()
        with lock.turn():
            done.append("handler")

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread = threading.Thread(target=hold)
        thread.start()
        assert taken.wait(60)
        pid = os.getpid()
        threading.Thread(
            target=lambda: (once(lambda: lock.waiting), os.kill(pid, signal.SIGUSR1))
        ).start()
        with lock.turn():
            done.append("waiter")
        thread.join(60)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert done == ["handler", "waiter"]
    assert free(lock)


def program(call):
    arena = Pool().arena()
    arena.grow(64)
    made = Program(arena)
    made.compute(CallbackKernel(call), [], [], None)
    return made


class Inside:
    """Counts how many programs run together."""

    def __init__(self, wait=lambda: None):
        self.now = self.most = 0
        self._lock = threading.Lock()
        self._wait = wait

    def __call__(self):
        with self._lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self._wait()
        with self._lock:
            self.now -= 1


@pytest.mark.parametrize("bound", [1, 2, 3])
def test_no_more_programs_run_than_the_bound(bound):
    config.threading.set_inter_op_parallelism_threads(bound)
    full = threading.Barrier(bound)
    inside = Inside(lambda: full.wait(60))  # passes only when the bound is reached
    with ThreadPoolExecutor(3 * bound) as threads:
        runs = [threads.submit(program(inside).run) for _ in range(3 * bound)]
        assert [run.result(60) for run in runs] == [-1] * (3 * bound)
    assert inside.most == bound


def test_without_a_bound_all_programs_run():
    everyone = threading.Barrier(8)
    inside = Inside(lambda: everyone.wait(60))
    with ThreadPoolExecutor(8) as threads:
        for run in [threads.submit(program(inside).run) for _ in range(8)]:
            run.result(60)
    assert inside.most == 8


def test_programs_that_fail_or_are_interrupted_leave_room(interrupt):
    config.threading.set_inter_op_parallelism_threads(1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            program(lambda: 1 / 0).run()
    running, leave = threading.Event(), threading.Event()
    other = program(lambda: (running.set(), leave.wait(60)))
    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(other.run)
        assert running.wait(60)
        timer = threading.Timer(0.1, interrupt)
        timer.start()
        with pytest.raises(Interrupted):
            program(lambda: pytest.fail("two ran")).run()
        leave.set()
        assert run.result(60) == -1
    assert program(lambda: None).run() == -1


def test_a_turn_is_waited_for_so_long_and_no_longer():
    lock = Lock("model")
    taken, leave = threading.Event(), threading.Event()

    def hold():
        with lock.turn():
            taken.set()
            assert leave.wait(60)

    with ThreadPoolExecutor(1) as threads:
        run = threads.submit(hold)
        assert taken.wait(60)
        with lock.turn_within(0.1) as is_taken:
            assert not is_taken
            assert not holds_turn()
        assert lock.waiting == 0
        threading.Timer(0.1, leave.set).start()
        with lock.turn_within(60) as is_taken:
            assert is_taken
            assert holds_turn()
            assert run.done()
            with lock.turn_within(0) as again:
                assert again
        assert not holds_turn()


def test_a_thread_knows_of_its_turns_of_all_locks():
    first, second = Lock("first"), Lock("second")
    with ThreadPoolExecutor(1) as threads, first.step():
        assert not threads.submit(holds_turn).result()
        with second.session("another"):
            assert holds_turn()
        with second.turn():
            pass
        assert holds_turn()
    with first.session("another"):
        assert not holds_turn()
