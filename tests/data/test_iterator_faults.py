"""Whatever goes wrong: good items first, the error as it was, no hang, nothing left.

Every test is for iterators that read ahead of an iterable and for passes over datasets
with threads of each kind.
"""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress

import numpy as np
import pytest
from calls import SOON, Call, data_threads, eventually, settle
from machine import resident_bytes

import memcfg as mc
from memcfg import memory
from memcfg.data import AUTOTUNE, AsyncDataSetIterator, Dataset, TensorSpec
from memcfg.errors import ResourceExhaustedError, WorkspaceSpillWarning

SPEC = TensorSpec((None,), np.int32)


class Again:
    """An iterable of what a generator function makes."""

    def __init__(self, source):
        self._source = source

    def __iter__(self):
        return self._source()


def dataset(source):
    return Dataset.from_generator(source, output_signature=SPEC)


def plus_one(array):
    return array + np.int32(1)


PIPELINES = {
    "async": lambda source: AsyncDataSetIterator(Again(source), 2),
    "async, no ring": lambda source: AsyncDataSetIterator(
        Again(source), 2, workspace=False
    ),
    "prefetch": lambda source: iter(dataset(source).prefetch(2)),
    "autotuned prefetch": lambda source: iter(dataset(source).prefetch(AUTOTUNE)),
    "batch and prefetch": lambda source: iter(dataset(source).batch(1).prefetch(2)),
    "two prefetches": lambda source: iter(
        dataset(source).prefetch(1).map(plus_one).prefetch(1)
    ),
    "shuffle, cache and prefetch": lambda source: iter(
        dataset(source).shuffle(1).cache().prefetch(1)
    ),
    "map in threads": lambda source: iter(
        dataset(source).map(plus_one, num_parallel_calls=2)
    ),
    "map in threads and prefetch": lambda source: iter(
        dataset(source).map(plus_one, num_parallel_calls=2).batch(1).prefetch(2)
    ),
    "interleave in threads": lambda source: iter(
        Dataset.range(1).interleave(
            lambda _: dataset(source), cycle_length=1, num_parallel_calls=1
        )
    ),
    "async over a dataset": lambda source: AsyncDataSetIterator(
        dataset(source).prefetch(1), 2
    ),
}
PLUS = {"two prefetches", "map in threads", "map in threads and prefetch"}


@pytest.fixture(params=PIPELINES)
def begin(request):
    """Begin a pass over what a generator function makes."""
    return PIPELINES[request.param]


@pytest.fixture
def numbers_of(request, begin):
    """Return the numbers that items are full of."""
    name = next(name for name, each in PIPELINES.items() if each is begin)
    return lambda items: [number(item) - (name in PLUS) for item in items]


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    assert settle(lambda: not data_threads())
    assert settle(lambda: in_use() == 0), in_use()


def in_use() -> int:
    return mc.config.get_memory_info("CPU:0")["current"]


def number(item) -> int:
    value = int(item.reshape(-1)[0])
    assert (item == value).all()
    return value


def count_to(n, then=None, size=100):
    """Make a generator function of `n` arrays, and what happens then."""

    def source():
        for value in range(n):
            yield np.full(size, value, np.int32)
        if then is not None:
            then()

    return source


def raising(error):
    def fail():
        raise error

    return fail


class Gate:
    """A source waits here until it is let go."""

    def __init__(self):
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self):
        self.reached.set()
        assert self._open.wait(SOON)

    def let_go(self):
        self._open.set()


@pytest.fixture
def gate():
    gate = Gate()
    yield gate
    gate.let_go()


def take(iterator, n):
    return [next(iterator) for _ in range(n)]


# The producer raises.


@pytest.mark.strength(1)
@pytest.mark.parametrize("n", [0, 1, 7])
@pytest.mark.parametrize(
    "kind",
    [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError, OSError],
)
def test_an_error_comes_behind_the_items_as_it_was_raised(begin, numbers_of, n, kind):
    error = kind("told")
    iterator = begin(count_to(n, raising(error)))
    assert numbers_of(take(iterator, n)) == list(range(n))
    with pytest.raises(kind) as caught:
        Call(next, iterator).result()
    assert caught.value is error
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(iterator)
    iterator.close()
    error.__traceback__ = None


