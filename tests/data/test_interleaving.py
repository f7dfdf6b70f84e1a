"""Inner datasets in a cycle: against tf.data's rule in plain Python, with threads and
without; faults, ends, and what is left behind."""

from __future__ import annotations

import gc
import os
import threading
import time
from itertools import chain, islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import Items, listed, numbers, passing

from memcfg.data import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Dataset,
    Options,
    TensorSpec,
)
from memcfg.errors import ResourceExhaustedError
from memcfg.memory import Pool


def interleaved(lists, cycle_length, block_length):
    """TensorFlow's InterleaveDataset: slots, an index, and one step at a time."""
    waiting = iter(lists)
    slots = [None] * cycle_length
    slot = block = opened = 0
    ended = False
    out = []
    while not ended or opened:
        if slots[slot] is not None:
            item = next(slots[slot], None)
            if item is None:
                slots[slot] = None
                opened -= 1
                slot, block = (slot + 1) % cycle_length, 0
                continue
            out.append(item)
            block += 1
            if block == block_length:
                slot, block = (slot + 1) % cycle_length, 0
        elif not ended:
            found = next(waiting, None)
            ended = found is None
            if not ended:
                slots[slot] = iter(found)
                opened += 1
        else:
            slot, block = (slot + 1) % cycle_length, 0
    return out


def lists_of(lengths):
    starts = [100 * number for number in range(len(lengths))]
    return [
        [start + slot for slot in range(length)]
        for start, length in zip(starts, lengths, strict=True)
    ]


def interleave(source, made_of, *arguments):
    """Interleave what nodes or datasets a function makes of a node's elements."""

    def dataset_of(element):
        made = made_of(element)
        return made if isinstance(made, Dataset) else Dataset(made)

    return Dataset(source).interleave(dataset_of, *arguments)


def rows(count):
    return Dataset.range(count)


def of_lists(lists, *arguments):
    return interleave(
        numbers(len(lists)),
        lambda number: Items([np.int64(value) for value in lists[number]]),
        *arguments,
    )


@given(
    st.lists(st.integers(0, 7), max_size=12),
    st.integers(1, 6),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(1, 3)),
)
@settings(deadline=None, max_examples=300)
def test_cycles_are_those_of_tensorflow(lengths, cycle, block, calls):
    lists = lists_of(lengths)
    if calls is not None:
        calls = min(calls, cycle)
    node = of_lists(lists, cycle, block, calls, None if calls is None else True)
    assert listed(node) == interleaved(lists, cycle, block)


@given(st.lists(st.integers(0, 7), max_size=12), st.integers(1, 6), st.integers(1, 4))
@settings(deadline=None, max_examples=50)
def test_without_an_order_each_inner_dataset_keeps_its_own(lengths, cycle, block):
    lists = lists_of(lengths)
    found = listed(of_lists(lists, cycle, block, min(2, cycle), False))
    for items in lists:
        assert [value for value in found if value in items] == items
    assert len(found) == sum(lengths)


@given(st.lists(st.integers(0, 5), max_size=8))
@settings(deadline=None)
def test_flat_map_is_one_after_the_other(lengths):
    lists = lists_of(lengths)
    node = Dataset.range(len(lists)).flat_map(
        lambda n: Dataset(Items([np.int64(v) for v in lists[n]]))
    )
    assert listed(node) == [value for items in lists for value in items]


