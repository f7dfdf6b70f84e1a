"""Threads that call users' functions: order, ends, faults, memory."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest
from calls import Call, eventually
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Items, passing

import memcfg as mc
from memcfg import memory
from memcfg.errors import ResourceExhaustedError

Dataset, AUTOTUNE = mc.data.Dataset, mc.data.AUTOTUNE


def library_threads():
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("memcfg-data-")]


@settings(deadline=None)
@given(
    count=st.integers(0, 200),
    size=st.none() | st.integers(1, 50),
    calls=st.sampled_from([1, 2, 3, 8, AUTOTUNE]),
    rows=st.booleans(),
    known=st.booleans(),
    drop=st.booleans(),
    ordered=st.booleans(),
)
def test_results_are_those_of_a_loop(count, size, calls, rows, known, drop, ordered):
    x = np.arange(2.0 * count).reshape(count, 2)
    data = Dataset.from_tensor_slices((x, np.arange(count)))
    data = data if rows else data.concatenate(data.take(0))
    data = data if known else data.filter(lambda *_: True)
    data = data.map(
        lambda row, n: (row * 2, n + 1), num_parallel_calls=calls, deterministic=ordered
    )
    if size is not None:
        batches = list(data.batch(size, drop_remainder=drop))
        left = count % size
        assert [len(n) for _, n in batches[: count // size]] == [size] * (count // size)
        assert len(batches) == count // size + bool(left and not drop)
        count -= left if drop else 0
        found = [pair for batch in batches for pair in zip(*batch, strict=True)]
    else:
        found = list(data)
    labels = [int(n) for _, n in found]
    assert (labels if ordered else sorted(labels)) == list(range(1, count + 1))
    for row, n in found:
        assert (row == 2 * x[n - 1]).all()


def test_so_many_functions_run_at_once():
    lock, running, most = threading.Lock(), 0, 0
    gate = threading.Barrier(4, timeout=60)

    def function(number):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        if number < 4:
            gate.wait()  # four must be here at a time
        with lock:
            running -= 1
        return number

    for size in (None, 4):
        gate.reset()
        data = Dataset.range(100).map(function, num_parallel_calls=4)
        data = data if size is None else data.batch(size).unbatch()
        assert list(data) == list(range(100))
    assert most == 4


def test_a_batch_of_slow_elements_is_divided():
    names = set()

    def function(number):
        names.add(threading.get_ident())
        time.sleep(0.002)
        return number

    data = Dataset.range(128).map(function, num_parallel_calls=4).batch(64)
    assert [batch.tolist()[0] for batch in data] == [0, 64]
    assert len(names) == 4


def test_without_order_the_quick_are_not_kept_waiting():
    slow = threading.Event()

    def function(number):
        if number == 0:
            assert slow.wait(60)
        return number

    for size, calls in ((None, 2), (4, 2)):
        slow.clear()
        data = Dataset.range(400).map(
            function, num_parallel_calls=calls, deterministic=False
        )
        data = data if size is None else data.batch(size)
        found = []
        with iter(data) as elements:
            found.append(next(elements))
            slow.set()
            found += elements
        assert np.min(found[0]) > 0
        assert sorted(np.ravel(found).tolist()) == list(range(400))


def test_options_say_whether_there_is_an_order():
    options = mc.data.Options()
    options.deterministic = False
    held = threading.Event()

    def function(number):
        assert number or held.wait(60)
        return number

    data = Dataset.range(50).map(function, num_parallel_calls=2).with_options(options)
    with iter(data) as elements:
        assert next(elements) > 0
        held.set()
    ordered = Dataset.range(50).map(
        lambda n: n, num_parallel_calls=2, deterministic=True
    )
    assert list(ordered.with_options(options)) == list(range(50))


@pytest.mark.parametrize("size", [None, 8])
@pytest.mark.parametrize("how", ["close", "forget", "close in the middle"])
def test_nothing_is_left_while_a_function_blocks(size, how, pool):
    begun, let = threading.Event(), threading.Event()

    def function(number):
        if number == 200:
            begun.set()
            assert let.wait(60)
        return np.full(100, number)

    data = Dataset.range(1000).map(function, num_parallel_calls=2)
    data = data if size is None else data.batch(size)
    elements = passing(data, pool)
    reader = Call(lambda read: sum(1 for _ in read), elements)
    assert begun.wait(60)
    if how == "close in the middle":
        closer = Call(elements.close)
        assert reader.result() > 0  # it ends at once
        let.set()
        closer.result()
    else:
        let.set()
        if how == "close":
            closer = Call(elements.close)
            closer.result()
        reader.result()
    del elements, reader
    assert eventually(lambda: not library_threads())


def test_a_source_that_fails_does_so_behind_its_elements():
    error = KeyError("boom")
    for size in (None, 4):
        data = Items([np.int64(n) for n in range(10)] + [error])
        node = Dataset(data).map(lambda n: n, num_parallel_calls=3)
        node = node if size is None else node.batch(size)
        found = []
        with passing(node) as elements:
            with pytest.raises(KeyError) as caught:
                found.extend(elements)
            assert caught.value is error
        assert np.ravel(found).tolist() == list(range(10 if size is None else 8))


def test_nothing_that_was_done_is_lost_without_order():
    def function(number):
        if number == 30:
            raise KeyError(number)
        return number

    data = Dataset.range(1000).map(function, num_parallel_calls=4, deterministic=False)
    found = []
    with iter(data) as elements, pytest.raises(KeyError):
        found.extend(elements)
    assert set(range(30)) <= {int(n) for n in found}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.parametrize("size", [None, 4])
def test_a_forked_child_is_told_and_restarts(size):
    data = Dataset.range(100).map(lambda n: n + 1, num_parallel_calls=2)
    data = data if size is None else data.batch(size)
    with iter(data) as elements:
        next(elements)
        child = os.fork()
        if not child:
            code = 1
            try:
                next(elements)
            except RuntimeError as error:
                again = np.ravel(list(data)).tolist() == list(range(1, 101))
                code = 0 if "forked" in str(error) and again else 2
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert np.ravel(list(elements)).tolist()[-1] == 100


@pytest.mark.parametrize("calls", [2, AUTOTUNE])
def test_text_and_other_shapes_in_batches(calls):
    words = np.array(["a", "bcd", "ef", "ghijk"] * 10)
    data = Dataset.from_tensor_slices(words)
    data = data.map(lambda word: word + "!", num_parallel_calls=calls)
    found = [batch.tolist() for batch in data.batch(3)]
    assert sum(found, []) == [word + "!" for word in words]  # noqa: RUF017
    sizes = np.repeat([3, 5, 2, 2, 7], 4)
    data = Dataset.from_tensor_slices(sizes).map(np.zeros, num_parallel_calls=calls)
    shapes = [batch.shape for batch in data.batch(4)]
    assert shapes == [(4, n) for n in (3, 5, 2, 2, 7)]
    ragged = Dataset.range(100).map(
        lambda n: np.zeros(3 if n < 50 else 4), num_parallel_calls=calls
    )
    with iter(ragged.batch(8)) as batches:
        for _ in range(6):
            assert next(batches).shape == (8, 3)
        with pytest.raises(ValueError, match=r"different shapes.*\[3\].*\[4\]"):
            next(batches)


def test_batches_that_are_kept_are_not_overwritten():
    x = np.arange(4000.0).reshape(2000, 2)
    data = Dataset.from_tensor_slices(x).map(lambda row: row + 1, num_parallel_calls=2)
    kept = list(data.batch(16).prefetch(2))
    assert (np.concatenate(kept) == x + 1).all()


@pytest.mark.parametrize("limit", ["2MiB", "600KiB"])
@pytest.mark.parametrize("ordered", [True, False])
def test_a_small_limit_makes_fewer_batches_at_a_time(limit, ordered):
    """A batch has 160 KiB and an element 8; three threads ask for four batches."""
    pool = memory.Pool(limit=limit)
    data = Dataset.range(400).map(
        lambda number: np.full(1024, 2.0 * number), num_parallel_calls=3
    )
    options = mc.data.Options()
    options.deterministic = ordered
    found = []
    with passing(data.batch(20).with_options(options), pool) as batches:
        for batch in batches:
            assert batch.shape == (20, 1024)
            assert (batch == batch[:, :1]).all()
            found += [*batch[:, 0]]
    assert (found if ordered else sorted(found)) == [*range(0, 800, 2)]
    del batch
    assert eventually(lambda: not pool.owners())


def test_no_memory_for_a_batch():
    pool = memory.Pool(limit="100KiB")
    x = np.ones((400, 1024))
    data = Dataset.from_tensor_slices(x).map(lambda row: row * 2, num_parallel_calls=3)
    with (
        passing(data.batch(20), pool) as batches,
        pytest.raises(ResourceExhaustedError),
    ):
        list(batches)


def test_a_private_thread_pool_bounds_the_threads_of_a_pass():
    options = mc.data.Options()
    options.threading.private_threadpool_size = 2
    threads = set()

    def function(number):
        threads.add(threading.get_ident())
        time.sleep(0.001)
        return number

    data = Dataset.range(100).map(function, num_parallel_calls=8).with_options(options)
    with iter(data) as elements:
        assert list(elements) == list(range(100))
        (stage,) = elements.report().stages
    assert stage.parallelism == 2
    assert len(threads) == 2


def test_a_slow_source_does_not_hold_results_back():
    let = threading.Event()

    def source():
        yield 1
        assert let.wait(60)
        yield 2

    spec = mc.data.TensorSpec((), np.int32)
    data = Dataset.from_generator(source, output_signature=spec)
    with iter(data.map(lambda n: n * 2, num_parallel_calls=2)) as elements:
        assert Call(next, elements).result() == 2
        let.set()
        assert list(elements) == [4]


@pytest.mark.parametrize("size", [None, 2])
def test_reads_come_in_order_and_the_last_reader_closes(size):
    seen, closed, inside, let = [], [], threading.Event(), threading.Event()

    def source():
        try:
            for number in range(100):
                seen.append(number)
                if number == 3:
                    inside.set()
                    assert let.wait(60)
                yield number
        finally:
            closed.append(threading.get_ident())

    spec = mc.data.TensorSpec((), np.int64)
    data = Dataset.from_generator(source, output_signature=spec)
    data = data.map(lambda n: n, num_parallel_calls=4)
    elements = iter(data if size is None else data.batch(size))
    reader = Call(list, elements)
    assert inside.wait(60)
    closer = Call(elements.close)
    found = reader.result()  # it ends at once
    assert np.ravel(found).tolist() == list(range(3))[: np.size(found)]
    assert closed == []
    let.set()
    closer.result()
    assert eventually(lambda: len(closed) == 1)
    assert seen == [0, 1, 2, 3]
    assert closed != [threading.get_ident()]
    assert list(elements) == []


@pytest.mark.parametrize("calls", [2, AUTOTUNE])
@pytest.mark.parametrize("size", [None, 10])
def test_reports(calls, size):
    data = Dataset.range(100).map(lambda n: n, num_parallel_calls=calls, name="work")
    data = data if size is None else data.batch(size)
    with iter(data) as elements:
        list(elements)
        (stage,) = elements.report().stages
    assert stage.name == ("work" if size is None else "work+batch")
    assert stage.autotuned == (calls == AUTOTUNE)
    assert stage.parallelism >= 1
    assert stage.items == 100
    assert stage.waited_seconds > 0