def test_an_error_reaches_a_consumer_that_waits_already(begin, gate):
    error = ValueError("told")

    def then():
        gate()
        raise error

    iterator = begin(count_to(2, then))
    take(iterator, 2)
    waiting = Call(next, iterator)
    assert gate.reached.wait(SOON)
    assert waiting.waits
    gate.let_go()
    with pytest.raises(ValueError, match="told") as caught:
        waiting.result()
    assert caught.value is error
    iterator.close()


def test_stop_iteration_by_mistake_is_no_end(begin):
    iterator = begin(count_to(2, lambda: next(iter(()))))
    take(iterator, 2)
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(iterator)
    iterator.close()


def test_an_error_is_told_by_the_first_question(begin):
    iterator = begin(count_to(0, raising(ValueError("told"))))
    with pytest.raises(ValueError, match="told"):
        list(iterator)
    assert list(iterator) == []


def test_an_error_that_was_handled_keeps_no_memory(begin):
    iterator = begin(count_to(3, raising(ValueError("told")), size=10_000))
    with pytest.raises(ValueError, match="told"):
        list(iterator)
    iterator.close()
    del iterator


# The consumer ends early.


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_consumer_that_stops_early_and_closes(begin, numbers_of, taken):
    iterator = begin(count_to(1000))
    found = numbers_of(take(iterator, taken))
    iterator.close()
    iterator.close()
    assert found == list(range(taken))
    assert data_threads() == []
    assert in_use() == 0


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_consumer_that_forgets_to_close(begin, taken):
    iterator = begin(count_to(1000))
    for _ in range(taken):
        next(iterator)
    del iterator
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: in_use() == 0)


def test_a_consumer_that_breaks_out_of_its_loop(begin):
    for count, _ in enumerate(begin(count_to(1000))):
        if count == 3:
            break
    del _
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: in_use() == 0)


def test_a_consumer_that_fails(begin):
    def consume():
        with begin(count_to(1000)) as iterator:
            for count, _ in enumerate(iterator):
                assert count < 3

    with pytest.raises(AssertionError):
        Call(consume).result()
    assert data_threads() == []


@pytest.mark.parametrize("fails", [False, True])
def test_a_consumer_whose_thread_ends(begin, fails):
    def consume():
        iterator = begin(count_to(1000))
        take(iterator, 3)
        if fails:
            raise ValueError

    call = Call(consume)
    with suppress(ValueError):
        call.result()
    del call
    gc.collect()
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: in_use() == 0)


def test_items_that_are_kept_outlive_everything(begin, numbers_of):
    iterator = begin(count_to(1000))
    kept = take(iterator, 8)
    iterator.close()
    del iterator
    gc.collect()
    assert numbers_of(kept) == list(range(8))


# The source does not return.


def test_a_close_while_the_source_waits(begin, gate):
    iterator = begin(count_to(2, gate))
    take(iterator, 2)
    waiting = Call(next, iterator)
    assert gate.reached.wait(SOON)
    closing = Call(iterator.close)
    assert closing.waits
    gate.let_go()
    closing.result()
    with pytest.raises((StopIteration, RuntimeError)):
        waiting.result()
    assert data_threads() == []


def test_forgetting_while_the_source_waits(begin, gate):
    iterator = begin(count_to(1, gate))
    next(iterator)
    gate.reached.wait(1)  # all read ahead but one that maps in threads
    del iterator
    gate.let_go()
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: in_use() == 0)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="POSIX signals")
def test_ctrl_c_while_the_consumer_waits(begin, gate):
    iterator = begin(count_to(2, gate))
    take(iterator, 2)
    main = threading.main_thread().ident

    waits = threading.Event()

    def interrupt():
        assert gate.reached.wait(SOON)
        assert waits.wait(SOON)
        time.sleep(0.1)  # until it does
        signal.pthread_kill(main, signal.SIGINT)

    call = Call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        waits.set() or next(iterator)
    call.result()
    gate.let_go()
    iterator.close()
    assert data_threads() == []