def test_a_cycle_that_nobody_sets_follows_the_processors():
    lists = lists_of([3] * 10)
    cores = len(os.sched_getaffinity(0))
    for arguments, cycle in [
        ((), cores),
        ((-1,), cores),
        ((None, 1, 1), 1),
        ((None, 1, 100), min(100, cores)),
        ((None, 1, -1), -(-cores // 3)),
        ((-1, 1, -1), -(-cores // 3)),
        ((3, 1, -1), 3),
    ]:
        assert listed(of_lists(lists, *arguments)) == interleaved(lists, cycle, 1)


def test_options_say_what_the_step_does_not():
    options = Options()
    options.deterministic = False
    options.threading.private_threadpool_size = 1
    lists = lists_of([3] * 4)
    node = of_lists(lists, 4, 1, 4)
    with iter(node.with_options(options)) as elements:
        assert sorted(int(x) for x in elements) == sorted(chain(*lists))
        (stage,) = elements.report().stages
    assert (stage.name, stage.parallelism, stage.items) == ("interleave", 1, 12)
    assert not stage.autotuned


@pytest.mark.parametrize("calls", [None, 2])
def test_specs_and_cardinalities(calls):
    node = interleave(numbers(3), lambda n: rows(2), 2, 1, calls)
    assert node.element_spec == TensorSpec((), np.int64)
    assert node.cardinality() == UNKNOWN_CARDINALITY
    endless = interleave(
        Items([np.int64(1)], endless=True), lambda n: rows(2), 2, 1, calls
    )
    assert endless.cardinality() == (
        UNKNOWN_CARDINALITY if calls is None else INFINITE_CARDINALITY
    )
    with pytest.raises(ValueError, match="no element"):
        _ = interleave(numbers(0), lambda n: rows(2), 2, 1, calls).element_spec


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((0,), ValueError),
        ((-2,), ValueError),
        ((2.5,), TypeError),
        ((True,), TypeError),
        ((2, 0), ValueError),
        ((2, -1), ValueError),
        ((2, 1, 0), ValueError),
        ((2, 1, -2), ValueError),
        ((2, 1, 3), ValueError),
        ((2, 1, 1.0), TypeError),
        ((2, 1, 1, 1), TypeError),
    ],
)
def test_arguments_that_are_none_are_refused(arguments, error):
    with pytest.raises(error):
        Dataset.range(3).interleave(rows, *arguments)


def test_an_order_without_threads_is_told_of():
    with pytest.warns(UserWarning, match="no effect without num_parallel_calls"):
        Dataset.range(3).interleave(rows, 2, 1, None, True)


# Faults

CALLS = pytest.mark.parametrize("calls", [None, 1, 2])


@CALLS
@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, SystemExit])
def test_what_an_inner_pass_raises_comes_behind_what_it_made(calls, kind):
    boom = kind("boom")
    lists = [[1, 2, 3], [4, boom], [5, 6, 7]]
    node = interleave(
        numbers(3),
        lambda n: Items([v if v is boom else np.int64(v) for v in lists[n]]),
        3,
        1,
        calls,
    )
    elements = passing(node)
    assert [int(x) for x in islice(elements, 4)] == [1, 4, 5, 2]
    with pytest.raises(kind) as caught:
        next(elements)
    assert caught.value is boom
    assert list(elements) == []


@CALLS
@pytest.mark.parametrize("ordered", [True, False])
def test_what_is_raised_within_a_block_comes_behind_what_it_took(calls, ordered):
    boom = ValueError("boom")
    node = interleave(
        numbers(1),
        lambda n: Items([np.int64(0), np.int64(1), boom]),
        2,
        4,
        calls,
        None if calls is None else ordered,
    )
    elements = passing(node)
    assert [int(x) for x in islice(elements, 2)] == [0, 1]
    with pytest.raises(ValueError, match="boom") as caught:
        next(elements)
    assert caught.value is boom
    assert list(elements) == []


class Boom(BaseException):
    """An error of a user's that is no Exception."""


@CALLS
def test_any_error_of_the_source_comes_when_its_block_does(calls):
    source = Items([np.int64(1), np.int64(5), Boom()])
    elements = passing(interleave(source, lambda n: rows(int(n)), 2, 1, calls))
    found = []
    with pytest.raises(Boom):
        found.extend(int(x) for x in elements)
    assert found == [0, 0, 1]


@CALLS
def test_what_the_source_raises_comes_behind_what_was_made(calls):
    boom = ValueError("boom")
    source = Items([np.int64(0), np.int64(1), boom])
    elements = passing(interleave(source, lambda n: rows(2), 2, 1, calls))
    found = []
    with pytest.raises(ValueError, match="boom") as caught:
        found.extend(int(x) for x in elements)
    assert caught.value is boom
    assert found == [0, 0, 1, 1]


@CALLS
@pytest.mark.parametrize("kind", [ValueError, StopIteration])
def test_what_the_function_raises_is_no_end(calls, kind):
    boom = kind("boom")

    def fail(number):
        if number == 1:
            raise boom
        return rows(2)

    elements = passing(interleave(numbers(2), fail, 1, 1, calls and 1))
    assert [int(next(elements)), int(next(elements))] == [0, 1]
    with pytest.raises(RuntimeError if kind is StopIteration else kind) as caught:
        next(elements)
    assert boom in (caught.value, caught.value.__cause__)


