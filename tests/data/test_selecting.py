"""Elements by their numbers: take, skip, shard, repeat.

Each is compared with a slice of a list, on the path over row numbers and on the path
over elements. Cardinalities are TensorFlow 2.21's, where that tells the truth.
"""

from __future__ import annotations

from itertools import islice
from threading import Timer

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import passing

import memcfg as mc

Dataset = mc.data.Dataset
INFINITE, UNKNOWN = mc.data.INFINITE_CARDINALITY, mc.data.UNKNOWN_CARDINALITY
counts = st.integers(-3, 14)


def generated(stop):
    signature = mc.data.TensorSpec((), "int64")
    return Dataset.from_generator(lambda: range(stop), output_signature=signature)


def sources(stop):
    """Two datasets of the same numbers: one has rows, the other has not."""
    return Dataset.range(stop), generated(stop)


def first(dataset, count=100):
    with dataset.as_numpy_iterator() as elements:
        return list(islice(elements, count))


def batched(dataset, count=100):
    """The first elements through batches."""
    with dataset.batch(7).as_numpy_iterator() as batches:
        return [n for batch in islice(batches, count) for n in batch.tolist()][:count]


@settings(deadline=None)
@given(st.integers(0, 12), counts)
def test_take(stop, count):
    expected = list(range(stop))[: count if count >= 0 else None]
    for source in sources(stop):
        assert first(source.take(count)) == batched(source.take(count)) == expected
    assert len(Dataset.range(stop).take(count)) == len(expected)


@settings(deadline=None)
@given(st.integers(0, 12), counts)
def test_skip(stop, count):
    expected = list(range(stop))[count:] if count >= 0 else []
    for source in sources(stop):
        assert first(source.skip(count)) == batched(source.skip(count)) == expected
    assert len(Dataset.range(stop).skip(count)) == len(expected)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(1, 5), st.data())
def test_shard(stop, shards, data):
    index = data.draw(st.integers(0, shards - 1))
    expected = list(range(stop))[index::shards]
    for source in sources(stop):
        part = source.shard(shards, index)
        assert first(part) == batched(part) == expected
    assert len(Dataset.range(stop).shard(shards, index)) == len(expected)


@settings(deadline=None)
@given(st.integers(0, 12), st.integers(-2, 4) | st.none())
def test_repeat(stop, count):
    endless = count is None or count < 0
    times = (100 if endless else count) if stop else 0
    expected = (list(range(stop)) * times)[:100]
    for source in sources(stop):
        again = source.repeat(count)
        assert first(again) == batched(again) == expected
    if endless and stop:
        assert Dataset.range(stop).repeat(count).cardinality() == INFINITE
    else:
        assert len(Dataset.range(stop).repeat(count)) == len(expected)


steps = st.one_of(
    st.tuples(st.just("take"), counts),
    st.tuples(st.just("skip"), counts),
    st.tuples(st.just("shard"), st.integers(1, 4), st.integers(0, 3)),
    st.tuples(st.just("repeat"), st.integers(0, 3)),
)


def applied(step, source):
    name, *args = step
    if name == "shard":
        args[1] %= args[0]
    return getattr(source, name)(*args)


def listed(step, items):
    """Do the same to a list."""
    name, *args = step
    if name == "take":
        return items[: args[0]] if args[0] >= 0 else items
    if name == "skip":
        return items[args[0] :] if args[0] >= 0 else []
    if name == "shard":
        return items[args[1] % args[0] :: args[0]]
    return items * args[0]


@settings(deadline=None)
@given(st.integers(0, 20), st.lists(steps, max_size=5))
def test_steps_after_steps(stop, chain):
    rows, elements = sources(stop)
    expected = list(range(stop))
    for step in chain:
        rows, elements = applied(step, rows), applied(step, elements)
        expected = listed(step, expected)
    assert first(rows, 3000) == first(elements, 3000) == expected
    assert batched(rows, 3000) == batched(elements, 3000) == expected
    assert len(rows) == len(expected)


def test_rows_over_several_chunks():
    count = 20_000
    dataset = Dataset.range(count).skip(8200).shard(3, 2).take(3000).repeat(2)
    expected = (list(range(count))[8200:][2::3][:3000]) * 2
    assert batched(dataset, 10_000) == expected
    assert first(dataset, 10_000) == expected


def test_cardinalities_that_are_not_known_or_have_no_end():
    endless, unknown, empty = (
        Dataset.range(5).repeat(),
        generated(5),
        Dataset.range(0),
    )
    assert int(endless.take(3).cardinality()) == 3
    assert int(endless.take(-1).cardinality()) == INFINITE
    assert int(endless.skip(3).cardinality()) == INFINITE
    assert int(endless.skip(-1).cardinality()) == 0  # TensorFlow says infinite
    assert int(endless.repeat(3).cardinality()) == INFINITE
    assert int(endless.repeat(0).cardinality()) == 0
    assert int(endless.shard(2, 0).cardinality()) == INFINITE
    assert int(unknown.take(0).cardinality()) == UNKNOWN
    assert int(unknown.skip(-1).cardinality()) == UNKNOWN
    assert int(unknown.repeat(0).cardinality()) == 0
    assert int(unknown.repeat(2).cardinality()) == UNKNOWN
    assert int(unknown.repeat().cardinality()) == INFINITE
    assert int(unknown.shard(2, 1).cardinality()) == UNKNOWN
    assert int(empty.repeat().cardinality()) == 0
    assert int(Dataset.range(2).repeat(2**62).cardinality()) == 2**63 - 1


