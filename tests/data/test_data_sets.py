"""Data sets: what they hold, and what is made of them."""

from __future__ import annotations

import copy
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc
from memcfg import memory
from memcfg.data import DataSet, MultiDataSet
from memcfg.errors import FormatError


@pytest.fixture(autouse=True)
def _without_workspaces():
    yield
    assert mc.workspaces.current_workspace() is None
    mc.destroy_all_workspaces()


def make(n=10, masks=True) -> DataSet:
    """Each row tells its number, in all arrays."""
    rows = np.arange(n)
    features = np.repeat(rows, 6).reshape(n, 3, 2).astype("f4")
    labels = rows * 10
    given = (rows[:, None] + 0.5, rows[:, None] + 0.75) if masks else ()
    return DataSet(features, labels, *given)


def multi(n=10) -> MultiDataSet:
    one = make(n)
    return MultiDataSet(
        [one.features, one.features * 2], one.labels, [None, one.features_mask]
    )


def rows_of(data) -> list[int]:
    """The numbers of the rows, which all arrays agree in."""
    first, labels = data.features, data.labels
    if isinstance(data, MultiDataSet):
        assert (data.features[1] == data.features[0] * 2).all()
        assert (data.features_masks[1][:, 0] - 0.5 == data.labels[0] // 10).all()
        first, labels = data.features[0], data.labels[0]
    elif data.features_mask is not None:
        assert (data.features_mask[:, 0] - 0.5 == labels // 10).all()
        assert (data.labels_mask[:, 0] - 0.75 == labels // 10).all()
    assert (first == (labels // 10).reshape(-1, 1, 1)).all()
    return (labels // 10).tolist()


KINDS = pytest.mark.parametrize("kind", [make, multi])


def test_arrays_are_taken_as_they_are():
    x, y = np.ones((3, 2)), np.arange(3)
    data = DataSet(x, y)
    assert data.features is x
    assert data.labels is y
    assert data.features_mask is data.labels_mask is None
    several = MultiDataSet((x, y), [y])
    assert several.features == (x, y)
    assert several.labels[0] is y
    assert several.labels_masks == (None,)
    assert MultiDataSet(x).labels == ()


def test_what_is_no_array_becomes_one():
    data = DataSet([[1.0, 2.0], [3.0, 4.0]], (0, 1), features_mask=[[1], [0]])
    assert data.features.shape == (2, 2)
    assert data.labels.dtype == int
    assert data.features_mask.shape == (2, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ((3.0,), ValueError, "features needs a first axis"),
        (([[1], [2, 3]],), ValueError, "inhomogeneous"),
        ((np.array([{}, {}]),), TypeError, "not be an array of objects"),
        ((np.ma.masked_array([1, 2], [0, 1]),), TypeError, "masked array"),
        (([1, 2], [1]), ValueError, "labels has 1 examples, but the features have 2"),
        (([1, 2], None, [1]), ValueError, "features_mask has 1 examples"),
        (([1, 2], [1, 2], None, [1]), ValueError, "labels_mask has 1 examples"),
        (([1, 2], None, None, [1, 1]), ValueError, "labels_mask needs labels"),
        ((None,), TypeError, "not be an array of objects"),
    ],
)
def test_wrong_arrays_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        DataSet(*arguments)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (([],), ValueError, "needs features"),
        (([[1, 2], [1]],), ValueError, r"features\[1\] has 1 examples"),
        (([[1, 2]], [[1]]), ValueError, r"labels\[0\] has 1 examples"),
        (([[1, 2]], [], [None, None]), ValueError, "2 masks for 1 arrays"),
        (([[1, 2]], [], [[1]]), ValueError, r"features_masks\[0\] has 1 examples"),
        (([[1, 2]], [[1, 2]], None, 5), TypeError, "a list with a mask"),
        (([None],), TypeError, "not be an array of objects"),
    ],
)
def test_wrong_lists_are_refused(arguments, error, words):
    with pytest.raises(error, match=words):
        MultiDataSet(*arguments)


def test_a_data_set_is_not_changed_but_for_its_elements():
    data = make(3)
    with pytest.raises(AttributeError):
        data.features = np.ones(3)
    data.features[0] = 7
    assert data.features[0, 0, 0] == 7


def test_its_size_and_what_it_takes_in_a_workspace(pool):
    data = DataSet(np.ones((10, 3), "f4"), np.arange(10, dtype="i2"))
    assert (data.num_examples, len(data), data.nbytes) == (10, 10, 140)
    assert data.memory_footprint == 128 + 64
    config = mc.WorkspaceConfig(initial_size=data.memory_footprint, spill="fail")
    with mc.workspace("exact", config.replace(allocation="strict"), resource=pool):
        copied = data.migrate()
        assert mc.workspace_of(copied.labels).name == "exact"
        del copied
    mc.destroy_all_workspaces()


def test_an_array_that_is_there_twice_counts_once():
    x = np.ones((4, 16), "f4")
    data = DataSet(x, x)
    assert data.nbytes == data.memory_footprint == 256
    with mc.workspace("other"):
        moved = data.migrate()
        assert moved.features is moved.labels is not x
        del moved


@KINDS
def test_detach_and_migrate_return_what_is_elsewhere(kind):
    plain = kind()
    assert plain.detach() is plain
    assert plain.migrate() is plain
    with mc.workspace("one") as one:
        inside = plain.migrate()
        assert inside is not plain
        assert all(mc.workspace_of(a) is one for a in inside._present())
        assert inside.migrate() is inside
        outside = inside.detach()
        assert not any(mc.is_attached(a) for a in outside._present())
        del inside
    assert type(outside) is type(plain)
    assert rows_of(outside) == rows_of(plain) == list(range(10))


def test_migrate_detaches_where_no_workspace_is_current_if_asked():
    with mc.workspace("one"):
        data = DataSet(np.ones(3))
    assert data.migrate() is data
    assert not mc.is_attached(data.migrate(detach=True).features)
    with pytest.raises(TypeError, match="True or False"):
        data.migrate(detach=1)


@KINDS
def test_a_copy_shares_nothing(kind):
    data = kind()
    copied = data.copy()
    for one, other in zip(data._arrays, copied._arrays, strict=True):
        assert (one is None) == (other is None)
        assert one is None or not np.shares_memory(one, other)
    assert rows_of(copied) == rows_of(data)


@KINDS
@given(st.integers(1, 30), st.integers(1, 40))
def test_batches_are_views_in_order(kind, n, size):
    data = kind(n)
    batches = data.batch_by(size)
    assert [row for batch in batches for row in rows_of(batch)] == list(range(n))
    assert {len(batch) for batch in batches[:-1]} <= {size}
    assert 1 <= len(batches[-1]) <= size
    for batch in batches:
        pairs = zip(batch._present(), data._present(), strict=True)
        assert all(np.shares_memory(one, whole) for one, whole in pairs)


@KINDS
def test_a_list_of_single_examples(kind):
    singles = kind(4).as_list()
    assert [rows_of(each) for each in singles] == [[0], [1], [2], [3]]
    assert singles[0]._arrays[0].shape == (1, 3, 2)


@KINDS
@given(st.lists(st.integers(0, 19), min_size=1, max_size=8))
def test_merging_is_the_inverse_of_cutting(kind, numbers):
    singles = kind(20).as_list()
    parts = [singles[number] for number in numbers]
    merged = type(parts[0]).merge(iter(parts))
    assert rows_of(merged) == numbers
    assert not np.shares_memory(merged._arrays[0], parts[0]._arrays[0])


def test_masks_of_those_that_have_none_are_ones():
    merged = DataSet.merge([make(2), make(1, masks=False), make(1)])
    assert merged.features_mask.tolist() == [[0.5], [1.5], [1.0], [0.5]]
    assert merged.labels_mask.dtype == float
    assert DataSet.merge([make(1, masks=False)] * 2).features_mask is None


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ([], ValueError, "nothing to merge"),
        ([make(), multi()], TypeError, "only a DataSet"),
        ([make(), make().features], TypeError, "only a DataSet"),
        ([DataSet([1]), DataSet([1], [1])], ValueError, "some data sets have labels"),
        ([DataSet([[1]]), DataSet([1])], ValueError, "does not merge"),
        ([DataSet([1]), DataSet([1.0])], ValueError, r"features of float64\(1,\)"),
    ],
)
def test_what_does_not_merge_is_refused(parts, error, words):
    with pytest.raises(error, match=words):
        DataSet.merge(parts)


def test_lists_of_another_length_do_not_merge():
    with pytest.raises(ValueError, match="other arrays than"):
        MultiDataSet.merge([multi(), MultiDataSet([[1]])])


@pytest.mark.parametrize(
    ("train", "number"), [(7, 7), (0.7, 7), (0.29, 2), (np.int64(1), 1), (0.99, 9)]
)
def test_a_split_in_two(train, number):
    parts = make().split_test_and_train(train)
    assert rows_of(parts.train) == list(range(number))
    assert rows_of(parts.test) == list(range(number, 10))
    assert DataSet(np.arange(100)).split_test_and_train(0.29).train.num_examples == 29


@KINDS
def test_a_split_with_a_seed_takes_the_same_examples_each_time(kind):
    first, second = (kind().split_test_and_train(6, seed=3) for _ in range(2))
    assert rows_of(first.train) == rows_of(second.train) != list(range(6))
    assert sorted(rows_of(first.train) + rows_of(first.test)) == list(range(10))


@pytest.mark.parametrize("train", [0, 10, 11, 0.0, 0.01, 1.0, 1.5])
def test_a_split_leaves_no_part_empty(train):
    with pytest.raises(ValueError, match="leaves a part empty"):
        make().split_test_and_train(train)


@pytest.mark.parametrize("train", ["7", True, None, -1])
def test_a_split_needs_a_number(train):
    with pytest.raises((TypeError, ValueError)):
        make().split_test_and_train(train)


@KINDS
def test_shuffling_is_decided_by_the_seed(kind):
    data = kind(50)
    orders = [rows_of(data.shuffle(seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == rows_of(data) == list(range(50))
    assert rows_of(data.shuffle()) != rows_of(data.shuffle())


@KINDS
def test_samples(kind):
    data = kind(20)
    drawn = rows_of(data.sample(20, 1))
    assert sorted(drawn) == list(range(20))
    assert drawn == rows_of(data.sample(20, 1)) != rows_of(data.sample(20, 2))
    assert len(set(rows_of(data.sample(100, 1, with_replacement=True)))) > 15
    for wrong in (21, 0, -1):
        with pytest.raises(ValueError, match=r"sample|size"):
            data.sample(wrong)
    with pytest.raises(TypeError):
        data.sample(2.0)
    with pytest.raises(TypeError):
        data.sample(2, with_replacement=1)


@KINDS
def test_a_file_brings_back_what_was_written(kind, tmp_path):
    path = tmp_path / "batch.npz"
    data = kind()
    data.save(path)
    found = type(data).load(path)
    for one, other in zip(data._arrays, found._arrays, strict=True):
        if one is None:
            assert other is None
        else:
            np.testing.assert_array_equal(one, other, strict=True)
    with pytest.raises(FileExistsError):
        data.save(path)
    kind(2).save(path, overwrite=True)
    assert type(data).load(path).num_examples == 2
    assert [each.name for each in tmp_path.iterdir()] == ["batch.npz"]


def test_files_that_are_no_data_sets_are_refused(tmp_path):
    path = tmp_path / "wrong.npz"
    for wrong in ({"x": [1]}, {"labels": [1]}, {"features": [1], "labels": [1, 2]}):
        np.savez(path, **wrong)
        with pytest.raises(FormatError, match="not a saved DataSet"):
            DataSet.load(path)
    for wrong in (
        {"features[1]": [1]},
        {"features[0]": [1], "features_masks[1]": [1]},
        {"features[x]": [1]},
        {"features": [1]},
    ):
        np.savez(path, **wrong)
        with pytest.raises(FormatError, match="not a saved MultiDataSet"):
            MultiDataSet.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(FormatError, match=r"no \.npz archive"):
        DataSet.load(path)
    np.savez(path, features=np.array([{}], object))
    with pytest.raises(FormatError, match="Python objects"):
        DataSet.load(path)
    make().save(path, overwrite=True)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(FormatError):
        DataSet.load(path)
    with pytest.raises(FileNotFoundError):
        DataSet.load(tmp_path / "missing.npz")


@KINDS
def test_copies_and_pickles_of_python(kind):
    data = kind()
    for other in (
        copy.copy(data),
        copy.deepcopy(data),
        pickle.loads(pickle.dumps(data)),
    ):
        assert rows_of(other) == rows_of(data)


def test_it_says_what_it_holds():
    assert repr(DataSet(np.ones((2, 3), "f4"), np.arange(2, dtype="i8"))) == (
        "DataSet(features=float32(2, 3), labels=int64(2,))"
    )
    assert "features[1]=float32(10, 3, 2)" in repr(multi())


def test_it_can_be_referred_to_weakly():
    data = make()
    there = weakref.ref(data)
    assert there() is data
    del data
    assert there() is None


def test_a_load_lies_where_arrays_are_made_now(tmp_path, pool):
    make().save(tmp_path / "batch.npz")
    with memory.numpy_allocator(pool):
        data = DataSet.load(tmp_path / "batch.npz")
    assert memory.owner_of(data.features) is pool