# Several consumers.


def test_two_consumers_get_each_item_once(begin, numbers_of):
    iterator = begin(count_to(300))

    def consume():
        return [numbers_of([item])[0] for item in iterator]

    found = [call.result() for call in [Call(consume) for _ in range(2)]]
    assert sorted(found[0] + found[1]) == list(range(300))
    assert all(each == sorted(each) for each in found)
    iterator.close()


def test_two_consumers_and_an_error(begin, numbers_of):
    error = ValueError("told")
    iterator = begin(count_to(50, raising(error)))
    found, errors = [], []

    def consume():
        try:
            for item in iterator:
                found.append(number(item))  # noqa: PERF401  it may raise
        except ValueError as caught:
            errors.append(caught)

    for call in [Call(consume) for _ in range(2)]:
        call.result()
    assert errors == [error]
    assert len(found) == 50
    iterator.close()
    error.__traceback__ = None


# Memory.


def limit(cpu, size):
    given = mc.config.LogicalDeviceConfiguration(memory_limit=size)
    mc.config.set_logical_device_configuration(cpu, [given])


def test_an_array_that_does_not_fit_is_told_of_behind_the_items(begin, numbers_of, cpu):
    limit(cpu, "8MiB")

    def too_large():
        np.empty(2**26, np.int32)

    iterator = begin(count_to(5, too_large))
    assert numbers_of(take(iterator, 5)) == list(range(5))
    with pytest.raises(ResourceExhaustedError) as caught:
        next(iterator)
    assert caught.value.requested_bytes == 2**28
    assert caught.value.limit_bytes == 2**23
    iterator.close()


def test_a_batch_that_is_far_larger_than_the_others(begin, numbers_of):
    def source():
        for value in range(40):
            yield np.full(100_000 if value % 13 == 7 else 10, value, np.int32)

    iterator = begin(source)
    kept = [item for count, item in enumerate(iterator) if count % 5 == 2]
    assert numbers_of(kept) == list(range(2, 40, 5))
    iterator.close()


BUFFERED = {  # batches of 4 KiB
    "async": lambda n: AsyncDataSetIterator(Again(count_to(50, size=1024)), n),
    "prefetch": lambda n: iter(dataset(count_to(400, size=128)).batch(8).prefetch(n)),
}


@pytest.mark.parametrize("name", BUFFERED)
def test_a_ring_that_does_not_fit_says_which_buffer_does(name, cpu):
    limit(cpu, "64KiB")

    def read(buffer_size):
        with BUFFERED[name](buffer_size) as iterator:
            return sum(1 for _ in iterator)

    with pytest.raises(ResourceExhaustedError, match="buffer_size") as caught:
        read(20)
    fits = int(str(caught.value).rpartition("buffer_size=")[2].split()[0])
    del caught  # its frames keep a batch
    gc.collect()
    assert 8 <= fits < 14
    assert read(fits) == 50
    with pytest.raises(ResourceExhaustedError):
        read(fits + 4)


class Failing:
    """An allocator's failure callback that raises after some calls."""

    def __init__(self, error):
        self.error = error

    def __call__(self, nbytes):
        raise self.error


@pytest.mark.parametrize("kind", [KeyError, MemoryError, SystemExit])
@pytest.mark.parametrize("workspace", [True, False])
def test_an_error_of_the_resource_itself_reaches_the_consumer(kind, workspace):
    pool = memory.Pool(limit="64KiB")
    failing = memory.failure_callback(pool, Failing(kind("told")))
    source = count_to(5, lambda: np.empty(2**20))
    iterator = AsyncDataSetIterator(Again(source), 2, workspace, resource=failing)
    assert [number(item) for item in take(iterator, 5)] == list(range(5))
    with pytest.raises(kind):
        next(iterator)
    iterator.close()
    gc.collect()
    assert pool.owners() == {}


