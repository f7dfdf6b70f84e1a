"""Shields: A13 and A14 of DL4J's behaviours, and what they leave as it is."""

from __future__ import annotations

import threading
from collections import namedtuple

import numpy as np
import pytest
from calls import data_threads

import memcfg as mc
from memcfg import nn
from memcfg.data import (
    AsyncDataSetIterator,
    AsyncShieldDataSetIterator,
    AsyncShieldMultiDataSetIterator,
    DataSet,
    ListDataSetIterator,
    MultiDataSet,
    WorkspacesShieldDataSetIterator,
)

Pair = namedtuple("Pair", "x y")  # noqa: PYI024  untyped ones are there too
SHIELDS = pytest.mark.parametrize(
    "shield", [AsyncShieldDataSetIterator, AsyncShieldMultiDataSetIterator]
)


@pytest.fixture(autouse=True)
def _without_workspaces():
    yield
    assert mc.workspaces.current_workspace() is None
    mc.destroy_all_workspaces()


class Base(ListDataSetIterator):
    """Notes that it was closed."""

    labels = ("a", "b")
    closed = False

    def close(self):
        self.closed = True


# Against threads.


@SHIELDS
def test_a13_a_shield_allows_no_reading_ahead_and_delegates_all_else(shield):
    base = Base(range(3))
    shielded = shield(base)
    assert base.async_supported is True
    assert shielded.async_supported is False
    assert shielded.reset_supported is True
    assert (shielded.labels, shielded.batch, shielded.total_examples) == (
        ("a", "b"),
        1,
        3,
    )
    assert shielded.has_next()
    assert shielded.next() == 0
    assert list(shielded) == [1, 2]
    assert not shielded.has_next()
    shielded.reset()
    assert list(shielded) == [0, 1, 2]
    shielded.close()
    assert base.closed
    with pytest.raises(AttributeError, match="nothing"):
        shielded.nothing  # noqa: B018


@SHIELDS
def test_a13_a_shielded_iterator_is_read_by_the_thread_that_asks(shield):
    shielded = shield([1, 2])
    with pytest.raises(ValueError, match="must not be read ahead"):
        AsyncDataSetIterator(shielded)
    assert data_threads() == []
    assert list(shielded) == [1, 2]


@SHIELDS
def test_a13_a_fit_of_what_is_shielded_creates_no_thread(shield, monkeypatch):
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(
        threading.Thread, "start", lambda self: started.append(self) or start(self)
    )
    callers = set()

    def batches():
        for value in range(4):
            callers.add(threading.get_ident())
            yield DataSet(np.full((4, 3), value, "f4"), np.full(4, value % 2))

    model = nn.Sequential([nn.Input((3,)), nn.Dense(2)])
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer="sgd", loss=loss)
    model.fit(shield(batches()), verbose=0)
    assert callers == {threading.get_ident()}
    assert not [each.name for each in started if "memcfg" in each.name]


@SHIELDS
def test_a_shield_of_what_can_be_read_once(shield):
    shielded = shield(n for n in range(3))
    assert not shielded.reset_supported
    assert list(shielded) == [0, 1, 2]


@SHIELDS
def test_a_shield_gives_the_very_batches(shield):
    batches = [DataSet([1]), MultiDataSet([[1]]), object(), None]
    assert all(a is b for a, b in zip(shield(batches), batches, strict=True))


# Against workspaces.


def attached(name="other") -> tuple[DataSet, MultiDataSet]:
    with mc.workspace(name):
        one = DataSet(np.full((2, 3), 1.0), np.full(2, 2))
        many = MultiDataSet([np.full(2, 3.0)], np.full(2, 4), None, [np.ones(2)])
    return one, many


def arrays_of(batch) -> list:
    return list(batch._present())


def test_a14_attached_batches_are_detached_where_no_workspace_is_open():
    batches = attached()
    for before, after in zip(
        batches, WorkspacesShieldDataSetIterator(batches), strict=True
    ):
        assert type(after) is type(before)
        for old, new in zip(arrays_of(before), arrays_of(after), strict=True):
            assert mc.is_attached(old)
            assert not mc.is_attached(new)
            np.testing.assert_array_equal(old, new, strict=True)


