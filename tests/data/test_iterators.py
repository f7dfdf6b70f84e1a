"""Iterators: the protocol, and those that need no thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg.data import (
    DataSet,
    DataSetIterator,
    DataSetIteratorSplitter,
    DummyBlockDataSetIterator,
    EarlyTerminationDataSetIterator,
    ExistingDataSetIterator,
    ListDataSetIterator,
    MultiDataSet,
    MultipleEpochsIterator,
)


class Counting(DataSetIterator):
    """Counts to `n`, as a user would write it; one that is read too far says so."""

    batch = 32

    def __init__(self, n: int) -> None:
        self.n, self.index, self.calls = n, 0, []

    def has_next(self):
        self.calls.append("has_next")
        return self.index < self.n

    def next(self):
        if self.index >= self.n:
            raise IndexError("read too far")
        self.calls.append("next")
        self.index += 1
        return self.index - 1

    def reset(self):
        self.calls.append("reset")
        self.index = 0

    def close(self):
        self.calls.append("close")


class Forward(DataSetIterator):
    """Cannot restart."""

    def has_next(self):
        return False

    def next(self):
        raise StopIteration


def makers():
    """One of each kind, over the numbers 0 to 9; all can restart."""
    return {
        "a user's": lambda: Counting(10),
        "existing list": lambda: ExistingDataSetIterator(list(range(10))),
        "existing iterator": lambda: ExistingDataSetIterator(Counting(10)),
        "list": lambda: ListDataSetIterator(range(10)),
        "over": lambda: DummyBlockDataSetIterator(range(10)),
        "early": lambda: EarlyTerminationDataSetIterator(range(100), 10),
        "late": lambda: EarlyTerminationDataSetIterator(Counting(10), 11),
        "one epoch": lambda: MultipleEpochsIterator(1, Counting(10)),
        "block": lambda: DummyBlockDataSetIterator(Counting(10)),
        "part": lambda: DataSetIteratorSplitter(range(10), [10]).train_iterator,
    }


@pytest.fixture(params=makers())
def iterator(request):
    return makers()[request.param]()


# What holds of every iterator.


def test_it_is_its_own_iterator_and_a_context_manager(iterator):
    assert iter(iterator) is iterator
    with iterator as entered:
        assert entered is iterator
        assert list(iterator) == list(range(10))
    iterator.close()


def test_at_the_end_it_stays(iterator):
    assert [next(iterator) for _ in range(10)] == list(range(10))
    for _ in range(3):
        assert not iterator.has_next()
        with pytest.raises(StopIteration):
            next(iterator)


def test_it_restarts(iterator):
    assert iterator.reset_supported
    for taken in (3, 10, 0):
        for _ in range(taken):
            next(iterator)
        iterator.reset()
        assert list(iterator) == list(range(10))
        iterator.reset()


@given(st.lists(st.sampled_from(["has_next", "next", "python", "reset"]), max_size=40))
def test_any_order_of_calls_gives_each_item_once(calls):
    for make in makers().values():
        iterator, index = make(), 0
        for call in calls:
            if call == "has_next":
                assert iterator.has_next() == (index < 10)
            elif call == "reset":
                iterator.reset()
                index = 0
            elif index < 10:
                take = next if call == "python" else type(iterator).next
                assert take(iterator) == index
                index += 1
            else:
                with pytest.raises(StopIteration):
                    next(iterator)


def test_a_thread_may_read_ahead(iterator):
    assert iterator.async_supported is True


# The protocol.


def test_has_next_and_next_are_enough():
    iterator = Forward()
    assert list(iterator) == []
    assert not iterator.reset_supported
    assert iterator.async_supported
    with pytest.raises(RuntimeError, match=r"Forward object at .* cannot restart"):
        iterator.reset()
    iterator.close()


def test_python_asks_a_users_iterator_before_it_reads():
    iterator = Counting(2)
    assert list(iterator) == [0, 1]
    assert iterator.calls == ["has_next", "next"] * 2 + ["has_next"]


# Over anything.


def test_each_pass_over_an_iterable_is_its_own():
    begun = []

    class Source:
        batch = 7

        def __iter__(self):
            begun.append(True)
            try:
                yield from range(3)
            finally:
                begun.append(False)

    iterator = ExistingDataSetIterator(Source())
    assert begun == []
    assert next(iterator) == 0
    iterator.reset()
    assert begun == [True, False]
    assert list(iterator) == [0, 1, 2]
    assert iterator.batch == 7
    next(ExistingDataSetIterator(Source()))
    iterator.reset()
    next(iterator)
    iterator.close()
    assert begun[-1] is False


def test_what_is_given_is_not_closed():
    closed = []

    def numbers():
        try:
            yield from range(5)
        finally:
            closed.append(True)

    source = numbers()
    iterator = ExistingDataSetIterator(source)
    assert iterator.has_next()
    iterator.close()
    assert next(source) == 1
    assert not closed


def test_a_generator_can_be_read_once():
    iterator = ExistingDataSetIterator(number for number in range(3))
    assert list(iterator) == [0, 1, 2]
    assert not iterator.reset_supported
    with pytest.raises(RuntimeError, match=r"generator object .* cannot restart"):
        iterator.reset()


def test_an_iterator_that_cannot_be_reset_says_so():
    class Source(Counting):
        reset_supported = False

    assert not ExistingDataSetIterator(Source(3)).reset_supported


def test_what_can_be_indexed_can_be_iterated_over():
    class Source:
        def __getitem__(self, index):
            if index > 2:
                raise IndexError
            return index

    assert list(ExistingDataSetIterator(Source())) == [0, 1, 2]


@pytest.mark.parametrize(
    "wrong", [None, 5, object(), {"x": 1}, "batches", b"", DataSet([1.0])]
)
def test_what_cannot_be_iterated_over_is_refused(wrong):
    for make in (
        ExistingDataSetIterator,
        DummyBlockDataSetIterator,
    ):
        with pytest.raises(TypeError, match="an iterable of batches is needed"):
            make(wrong)


def test_an_error_is_raised_where_it_was_read():
    def source():
        yield 1
        raise KeyError("two")

    iterator = ExistingDataSetIterator(source())
    assert iterator.has_next()
    assert iterator.next() == 1
    with pytest.raises(KeyError, match="two"):
        iterator.has_next()


def test_what_is_read_to_look_ahead_lies_in_no_workspace():
    def source():
        for _ in range(2):
            yield np.ones(3)

    iterator = ExistingDataSetIterator(source())
    with mc.workspace("loop"):
        assert iterator.has_next()
        ahead, other = iterator.next(), iterator.next()
        assert not mc.is_attached(ahead)
        assert mc.is_attached(other)
        del other
    mc.destroy_all_workspaces()


def test_iterators_are_taken_as_they_are():
    iterator = Counting(3)
    assert DummyBlockDataSetIterator(iterator)._base is iterator
    assert isinstance(DummyBlockDataSetIterator([1])._base, ExistingDataSetIterator)


# Over an iterator.


def test_what_an_iterator_lacks_is_that_of_the_one_below():
    below = Counting(5)
    early = EarlyTerminationDataSetIterator(DummyBlockDataSetIterator(below), 2)
    assert (early.batch, early.n) == (32, 5)
    with pytest.raises(AttributeError, match="nothing"):
        early.nothing  # noqa: B018
    with pytest.raises(AttributeError, match="_secret"):
        early._secret  # noqa: B018
    with early:
        pass
    assert below.calls == ["close"]

    class Shy(Counting):
        async_supported = False
        reset_supported = False

    for over in (
        DummyBlockDataSetIterator(Shy(1)),
        EarlyTerminationDataSetIterator(Shy(1), 1),
    ):
        assert (over.async_supported, over.reset_supported) == (False, False)


def test_next_alone_does_not_look_ahead():
    below = Counting(5)
    early = EarlyTerminationDataSetIterator(below, 3)
    assert list(early) == [0, 1, 2]
    assert below.index == 3


def test_a11_early_termination():
    iterator = EarlyTerminationDataSetIterator(ListDataSetIterator(range(5)), 2)
    for _ in range(2):
        count = 0
        while iterator.has_next():
            assert iterator.next() == count
            count += 1
        assert count == 2
        with pytest.raises(StopIteration):
            iterator.next()
        iterator.reset()


@pytest.mark.parametrize("wrong", [0, -1, 1.5, "2", True, None])
def test_early_termination_needs_a_number(wrong):
    with pytest.raises((TypeError, ValueError), match="termination_point"):
        EarlyTerminationDataSetIterator([1], wrong)


def test_a10_blocks():
    blocks = DummyBlockDataSetIterator(ListDataSetIterator(range(8)))
    assert [len(blocks.next(3)) for _ in range(3)] == [3, 3, 2]
    assert not blocks.has_anything()
    with pytest.raises(StopIteration):
        blocks.next(3)
    blocks.reset()
    assert blocks.has_anything()
    assert (blocks.next(), blocks.next(2), next(blocks)) == (0, [1, 2], 3)
    for wrong in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="max_data_sets"):
            blocks.next(wrong)


@given(st.integers(0, 20), st.lists(st.integers(1, 7), max_size=20))
def test_blocks_are_all_batches_in_order(n, sizes):
    blocks, found = DummyBlockDataSetIterator(range(n)), []
    for size in sizes:
        if not blocks.has_anything():
            break
        block = blocks.next(size)
        assert len(block) == min(size, n - len(found))
        found += block
    assert found == list(range(min(n, sum(sizes))))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ListDataSetIterator([1, 2]),
        lambda: DataSetIteratorSplitter([1, 2, 3], 3, 2 / 3).train_iterator,
    ],
)
def test_the_end_is_told_as_often_as_it_is_asked(make):
    iterator = make()
    assert [iterator.next(), iterator.next()] == [1, 2]
    for _ in range(2):
        assert not iterator.has_next()
        with pytest.raises(StopIteration):
            iterator.next()
    iterator.reset()
    assert iterator.next() == 1


def test_several_epochs_are_one():
    below = Counting(3)
    epochs = MultipleEpochsIterator(3, below)
    found = [(epochs.next(), epochs.epoch) for _ in range(9)]
    assert found == [(item, epoch) for epoch in range(3) for item in range(3)]
    with pytest.raises(StopIteration):
        epochs.next()
    assert below.calls.count("reset") == 2
    epochs.reset()
    assert epochs.epoch == 0
    count = 0
    while epochs.has_next():
        assert epochs.next() == count % 3
        count += 1
    assert count == 9


def test_epochs_of_nothing_end():
    for epochs in (
        MultipleEpochsIterator(3, []),
        MultipleEpochsIterator(3, Counting(0)),
    ):
        assert not epochs.has_next()
        assert list(epochs) == []


def test_several_epochs_need_an_iterator_that_restarts():
    assert list(MultipleEpochsIterator(1, iter([1]))) == [1]
    with pytest.raises(ValueError, match="only once"):
        MultipleEpochsIterator(2, iter([1]))
    for wrong in (0, 1.5, True, None):
        with pytest.raises((TypeError, ValueError), match="num_epochs"):
            MultipleEpochsIterator(wrong, [1])


def test_lists_are_merged_to_batches():
    data = DataSet(np.arange(10.0)[:, None], np.arange(10))
    iterator = ListDataSetIterator(data.as_list(), 4)
    assert (iterator.batch, iterator.total_examples, len(iterator)) == (4, 10, 3)
    for _ in range(2):
        labels = [batch.labels.tolist() for batch in iterator]
        assert labels == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
        iterator.reset()
    several = MultiDataSet([np.arange(3), np.arange(3)]).as_list()
    assert [len(each) for each in ListDataSetIterator(several, 2)] == [2, 1]


def test_a_list_gives_what_it_was_given():
    items = [DataSet([1]), {"a": 1}, (1, 2)]
    assert all(
        a is b for a, b in zip(ListDataSetIterator(iter(items)), items, strict=True)
    )
    assert list(ListDataSetIterator([], 5)) == []


def test_only_data_sets_of_a_class_are_merged():
    for wrong in ([1, 2], [DataSet([1]), MultiDataSet([[1]])], [DataSet([1]), 2]):
        with pytest.raises(TypeError, match="only data sets of one class"):
            ListDataSetIterator(wrong, 2)
    for wrong in (0, 1.5, True):
        with pytest.raises((TypeError, ValueError), match="batch_size"):
            ListDataSetIterator([], wrong)


# Splitting.


def test_a12_a_split_in_two():
    splitter = DataSetIteratorSplitter(ListDataSetIterator(range(1000)), 1000, 0.7)
    train, test = splitter.train_iterator, splitter.test_iterator
    for _ in range(10):
        assert list(train) == list(range(700))
        assert list(test) == list(range(700, 1000))
        train.reset()
        test.reset()


def test_a12_a_part_that_is_not_read_to_its_end():
    splitter = DataSetIteratorSplitter(range(1000), 1000, 0.7)
    train, test = splitter.train_iterator, splitter.test_iterator
    seen = [0, 0]
    for _ in range(5):
        while train.has_next():
            train.next()
            seen[0] += 1
        for number in range(150):
            assert test.next() == 700 + number
            seen[1] += 1
        train.reset()
        test.reset()
    assert seen == [700 * 5, 150 * 5]


def test_a12_an_iterator_that_is_read_by_somebody_else():
    for skipped in (1, 3):
        base = ListDataSetIterator([np.full(3, n) for n in range(10)])
        splitter = DataSetIteratorSplitter(base, 10, 0.7)
        list(splitter.train_iterator)
        for _ in range(skipped):
            base.next()
        with pytest.raises(RuntimeError, match="ended after"):
            list(splitter.test_iterator)


def test_a12_an_iterator_that_gives_others_in_the_second_pass():
    class Shifting:
        shift = 0

        def __iter__(self):
            self.shift += 1
            return (DataSet(np.full((2, 3), n + self.shift)) for n in range(10))

    splitter = DataSetIteratorSplitter(Shifting(), 10, 0.7)
    train = splitter.train_iterator
    assert len(list(train)) == 7
    train.reset()
    with pytest.raises(RuntimeError, match="split before shuffling"):
        next(train)


def test_a12_shares_and_numbers():
    for given_, lengths in (
        ((1000, [0.5, 0.3, 0.2]), [500, 300, 200]),
        (([900, 100],), [900, 100]),
        (([800, 100, 100],), [800, 100, 100]),
        ((100, 0.29), [29, 71]),
        ((3, (0.5, 0.5)), [1, 2]),
    ):
        splitter = DataSetIteratorSplitter(range(1000), *given_)
        parts = splitter.iterators
        assert [len(part) for part in parts] == lengths
        for _ in range(2):
            together = [item for part in parts for item in part]
            assert together == list(range(sum(lengths)))
            for part in parts:
                part.reset()
    with pytest.raises(ValueError, match="there are 3 parts"):
        DataSetIteratorSplitter(range(10), [1, 2, 3]).test_iterator  # noqa: B018


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["next", "reset"])), max_size=40
    ),
)
def test_parts_are_read_in_any_order(lengths, steps):
    """No part sees a batch of another, whatever is read when."""
    splitter = DataSetIteratorSplitter(list(range(sum(lengths) + 2)), lengths)
    starts = np.cumsum([0, *lengths])
    indices = [0] * len(lengths)
    for number, what in steps:
        number %= len(lengths)
        part = splitter.iterators[number]
        if what == "reset":
            part.reset()
            indices[number] = 0
            continue
        assert part.has_next() == (indices[number] < lengths[number])
        if part.has_next():
            assert next(part) == starts[number] + indices[number]
            indices[number] += 1


def test_parts_may_be_read_by_threads():
    splitter = DataSetIteratorSplitter(list(range(30)), 30, 0.5)
    found = [[], []]

    def read(number):
        found[number] = list(splitter.iterators[number])

    threads = [threading.Thread(target=read, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert found == [list(range(15)), list(range(15, 30))]


def test_parts_of_what_can_be_read_once():
    splitter = DataSetIteratorSplitter(iter(range(10)), 10, 0.5)
    train, test = splitter.iterators
    assert not train.reset_supported
    train.reset()  # nothing was read
    assert next(train) == 0
    with pytest.raises(RuntimeError, match="cannot restart"):
        train.reset()
    assert list(test) == list(range(5, 10))
    with pytest.raises(RuntimeError, match="cannot restart"):
        next(train)


@pytest.mark.parametrize(
    ("given_", "error"),
    [
        ((10,), TypeError),
        ((10, "0.5"), TypeError),
        ((10, True), TypeError),
        ((10.0, 0.5), TypeError),
        (([5, 5], 0.5), TypeError),
        (([5, 2.0],), TypeError),
        (([],), ValueError),
        (([5, 0],), ValueError),
        ((0, 0.5), ValueError),
        ((10, 0.0), ValueError),
        ((10, 1), ValueError),
        ((10, 1.5), ValueError),
        ((10, [0.5, 0.4]), ValueError),
        ((10, [0.5, 0.6, -0.1]), ValueError),
        ((1, 0.5), ValueError),
        ((10, []), ValueError),
    ],
)
def test_a_split_that_is_none_is_refused(given_, error):
    with pytest.raises(error):
        DataSetIteratorSplitter(range(100), *given_)
