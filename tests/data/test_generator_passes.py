"""When a user's generator begins and ends, and where its arrays lie."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest
from steps import passing

import memcfg as mc
from memcfg.workspaces import is_attached

Dataset = mc.data.Dataset


class Watched:
    """A generator function that notes when it begins and ends."""

    def __init__(self, stop=3, error=None):
        self.events = []
        self.stop = stop
        self.error = error

    def __call__(self):
        self.events.append("begin")
        try:
            yield from range(self.stop)
            if self.error:
                raise self.error
        finally:
            self.events.append("end")


def test_it_begins_with_the_first_element_and_ends_with_the_pass():
    make = Watched()
    elements = iter(Dataset.from_generator(make))
    assert make.events == []
    next(elements)
    assert make.events == ["begin"]
    elements.close()
    assert make.events == ["begin", "end"]


@pytest.mark.parametrize(
    "stop",
    [
        lambda dataset: next(iter(dataset)),
        lambda dataset: list(dataset.take(1)),
        lambda dataset: list(dataset.take(3)),
        lambda dataset: list(Dataset.zip(dataset, Dataset.range(1))),
        lambda dataset: list(Dataset.zip(Dataset.range(1), dataset)),
        lambda dataset: next(iter(dataset.batch(2))),
        lambda dataset: next(iter(dataset.prefetch(1))),
        lambda dataset: dataset.element_spec,
        lambda dataset: list(dataset.shuffle(2).take(1)),
        lambda dataset: list(dataset.filter(bool).take(1)),
    ],
)
def test_a_generator_is_closed_when_its_reader_ends(stop):
    make = Watched(stop=10)
    elements = stop(Dataset.from_generator(make).map(lambda x: x != 77).map(bool))
    del elements
    gc.collect()
    end = time.monotonic() + 10  # a thread of prefetch closes it
    while make.events != ["begin", "end"] and time.monotonic() < end:
        time.sleep(0.01)
    assert make.events == ["begin", "end"]


def test_a_generator_is_closed_behind_an_error_of_a_function():
    make = Watched()

    def fail(_):
        raise KeyError("of the function")

    elements = iter(Dataset.from_generator(make).map(fail))
    try:
        next(elements)
    except KeyError as caught:
        error = caught
    assert make.events == ["begin", "end"], "though the traceback is alive"
    del error


def test_each_pass_calls_it_again():
    make = Watched(stop=2)
    number = mc.data.TensorSpec((), "int32")
    dataset = Dataset.from_generator(make, output_signature=number)
    assert list(dataset.repeat(2)) == [0, 1, 0, 1]
    assert make.events == ["begin", "end"] * 2


def test_its_own_error_is_the_readers():
    error = KeyError("mine")
    elements = iter(Dataset.from_generator(Watched(2, error)))
    assert [next(elements), next(elements)] == [0, 1]
    with pytest.raises(KeyError) as caught:
        next(elements)
    assert caught.value is error


def test_an_iterator_without_close_is_read_too():
    class Numbers:
        def __init__(self):
            self.left = 3

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            self.left -= 1
            return self.left

    assert list(Dataset.from_generator(Numbers)) == [2, 1, 0]


def test_what_it_makes_lies_outside_of_the_ring(pool):
    attached = []

    def make():
        for _ in range(2):
            array = np.ones(3)
            attached.append(is_attached(array))
            yield array
        attached.append(is_attached(np.ones(3)))

    with passing(Dataset.from_generator(make).prefetch(2), pool) as elements:
        found = [is_attached(element) for element in elements]
    assert attached == [False, False, False]
    assert found == [True, True]
