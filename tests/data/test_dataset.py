"""The dataset itself: its passes, its length, and what is said of it."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import memcfg as mc

Dataset, Spec = mc.data.Dataset, mc.data.TensorSpec


def test_both_names_of_autotune():
    assert mc.data.AUTOTUNE == mc.data.experimental.AUTOTUNE == -1
    assert mc.data.INFINITE_CARDINALITY == -1
    assert mc.data.UNKNOWN_CARDINALITY == -2
    x, y = np.zeros((70, 3), np.float32), np.arange(70)
    pipeline = (
        Dataset.from_tensor_slices((x, y))
        .batch(32)
        .prefetch(mc.data.experimental.AUTOTUNE)
    )
    assert [len(labels) for _, labels in pipeline] == [32, 32, 6]


def test_lengths():
    assert len(Dataset.range(5)) == 5
    with pytest.raises(TypeError, match="infinite"):
        len(Dataset.range(5).repeat())
    with pytest.raises(TypeError, match="unknown"):
        len(Dataset.range(5).filter(bool))
    assert isinstance(Dataset.range(5).cardinality(), np.int64)


@pytest.mark.parametrize("dataset", [Dataset.range(0), Dataset.range(1).repeat()])
def test_a_dataset_is_true(dataset):
    assert bool(dataset) is True


@pytest.mark.parametrize("data", [np.arange(3), ([1], [2]), None, Dataset.range(3)])
def test_data_is_not_given_to_the_class(data):
    with pytest.raises(TypeError, match="is made by from_tensor_slices"):
        Dataset(data)


def test_passes_are_apart():
    dataset = Dataset.range(3)
    one, two = iter(dataset), iter(dataset)
    assert [next(one), next(one), next(two), next(one), next(two)] == [0, 1, 0, 2, 1]
    assert list(one) == []
    assert list(dataset) == list(dataset.as_numpy_iterator()) == [0, 1, 2]


def test_a_pass_is_its_own_iterator_and_can_be_closed():
    with iter(Dataset.range(3)) as elements:
        assert iter(elements) is elements
        assert elements.element_spec == Spec((), "int64")
        next(elements)
    assert list(elements) == []


def test_steps_leave_the_dataset_as_it_is():
    dataset = Dataset.range(6)
    dataset.take(2).shuffle(3).batch(2)
    assert list(dataset) == list(range(6))


def test_reduce():
    numbers = Dataset.range(5)
    assert numbers.reduce(np.int64(0), lambda total, x: total + x) == 10
    assert numbers.reduce(0, lambda count, _: count + 1) == np.int32(5)
    assert Dataset.range(0).reduce(7, lambda state, _: state) == np.int32(7)
    pairs = Dataset.zip(numbers, numbers)
    assert (
        pairs.reduce(np.int64(0), lambda total, pair: total + pair[0] * pair[1]) == 30
    )
    count, total = numbers.reduce(
        (0, np.int64(0)), lambda state, x: (state[0] + 1, state[1] + x)
    )
    assert (count, total) == (5, 10)
    grown = numbers.reduce(np.zeros(0, np.int64), lambda state, x: np.append(state, x))
    assert grown.tolist() == [0, 1, 2, 3, 4]
    listed = numbers.reduce((0, 0), lambda state, x: [state[1], state[0]])
    assert listed == (0, 0)


@pytest.mark.parametrize(
    ("state", "function", "match"),
    [
        (np.int64(0), lambda state, x: 1.5, "initial_state of float32"),
        ((0, 0), lambda state, x: state[0], "structure"),
        ({"a": 0}, lambda state, x: {"b": 0}, "structure"),
    ],
)
def test_the_state_keeps_its_kind(state, function, match):
    with pytest.raises(TypeError, match=match):
        Dataset.range(3).reduce(state, function)


def test_an_error_in_reduce_ends_the_pass():
    def fails(_, x):
        if x == 2:
            raise KeyError(int(x))
        return 0

    with pytest.raises(KeyError):
        Dataset.range(100).prefetch(2).reduce(0, fails)


def test_apply():
    assert list(Dataset.range(5).apply(lambda dataset: dataset.skip(3))) == [3, 4]
    with pytest.raises(TypeError, match="returned int"):
        Dataset.range(5).apply(lambda dataset: 3)


def test_functions_that_make_datasets():
    def fails(x):
        return [x]

    for dataset in (
        Dataset.range(3).interleave(fails, cycle_length=1),
        Dataset.range(3).flat_map(fails),
    ):
        with pytest.raises(TypeError, match="returned list"):
            list(dataset)
    pairs = Dataset.zip(Dataset.range(2, 4), Dataset.range(2))
    assert list(pairs.flat_map(lambda n, m: Dataset.range(m, n))) == [0, 1, 1, 2]
    for name in ("interleave", "flat_map", "map"):
        with pytest.raises(TypeError, match=r"3|int"):
            getattr(Dataset.range(3), name)(3)


@pytest.mark.parametrize(
    ("size", "error"), [(-2, ValueError), (1.5, TypeError), ("a", TypeError)]
)
def test_what_is_no_buffer_size(size, error):
    with pytest.raises(error, match="buffer_size"):
        Dataset.range(3).prefetch(size)


@pytest.mark.parametrize("size", [None, -1, 0, 1, np.int64(3)])
def test_sizes_of_buffers(size):
    assert list(Dataset.range(9).prefetch(size)) == list(range(9))


def test_a_dataset_is_shown_by_its_steps():
    called = []
    dataset = Dataset.range(3).map(called.append, name="load").batch(2)
    assert repr(dataset) == "<Dataset range > load > batch>"
    assert called == []


NAMED = {
    "from_tensors": lambda name: Dataset.from_tensors(1, name=name),
    "from_tensor_slices": lambda name: Dataset.from_tensor_slices([1], name=name),
    "from_generator": lambda name: Dataset.from_generator(list, name=name),
    "range": lambda name: Dataset.range(1, name=name),
    "zip": lambda name: Dataset.zip(Dataset.range(1), name=name),
    "take": lambda name: Dataset.range(1).take(1, name=name),
    "skip": lambda name: Dataset.range(1).skip(1, name=name),
    "repeat": lambda name: Dataset.range(1).repeat(1, name=name),
    "shard": lambda name: Dataset.range(1).shard(1, 0, name=name),
    "filter": lambda name: Dataset.range(1).filter(bool, name=name),
    "shuffle": lambda name: Dataset.range(1).shuffle(1, name=name),
    "concatenate": lambda name: Dataset.range(1).concatenate(
        Dataset.range(1), name=name
    ),
    "enumerate": lambda name: Dataset.range(1).enumerate(name=name),
    "batch": lambda name: Dataset.range(1).batch(1, name=name),
    "padded_batch": lambda name: Dataset.range(1).padded_batch(1, name=name),
    "unbatch": lambda name: Dataset.range(1).batch(1).unbatch(name=name),
    "map": lambda name: Dataset.range(1).map(bool, name=name),
    "interleave": lambda name: Dataset.range(1).interleave(Dataset.range, name=name),
    "flat_map": lambda name: Dataset.range(1).flat_map(Dataset.range, name=name),
    "cache": lambda name: Dataset.range(1).cache(name=name),
    "prefetch": lambda name: Dataset.range(1).prefetch(1, name=name),
}


@pytest.mark.parametrize("method", NAMED)
def test_each_step_has_a_name(method):
    assert NAMED[method](None)._node.name == method
    assert NAMED[method]("mine")._node.name == "mine"


def test_a_copy_of_a_shuffle_and_a_cache_restarts():
    dataset = Dataset.range(10).shuffle(4, seed=1).cache().batch(3).prefetch(2)
    first = [batch.tolist() for batch in dataset]
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        assert [batch.tolist() for batch in other] == first


def test_a_dataset_of_arrays_is_copied_and_pickled():
    dataset = Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), ["a", "b", "c"]))
    dataset = dataset.skip(1).batch(2)
    list(dataset)  # a pass leaves nothing behind that can't be copied
    list(dataset.unbatch())
    for other in (copy.deepcopy(dataset), pickle.loads(pickle.dumps(dataset))):
        [(x, y)] = other
        assert x.tolist() == [[2, 3], [4, 5]]
        assert y.tolist() == ["b", "c"]


def test_a_pass_is_not_copied():
    with iter(Dataset.range(3).prefetch(1)) as numbers:
        for act in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="copy the dataset"):
                act(numbers)
        assert list(numbers) == [0, 1, 2]


def test_elements_come_from_the_devices_pool_and_are_under_its_limit():
    pool = mc.config.logical_device(None).pool
    rows = np.ones((4, 1000))
    batch = next(iter(Dataset.from_tensor_slices(rows).batch(4)))
    assert pool.stats().current_bytes >= rows.nbytes
    del batch
    mc.config.set_memory_limit("CPU:0", f"{pool.stats().current_bytes + 1000}B")
    with pytest.raises(mc.errors.ResourceExhaustedError):
        next(iter(Dataset.from_tensor_slices(rows).batch(4)))


def test_a_misspelt_argument_of_a_method_is_told_the_right_one():
    dataset = Dataset.range(4)
    with pytest.raises(TypeError, match="'batchsize': did you mean 'batch_size'"):
        dataset.batch(batchsize=2)
    with pytest.raises(TypeError, match="'tensor': did you mean 'tensors'"):
        Dataset.from_tensor_slices(tensor=[1])
    with pytest.raises(TypeError, match="'buffer_size'; it takes buffer_size, seed"):
        dataset.shuffle()

    class Own(Dataset):
        def batch(self, *, batchsize):
            return super().batch(batchsize)

    assert len(list(Own.range(4).batch(batchsize=2))) == 2
