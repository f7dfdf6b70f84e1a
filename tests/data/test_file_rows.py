"""Rows of files: read to where they are wanted, and never mapped into the process."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import FormatError

Dataset = mc.data.Dataset
LENGTH = 23

pytestmark = pytest.mark.skipif(
    not os.path.exists("/proc/self/maps"), reason="the system does not tell its maps"
)


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf(
        "SC_PAGESIZE"
    )


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(LENGTH * 6).reshape(LENGTH, 2, 3))
    return path


def open_files(path):
    """Count the descriptors by which the process has files of a folder open."""
    count = 0
    for entry in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one of this listing
            file = os.readlink(f"/proc/self/fd/{entry}")
            count += file.startswith(str(path.parent))
    return count


def rows_of(mapped, path):
    """Make a dataset of a map; tell whether it has opened the file itself."""
    before = open_files(path)
    dataset = Dataset.from_tensor_slices(mapped)
    return dataset, open_files(path) == before + 1


def opened(path):
    return np.load(path, mmap_mode="r")


SLICES = {
    "all": np.s_[:],
    "some": np.s_[5:-3],
    "every third": np.s_[1::3],
    "backwards": np.s_[::-1],
    "backwards, every second": np.s_[-2:3:-2],
    "one": np.s_[4:5],
    "one, backwards": np.s_[4:3:-1],
    "a part of each row": np.s_[:, 1],
    "a part of some rows": np.s_[2::2, 1, 1:],
    "numbers": np.s_[:, 0, 2],
    "of a slice": np.s_[2:],
}


@pytest.mark.parametrize("part", SLICES)
def test_rows_of_slices(path, part):
    mapped = opened(path)[SLICES[part]]
    if part == "of a slice":
        mapped = mapped[3:][::2]
    plain = np.array(mapped)
    dataset, is_read = rows_of(mapped, path)
    copied = Dataset.from_tensor_slices(plain)
    assert is_read
    assert dataset.element_spec == copied.element_spec
    assert np.array_equal(list(dataset), plain)
    for seed, size in enumerate((1, 5, 40)):
        batches = dataset.shuffle(100, seed).repeat(2).batch(size)
        expected = copied.shuffle(100, seed).repeat(2).batch(size)
        for found, rows in zip(batches, expected, strict=True):
            assert np.array_equal(found, rows)


@pytest.mark.parametrize(
    "open_it",
    [
        opened,
        lambda path: np.load(path, mmap_mode="r+"),
        lambda path: np.asarray(opened(path)),
        lambda path: opened(path).view(np.ndarray)[2:],
        lambda path: opened(path)[1:].view("u8"),
        lambda path: np.memmap(path, np.int64, "r", offset=128, shape=(LENGTH, 6)),
        lambda path: np.memmap(path, np.int8, "r", offset=3),
        lambda path: np.memmap(path, ">i2", "r", offset=7, shape=(40, 3)),
        lambda path: opened(path).T.T,
    ],
)
def test_maps_of_every_kind(path, open_it):
    mapped = open_it(path)
    dataset, is_read = rows_of(mapped, path)
    assert is_read
    plain = np.array(mapped)
    assert np.array_equal(list(dataset), plain)
    batches = list(dataset.shuffle(100, seed=1).batch(7))
    found = np.concatenate(batches)
    assert found.dtype.isnative
    order = list(Dataset.range(len(plain)).shuffle(100, seed=1))
    assert np.array_equal(found, plain[order])


@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ms]", "U5", "S3", "?", "c16", "f2"])
def test_dtypes(tmp_path, dtype):
    values = np.arange(60).reshape(20, 3).astype(dtype)
    np.save(tmp_path / "x.npy", values)
    dataset, is_read = rows_of(opened(tmp_path / "x.npy"), tmp_path / "x.npy")
    assert is_read
    assert np.array_equal(next(iter(dataset.batch(20))), values)
    assert np.array_equal(list(dataset), values)


def test_what_is_read_is_the_readers(path):
    dataset = Dataset.from_tensor_slices(opened(path))
    element = next(iter(dataset))
    element[:] = -1
    assert next(iter(dataset)).ravel()[0] == 0


def test_what_is_written_to_the_map_is_read(path):
    mapped = np.load(path, mmap_mode="r+")
    dataset = Dataset.from_tensor_slices(mapped)
    mapped[1] = 7
    assert (list(dataset)[1] == 7).all()


@pytest.mark.parametrize(
    "part", [np.s_[:, :, ::2], np.s_[:, ::-1], np.s_[:, :, None, 0]]
)
def test_rows_that_are_no_piece_of_the_file_go_through_the_map(path, part):
    mapped = opened(path)[part]
    dataset, is_read = rows_of(mapped, path)
    assert not is_read or mapped[0].flags.c_contiguous
    assert np.array_equal(next(iter(dataset.batch(LENGTH))), mapped)


def test_a_private_copy_goes_through_the_map(path):
    mapped = np.load(path, mmap_mode="c")
    mapped[0] = -1
    dataset, is_read = rows_of(mapped, path)
    assert not is_read
    assert (next(iter(dataset)) == -1).all()


@pytest.mark.parametrize("how", ["removed", "replaced", "removed and made again"])
def test_a_file_that_is_another_by_now_goes_through_the_map(path, how):
    mapped = opened(path)
    plain = np.array(mapped)
    if how == "replaced":
        np.save(path.with_name("new.npy"), plain + 1)
        os.replace(path.with_name("new.npy"), path)
    else:
        path.unlink()
    if how == "removed and made again":
        np.save(path, plain + 1)
    dataset, is_read = rows_of(mapped, path)
    assert not is_read
    assert np.array_equal(list(dataset), plain)


def test_a_file_that_was_renamed_is_read(path):
    mapped = opened(path)
    os.replace(path, path.with_name("other name.npy"))
    dataset, is_read = rows_of(mapped, path)
    assert is_read
    assert np.array_equal(list(dataset), mapped)


def test_the_file_stays_open_when_its_name_goes(path):
    dataset = Dataset.from_tensor_slices(opened(path))
    path.unlink()
    assert next(iter(dataset.batch(LENGTH))).ravel().tolist() == list(range(LENGTH * 6))


def test_the_file_is_closed_with_the_dataset(path):
    dataset = Dataset.from_tensor_slices(opened(path))
    other = dataset.batch(3)
    del dataset
    gc.collect()
    assert open_files(path) == 1
    del other
    gc.collect()
    assert open_files(path) == 0


def test_a_file_that_becomes_shorter_is_an_error_that_names_it(path):
    dataset = Dataset.from_tensor_slices(opened(path)).batch(4)
    elements = iter(dataset)
    next(elements)
    os.truncate(path, 300)
    with pytest.raises(FormatError, match="shorter") as caught:
        list(elements)
    assert str(path) in caught.value.__notes__[0]


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_copy_opens_the_file_again(path, copied):
    dataset = Dataset.from_tensor_slices(opened(path)[3:]).batch(LENGTH)
    other = copied(dataset)
    assert len(pickle.dumps(dataset)) < 5000
    assert np.array_equal(next(iter(other)), next(iter(dataset)))
    assert open_files(path) == 2


def test_a_copy_of_a_file_that_is_gone_or_too_short_is_an_error(path):
    pickled = pickle.dumps(Dataset.from_tensor_slices(opened(path)))
    os.truncate(path, 300)
    with pytest.raises(FormatError, match="300 bytes"):
        pickle.loads(pickled)
    path.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(pickled)


def test_a_forked_process_reads_too(path):
    dataset = Dataset.from_tensor_slices(opened(path)).batch(5)
    expected = [batch.tolist() for batch in dataset]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of fork beside threads
        child = os.fork()
    if child == 0:
        same = False
        try:
            same = [batch.tolist() for batch in dataset] == expected
        finally:
            os._exit(0 if same else 1)
    assert [batch.tolist() for batch in dataset] == expected
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("rows", [np.s_[:], np.s_[7:-9], np.s_[::-1]])
def test_the_process_does_not_grow(tmp_path, rows):
    size, count = 1 << 20, 96
    path = tmp_path / "large.npy"
    array = np.lib.format.open_memmap(path, "w+", np.uint8, (count, size))
    for row in range(count):
        array[row] = row
    del array
    dataset = Dataset.from_tensor_slices(opened(path)[rows])
    gc.collect()
    before = resident()
    highest = before
    for batch in dataset.shuffle(count, seed=3).batch(4).prefetch(2):
        assert (batch == batch[:, :1]).all()
        highest = max(highest, resident())
    assert highest - before < 40 * size  # 5 batches of 4 rows, twice


def test_a_large_map_that_is_not_read_from_its_file_is_warned_of_once(path):
    mapped = np.memmap(path, np.uint8, "w+", shape=(8, 4, 1 << 20))  # sparse
    with pytest.warns(UserWarning, match=r"mmap_mode=\"r\"") as warned:
        Dataset.from_tensor_slices((mapped[:, ::-1], mapped[:, ::-1]))
    [one] = warned
    assert one.filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Dataset.from_tensor_slices(mapped)
        Dataset.from_tensor_slices(mapped[:7, ::-1])  # a small one
        Dataset.from_tensor_slices(np.array(mapped[:, ::-1]))


def test_no_rows_are_no_file(path):
    dataset = Dataset.from_tensor_slices(opened(path)[:0])
    assert list(dataset) == []
    assert dataset.element_spec == mc.data.TensorSpec((2, 3), "int64")