@CALLS
def test_a_pass_that_is_left_closes_the_inner_ones(calls):
    closed = []

    def items(number):
        try:
            for value in range(100):
                yield np.int64(value)
        finally:
            closed.append(int(number))

    class Inner(Items):
        def elements(self, run):
            return items(self.items)

    for leave in (lambda elements: elements.close(), lambda elements: None):
        closed.clear()
        elements = passing(interleave(numbers(10), Inner, 4, 1, calls))
        for _ in range(9):
            next(elements)
        leave(elements)
        del elements
        gc.collect()
        end = time.monotonic() + 10
        while sorted(closed) != [0, 1, 2, 3] and time.monotonic() < end:
            time.sleep(0.01)
        assert sorted(closed) == [0, 1, 2, 3]


@pytest.mark.parametrize("wait", [True, False])
def test_a_pass_closed_while_a_thread_is_in_a_function(wait):
    entered, leave, closed = threading.Event(), threading.Event(), []

    class Inner(Items):
        def elements(self, run):
            try:
                entered.set()
                leave.wait(60)
                yield np.int64(1)
            finally:
                closed.append(True)

    elements = passing(interleave(numbers(3), Inner, 2, 1, 2))
    reader = threading.Thread(target=lambda: list(elements))
    reader.start()
    assert entered.wait(60)
    if wait:
        threading.Timer(0.2, leave.set).start()
        elements.close()
    else:
        elements._run.close()
        leave.set()
    reader.join(60)
    assert not reader.is_alive()
    end = time.monotonic() + 10
    while not closed and time.monotonic() < end:
        time.sleep(0.01)
    assert closed


@CALLS
def test_endless_empty_datasets_end_when_the_pass_is_closed(calls):
    source = Items([np.int64(0)], endless=True)
    elements = passing(interleave(source, lambda n: rows(0), 2, 1, calls))
    reader = threading.Thread(target=lambda: list(elements))
    reader.start()
    time.sleep(0.05)
    elements._run.close()
    reader.join(60)
    assert not reader.is_alive()


def test_threads_work_side_by_side():
    both = threading.Barrier(2, timeout=60)

    class Inner(Items):
        def elements(self, run):
            both.wait()
            return iter([np.int64(1)])

    assert listed(interleave(numbers(4), Inner, 2, 1, 2)) == [1, 1, 1, 1]


@CALLS
def test_prefetched_inner_datasets_leave_no_thread(calls, pool):
    node = interleave(numbers(30), lambda n: rows(3).prefetch(2), 3, 1, calls)
    elements = passing(node, pool)
    assert len(list(elements)) == 90
    assert elements._run._parts == [] or calls
    elements = passing(node, pool)
    next(elements)
    elements.close()


@CALLS
def test_arrays_of_an_element_live_as_long_as_its_dataset(calls, pool):
    def element():
        return np.arange(1000.0)

    def rows_of(array):
        return Items([lambda value=value: np.full(10, value) for value in array])

    node = interleave(Items([element] * 8), rows_of, 3, 2, calls)
    total = 0.0
    for array in passing(node.prefetch(4), pool):
        total += array[0] * (array == array[0]).all()
    assert total == 8 * sum(range(1000))


@CALLS
def test_what_does_not_fit_is_told(calls):
    pool = Pool(limit="1MiB", name="small")
    node = interleave(
        numbers(2), lambda n: Items([lambda: np.ones(2**20)]), 2, 1, calls
    )
    with pytest.raises(ResourceExhaustedError):
        list(passing(node, pool))
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_a_forked_child_is_told_to_restart():
    elements = passing(of_lists(lists_of([5] * 4), 2, 1, 2))
    next(elements)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(elements)
        except RuntimeError as error:
            code = 0 if "forked" in str(error) else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(elements)) == 19


def test_seeds_of_a_shuffle_that_many_inner_passes_share():
    shared = rows(20).shuffle(20, 3)
    node = Dataset.range(3).flat_map(lambda n: shared)
    assert listed(node) == listed(rows(20).shuffle(20, 3).repeat(3))