def test_a14_attached_batches_are_migrated_where_a_workspace_is_open():
    batches = attached()
    shield = WorkspacesShieldDataSetIterator(batches)
    with mc.workspace("mine") as mine:
        for before in batches:
            after = shield.next()
            for old, new in zip(arrays_of(before), arrays_of(after), strict=True):
                assert mc.workspace_of(new) is mine
                np.testing.assert_array_equal(old, new, strict=True)
            del new, old
            again = WorkspacesShieldDataSetIterator([after]).next()
            assert again is after  # it is where it is to be
        del after, again


@pytest.mark.parametrize("opened", [False, True])
def test_a14_detached_batches_are_the_very_same(opened):
    batches = [DataSet([1.0], [2]), MultiDataSet([[1.0]]), np.ones(3)]
    shield = WorkspacesShieldDataSetIterator(batches)
    for before in batches:
        if opened:
            with mc.workspace("mine"):
                assert shield.next() is before
        else:
            assert shield.next() is before


def test_each_array_is_moved_or_left_by_itself():
    with mc.workspace("other"):
        inside = np.ones(3)
    outside = np.zeros(3)
    found = WorkspacesShieldDataSetIterator([DataSet(inside, outside)]).next()
    assert found.labels is outside
    assert not mc.is_attached(found.features)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda a: a,
        lambda a: (a, a),
        lambda a: [a, {"x": a}],
        lambda a: Pair(a, (a, 5)),
        lambda a: {"one": DataSet(a), "many": [MultiDataSet([a])]},
        lambda a: (DataSet(a), a, "word"),
    ],
)
def test_arrays_are_found_in_every_container(wrap):
    with mc.workspace("other"):
        batch = wrap(np.full(3, 7.0))
    found = WorkspacesShieldDataSetIterator([batch]).next()
    assert type(found) is type(batch)

    def leaves_of(value):
        if isinstance(value, np.ndarray):
            yield value
        elif isinstance(value, DataSet | MultiDataSet):
            yield from value._present()
        elif isinstance(value, dict):
            for each in value.values():
                yield from leaves_of(each)
        elif isinstance(value, list | tuple):
            for each in value:
                yield from leaves_of(each)

    arrays = list(leaves_of(found))
    assert arrays
    assert not any(mc.is_attached(each) for each in arrays)
    assert all(mc.is_attached(each) for each in leaves_of(batch))
    assert all((each == 7).all() for each in arrays)


@pytest.mark.parametrize("wrong", [object(), "words", 5, {1, 2}])
def test_a_batch_whose_arrays_cannot_be_found_is_refused(wrong):
    with pytest.raises(TypeError, match="its arrays cannot be found"):
        WorkspacesShieldDataSetIterator([wrong]).next()


def test_numpys_scalars_are_passed_on():
    assert list(WorkspacesShieldDataSetIterator(np.arange(3))) == [0, 1, 2]


def test_a_workspace_shield_may_be_read_ahead_if_its_base_may():
    assert WorkspacesShieldDataSetIterator([1]).async_supported
    shield = WorkspacesShieldDataSetIterator(AsyncShieldDataSetIterator([1]))
    assert not shield.async_supported


def test_the_ring_is_shielded(pool):
    def batches():
        for value in range(20):
            yield DataSet(np.full((2, 3), value), np.full(2, value))

    with AsyncDataSetIterator(batches(), 2, resource=pool) as ring:
        shield = WorkspacesShieldDataSetIterator(ring)
        assert not shield.async_supported
        kept = list(shield)
        assert not any(mc.is_attached(each.features) for each in kept)
    assert [int(each.labels[0]) for each in kept] == list(range(20))
    assert pool.owners() == {}
    kept.clear()


def test_closing_the_shield_closes_what_is_below():
    ring = AsyncDataSetIterator(range(100), 2)
    with WorkspacesShieldDataSetIterator(ring):
        assert data_threads()
    assert not data_threads()
    with pytest.raises(RuntimeError, match="is closed"):
        ring.next()