@pytest.mark.parametrize("name", ["take", "skip", "repeat"])
def test_counts(name):
    dataset = Dataset.range(5)
    for wrong in (1.5, "a", [1]):
        with pytest.raises(TypeError, match="count must be an integer"):
            getattr(dataset, name)(wrong)
    assert first(getattr(dataset, name)(np.int64(2))) == first(
        getattr(dataset, name)(2)
    )
    with pytest.raises(ValueError, match="int64"):
        getattr(dataset, name)(2**63)
    if name != "repeat":
        with pytest.raises(TypeError):
            getattr(dataset, name)(None)


@pytest.mark.parametrize(
    ("args", "error"),
    [
        ((2, 2), ValueError),
        ((2, -1), ValueError),
        ((0, 0), ValueError),
        ((-1, 0), ValueError),
        (("a", 0), TypeError),
        ((2.0, 1), TypeError),
    ],
)
def test_what_is_no_shard(args, error):
    with pytest.raises(error):
        Dataset.range(5).shard(*args)


def test_an_endless_repeat_of_nothing_ends():
    never = Dataset.range(5).filter(lambda x: False)
    assert first(never.repeat()) == []
    assert first(never.repeat(3)) == []


def test_many_passes_over_nothing_end():
    assert first(Dataset.range(0).repeat(2**62)) == []
    assert batched(Dataset.range(0).repeat(2**62)) == []
    never = iter(Dataset.range(5).filter(lambda x: False).repeat(2**62).prefetch(1))
    Timer(0.1, never.close).start()
    assert list(never) == []


def test_a_repeat_goes_on_where_only_one_pass_is_empty():
    passes = iter([2, 0, 3])
    dataset = Dataset.from_generator(lambda: range(next(passes)))
    assert first(dataset.repeat(3)) == [0, 1, 0, 1, 2]


def test_steps_keep_rows_where_there_are_rows():
    rows, elements = sources(5)
    for step in (("take", 2), ("skip", 2), ("shard", 2, 1), ("repeat", 2), ("repeat",)):
        assert applied(step, rows)._node.has_rows
        assert not applied(step, elements)._node.has_rows
    for none in (rows.take(0), rows.skip(-1), rows.repeat(0)):
        assert not none._node.has_rows


def test_what_nobody_wants_is_not_asked_for():
    asked = []
    dataset = Dataset.range(9).map(lambda x: asked.append(int(x)) or x)
    assert first(dataset.take(2)) == [0, 1]
    assert asked == [0, 1]
    del asked[:]
    assert (
        first(dataset.take(0))
        == first(dataset.skip(-1))
        == first(dataset.repeat(0))
        == []
    )
    assert asked == []


class Begun:
    """Count the passes that are begun, and the elements that are asked for."""

    def __init__(self, monkeypatch, dataset):
        self.passes = 0
        node = dataset._node
        elements = node.elements

        def counted(run):
            self.passes += 1
            return elements(run)

        monkeypatch.setattr(type(node), "elements", lambda _, run: counted(run))


@pytest.mark.parametrize(
    ("step", "passes"),
    [
        (("take", 3), 1),
        (("take", 0), 0),
        (("skip", 3), 1),
        (("skip", -1), 0),
        (("shard", 2, 1), 1),
        (("repeat", 0), 0),
        (("repeat", 1), 1),
        (("repeat", 3), 1),
    ],
)
def test_a_pass_begins_with_its_reader(monkeypatch, step, passes):
    source = generated(5)
    begun = Begun(monkeypatch, source)
    elements = iter(applied(step, source))
    assert begun.passes == passes
    elements.close()


@pytest.mark.parametrize(("count", "passes"), [(1, 1), (2, 3), (3, 4)])
def test_repeat_begins_one_pass_more_than_it_reads_as_tf_does(
    monkeypatch, count, passes
):
    source = generated(5)
    begun = Begun(monkeypatch, source)
    assert len(first(source.repeat(count))) == 5 * count
    assert begun.passes == passes


def test_what_is_left_out_fills_no_workspace(pool):
    row = np.ones(1000)
    source = Dataset.range(100).map(lambda x: row + x)
    for dataset in (
        source.skip(60),
        source.shard(70, 60),
        source.filter(lambda x: x[0] > 60),
    ):
        with passing(dataset.prefetch(2), pool) as elements:
            found = [element[0] for element in elements]
            (stage,) = elements.report().stages
        assert found[0] in (61, 62)
        assert stage.nbytes <= 4 * 2 * row.nbytes  # a block is a workspace


@pytest.mark.parametrize("count", [None, 500])
def test_threads_of_each_pass_end_with_it(count, tenths):
    elements = iter(Dataset.range(3).prefetch(1).repeat(2).repeat(count))
    for _ in range(150 * tenths):
        next(elements)
    assert len(elements._run._parts) <= 2
    elements.close()