def keep_all(iterator, kept):
    with pytest.raises(ResourceExhaustedError):
        kept.extend(iterator)


def test_a_limit_that_falls_while_batches_are_kept(pool):
    limited = memory.limiting(pool, "1MiB")
    source = count_to(1000, size=1000)
    with AsyncDataSetIterator(Again(source), 2, resource=limited) as iterator:
        kept = take(iterator, 10)
        assert eventually(lambda: len(iterator._producer.queue) == 2)
        limited.set_limit(limited.stats().current_bytes)
        with pytest.warns(WorkspaceSpillWarning, match="cannot have its page"):
            keep_all(iterator, kept)
        assert [number(item) for item in kept] == list(range(len(kept)))
        assert len(kept) >= 12
        limited.set_limit("1MiB")
        iterator.reset()
        assert number(next(iterator)) == 0
    kept.clear()


# Forks, kills, and the end of the interpreter.


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_forked_child_is_told_and_the_parent_goes_on(begin, numbers_of, gate, busy):
    """Also while another thread of the parent waits in the iterator."""
    iterator = begin(count_to(5, gate if busy else None))
    found = take(iterator, 5 if busy else 2)
    waiting = Call(next, iterator) if busy else None
    assert not busy or gate.reached.wait(SOON)
    child = os.fork()
    if child == 0:
        told = False
        try:
            signal.alarm(SOON)
            try:
                next(iterator)
            except RuntimeError as error:
                told = "forked" in str(error)
            iterator.close()
            del iterator
            gc.collect()
        finally:
            os._exit(0 if told else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.let_go()
    if waiting is not None:
        with pytest.raises(StopIteration):
            waiting.result()
    found += list(iterator)
    assert numbers_of(found) == list(range(5))
    iterator.close()


PROGRAM = """
import atexit, gc, os, signal, sys, threading, time, warnings
sys.path[:0] = {paths!r}
import numpy as np
import memcfg as mc
from test_iterator_faults import PIPELINES, count_to
warnings.simplefilter("ignore", DeprecationWarning)  # fork in threads, 3.12
iterators = [begin(count_to({n}, {then})) for begin in PIPELINES.values()]
kept = [next(iterator) for iterator in iterators for _ in range(2)]
def read(iterator):
    for _ in iterator:
        pass
"""


def run(program, n=10**9, then="None", options=(), code=0):
    here = os.path.dirname(__file__)
    paths = [here, os.path.join(os.path.dirname(here), "support")]
    text = PROGRAM.format(paths=paths, n=n, then=then) + program
    done = subprocess.run(
        [sys.executable, "-W", "error", *options, "-c", text],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (code, "")


ENDS = {
    "as it is": "",
    "sys.exit": "sys.exit(0)",
    "in a loop": "[next(i) for i in iterators for _ in range(5)]; sys.exit()",
    "in a cycle": "class N: pass\nn = N(); n.n = n; n.i = iterators; del iterators",
    "threads that read": (
        "for i in iterators:\n"
        "    threading.Thread(target=read, args=(i,), daemon=True).start()"
    ),
    "a callback at exit": "atexit.register(lambda: [i.close() for i in iterators])",
    "a finalizer": (
        "class F:\n"
        "    def __del__(self):\n"
        "        for i in self.i: i.close()\n"
        "f = F(); f.f = f; f.i = iterators"
    ),
    "an iterator made at exit": (
        "atexit.register(lambda: next(mc.data.AsyncDataSetIterator([1, 2])))"
    ),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_interpreter_ends_in_silence(end):
    run(ENDS[end])


def test_the_interpreter_ends_while_sources_wait():
    run("time.sleep(0.2)", n=2, then="lambda: time.sleep(1000)")


def test_the_interpreter_ends_in_silence_in_its_debug_mode():
    run("", options=("-X", "dev"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
def test_a_child_that_was_forked_ends_as_usual():
    run("""
child = os.fork()
if child == 0:
    signal.alarm(60)
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
""")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="POSIX processes")
def test_processes_of_multiprocessing_have_iterators_of_their_own():
    run("""
from multiprocessing import get_context

def work(_):
    iterators = [begin(count_to(5)) for begin in PIPELINES.values()]
    return sum(1 for iterator in iterators for _ in iterator)

with get_context("fork").Pool(2) as workers:
    assert workers.map(work, range(2)) == [5 * len(PIPELINES)] * 2
""")


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_a_process_that_is_killed_leaves_nothing(tmp_path):
    """Its file is free again; no thread of it keeps the process alive."""
    here = os.path.dirname(__file__)
    paths = [here, os.path.join(os.path.dirname(here), "support")]
    path = tmp_path / "page"
    program = (
        PROGRAM.format(paths=paths, n=10**9, then="None")
        + f"""
file = mc.memory.mmap_file({str(path)!r}, "1MiB")
more = mc.data.AsyncDataSetIterator((np.ones(100) for _ in iter(int, 1)), resource=file)
next(more)
print("ready", flush=True)
time.sleep(1000)
"""
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        with pytest.raises(BlockingIOError):
            memory.mmap_file(path)
        process.kill()
        assert process.wait(SOON) == -signal.SIGKILL
    memory.mmap_file(path).close()
    path.unlink()


# For long.


SOAKED = ["async", "prefetch", "batch and prefetch", "map in threads"]


@pytest.mark.parametrize("name", SOAKED)
def test_a_hundred_thousand_cycles_take_no_more_memory(name, tenths):
    def source():
        value = 0
        while True:
            yield np.full(50, value, np.int32)
            value += 1

    iterator = PIPELINES[name](source)
    for _ in range(5000):
        item = next(iterator)
    tracked, resident = in_use(), resident_bytes()
    for _ in range(10_000 * tenths):
        item = next(iterator)
    assert number(item) - (name in PLUS) == 4999 + 10_000 * tenths
    # A map in threads takes more elements at a time, or fewer, as it goes.
    assert in_use() - tracked <= (2**17 if name in PLUS else 1024)
    assert resident_bytes() - resident < 4 * 2**20
    iterator.close()


def test_a_thousand_are_made_and_closed(begin, tenths):
    def once(n):
        iterator = begin(count_to(3))
        if n % 3:
            next(iterator)
        if n % 2:
            iterator.close()

    for n in range(20):
        once(n)
    gc.collect()
    resident = resident_bytes()
    for n in range(100 * tenths):
        once(n)
    assert eventually(lambda: not data_threads())
    assert eventually(lambda: in_use() == 0)
    assert resident_bytes() - resident < 8 * 2**20


def pipelines():
    """Each thread is there after the first element: `Thread.start` has conditions."""
    numbers = Dataset.range(10**5)
    return {
        "prefetch": numbers.batch(4).prefetch(2),
        "map": numbers.map(lambda x: x + 1, num_parallel_calls=1),
        "map and batch": numbers.map(lambda x: x + 1, num_parallel_calls=1).batch(4),
        "interleave": numbers.interleave(
            lambda x: Dataset.range(9), cycle_length=2, num_parallel_calls=1
        ),
    }


@pytest.fixture
def interrupts():
    """Make interrupts of the main thread, some time from now on."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", pipelines())
def test_an_interrupt_at_any_point_ends_the_threads(name, interrupts, tenths):
    """Ctrl-C in `threading.Condition` left its lock held, and the threads with it."""
    times = random.Random(5)
    for _ in range(20 * tenths):
        iterator = iter(pipelines()[name])
        next(iterator)  # the threads have been started
        with suppress(KeyboardInterrupt):
            try:
                interrupts(times.uniform(1e-5, 2e-3))
                for _ in iterator:
                    pass
            finally:
                interrupts(0)
        del iterator
        assert settle(lambda: not data_threads())


def test_warnings_of_a_source_are_raised_where_they_are_errors(begin):
    def source():
        warnings.warn("careful", UserWarning, stacklevel=1)
        yield np.zeros(1, np.int32)

    with pytest.raises(UserWarning, match="careful"):
        next(begin(source))
