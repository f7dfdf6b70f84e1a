"""Arrays in files: what is a view of one, what is in memory, and which are refused."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import threading

import numpy as np
import pytest

from memcfg import memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "array"


@pytest.fixture
def array(path):
    array = memory.mapped_array(path, (4, 5))
    array[:] = np.arange(20).reshape(4, 5)
    return array


KINDS = ["float64", "i4", "?", "<U3", "S5", "M8[s]", "c16", ">u2", "(3,)f4"]


@pytest.mark.strength(1)
@pytest.mark.parametrize("dtype", [*KINDS, [("a", "i4"), ("b", "f8", (2,))]])
@pytest.mark.parametrize("shape", [(), 7, (7,), (2, 3), [4, 1, 5], np.int64(3)])
def test_the_file_is_as_long_as_the_data(path, shape, dtype):
    plain = np.zeros(shape, dtype)
    array = memory.mapped_array(path, shape, dtype)
    assert (array.shape, array.dtype) == (plain.shape, plain.dtype)
    assert path.stat().st_size == plain.nbytes
    assert array.flags.writeable
    assert array.flags.aligned
    assert array.flags.c_contiguous
    assert array.tobytes() == plain.tobytes() == path.read_bytes()
    plain.reshape(-1).view("u1")[:] = np.arange(plain.nbytes) % 2
    array[...] = plain
    array.flush()
    assert path.read_bytes() == plain.tobytes()
    del array
    gc.collect()
    again = memory.mapped_array(path, dtype=dtype)
    count = plain.nbytes // np.dtype(dtype).itemsize
    assert again.shape == np.zeros(count, dtype).shape
    assert again.tobytes() == plain.tobytes()


def test_a_plain_array_reads_the_same(path, array):
    array.flush()
    assert (np.fromfile(path).reshape(4, 5) == array).all()
    assert (np.memmap(path, "f8", "r", shape=(4, 5)) == array).all()


def test_what_is_there_stays(path):
    np.arange(10.0).tofile(path)
    assert memory.mapped_array(path, 10).tolist() == list(range(10))
    longer = memory.mapped_array(path, (4, 5))
    assert longer.ravel().tolist() == [*range(10), *([0] * 10)]
    del longer
    with pytest.raises(ValueError, match="160 bytes, more than the 80"):
        memory.mapped_array(path, 10)
    assert memory.mapped_array(path).size == 20
    assert memory.mapped_array(path, 10, overwrite=True).tolist() == [0] * 10
    assert memory.mapped_array(path, overwrite=True).size == 10


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"shape": 0}, ValueError),
        ({"shape": (3, 0)}, ValueError),
        ({"shape": -1}, ValueError),
        ({"shape": (-1, -2)}, ValueError),
        ({"shape": (1,) * 65}, ValueError),
        ({"shape": 3, "dtype": ("f4", (1,) * 64)}, ValueError),
        ({"shape": 1.5}, TypeError),
        ({"shape": (1, "2")}, TypeError),
        ({"shape": 3, "dtype": object}, ValueError),
        ({"shape": 3, "dtype": [("a", object)]}, ValueError),
        ({"shape": 3, "dtype": np.dtypes.StringDType()}, ValueError),
        ({"shape": 3, "dtype": "U"}, ValueError),
        ({"shape": 3, "dtype": "V0"}, ValueError),
        ({"shape": 3, "dtype": "nonsense"}, TypeError),
        ({"shape": 3, "overwrite": "yes"}, TypeError),
        ({"shape": (2**40, 2**40)}, OSError),
        ({"shape": 2**58}, OSError),
        ({}, ValueError),
    ],
)
def test_arguments_that_make_no_array(path, arguments, error):
    with pytest.raises(error):
        memory.mapped_array(path, **arguments)
    assert not path.exists()


@pytest.mark.parametrize(
    "shape",
    ["float32", np.float32, np.dtype("u1"), True, np.True_, (2, True), 1.5, (2, 1.5)],
)
def test_what_is_no_shape_is_told_in_words(path, shape):
    with pytest.raises(TypeError, match="shape is an int or a tuple of ints, not "):
        memory.mapped_array(path, shape)
    assert not path.exists()


@pytest.mark.parametrize("shape", ["3", b"3", {3}, {3: 4}, iter([3]), np.ones(2, int)])
def test_what_else_is_no_shape(path, shape):
    with pytest.raises(TypeError, match="shape is an int"):
        memory.mapped_array(path, shape)
    assert not path.exists()


def test_a_file_of_half_an_element_is_refused_and_left(path):
    path.write_bytes(b"x" * 20)
    with pytest.raises(ValueError, match=r"20 bytes of .* no multiple of 8 bytes"):
        memory.mapped_array(path)
    assert path.read_bytes() == b"x" * 20
    assert memory.mapped_array(path, dtype="i4").size == 5


def test_views_are_in_the_file(array, path):
    for view in (
        array[1:],
        array[0],
        array[:, 2],
        array.T,
        array[::-1],
        array.reshape(-1),
        array.ravel(),
        array[None],
        array.view("u1"),
        next(iter(array)),
        np.add(array, 0, out=array),
    ):
        assert isinstance(view, memory.MappedArray)
        assert view.filename == str(path)
        assert memory.owner_of(view).path == str(path)
    assert memory.owner_of(np.asarray(array)).path == str(path)


@pytest.mark.parametrize("size", [10, 12])
def test_a_loop_may_end_in_an_empty_view(path, size):
    array = memory.mapped_array(path, (size, 2**10))
    for start in range(0, size + 4, 4):  # of 10 and of 12 rows, the last part is empty
        part = array[start : start + 4]
        part[:] = start
        assert isinstance(part, memory.MappedArray)
        assert part.filename == str(path)
        part.flush()
        assert part.evict() >= 0
    assert part.evict() == (0 if size == 12 else part.nbytes)
    assert array[-1, 0] == 8


def test_empty_views_are_in_the_file(array, path):
    for view in (
        array[0:0],
        array[4:],
        array[::-1][4:],
        array[:, 5:],
        array[0:0].T,
        array[0:0].reshape(3, 0),
        array[0:0].view("u1"),
        array[0:0][0:0],
        np.split(array, [4])[1],
        np.lib.stride_tricks.as_strided(array, (0,), subok=True),
    ):
        assert isinstance(view, memory.MappedArray)
        assert view.size == 0
        assert view.filename == str(path)
        view.flush()
        assert view.evict() == 0
    for plain in (array[0:0].copy(), array[[]], array[array > 99], array[0:0] + 1):
        assert type(plain) is np.ndarray
        assert plain.size == 0
    assert np.empty_like(array[0:0]).filename is None
    view = array[4:]
    del array


def test_an_empty_view_keeps_the_file_open(path):
    view = memory.mapped_array(path, 10)[10:]
    with pytest.raises(BlockingIOError, match="in this process: delete the array"):
        memory.mapped_array(path)
    del view
    memory.mapped_array(path)


def test_what_is_computed_is_not(array):
    for name, plain in {
        "sum": array.sum(axis=0),
        "copy": array.copy(),
        "copy.copy": copy.copy(array),
        "deepcopy": copy.deepcopy(array),
        "add": array + 1,
        "divmod": np.divmod(array, 2)[1],
        "product": array @ array.T,
        "some": array[[0, 2]],
        "mask": array[array > 3],
        "where": np.where(array > 3, array, 0),
        "stack": np.concatenate([array, array]),
        "sorted": np.sort(array),
        "median": np.median(array, axis=0),
    }.items():
        assert type(plain) is np.ndarray, name
        assert memory.owner_of(plain) is None, name
        assert not np.shares_memory(plain, array), name
    for scalar in (array.sum(), array.max(), array[0, 0], np.median(array)):
        assert isinstance(scalar, np.float64)
    assert array.copy("F").flags.f_contiguous


def test_what_only_looks_like_one_says_so(array):
    other = array.astype("f4")
    assert other.filename is None
    for use in (other.flush, other.evict):
        with pytest.raises(ValueError, match="in memory, not in a file"):
            use()
    with pytest.raises(TypeError, match="made by"):
        memory.MappedArray((3,))


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_a_plain_copy(array, protocol):
    again = pickle.loads(pickle.dumps(array[1:], protocol))
    assert type(again) is np.ndarray
    assert (again == array[1:]).all()


def test_the_file_stays_open_as_long_as_a_view_lives(path):
    np.arange(20.0).tofile(path)
    array = memory.mapped_array(path, (4, 5))
    view = array[2:, 1]
    del array
    gc.collect()
    with pytest.raises(BlockingIOError):
        memory.mapped_array(path)
    assert view.tolist() == [11, 16]
    plain = np.asarray(view)
    del view
    plain[0] = 99
    with pytest.raises(BlockingIOError):
        memory.mapped_array(path)
    del plain
    assert memory.mapped_array(path)[11] == 99


def test_a_passing_array_leaves_nothing(path):
    array = memory.mapped_array(path, 1000, delete=True)
    view = array[10:]
    del array
    assert path.exists()
    del view
    assert not path.exists()


def test_its_bytes_are_counted_under_its_tag(path, array):
    owner = memory.owner_of(array)
    assert isinstance(owner, memory.MappedFile)
    assert owner.owners() == {"mapped array": 192}
    with memory.tag("weights"):
        other = memory.mapped_array(path.with_name("other"), 3)
    assert memory.owner_of(other).owners() == {"weights": 64}
    with pytest.raises(BufferError):
        owner.close()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is resident")
def test_a_view_evicts_its_own_pages(path):
    array = memory.mapped_array(path, (16, 2**17), "u1")  # rows of 32 pages
    array[:] = 5
    assert array[3:5].evict() == 2**18
    assert array[4].evict() == 0
    assert array[0, 1:5000].evict() == 0  # no whole page
    assert array[0, 1:8192].evict() == 4096
    assert (array == 5).all()
    assert array[:, 0].evict() == 15 * 2**17
    assert array.evict() == 2**17


def test_flushing_a_view_flushes_the_file(array, path):
    array[3, 4] = 77
    array[0].flush()
    assert np.fromfile(path)[-1] == 77


def test_threads_write_flush_and_evict(path):
    array = memory.mapped_array(path, (8, 10_000), "i8")
    stop = threading.Event()

    def disturb():
        while not stop.is_set():
            array.evict()
            array.flush()

    def work(lane):
        for number in range(1, 60):
            array[lane] = number
            assert (array[lane] == number).all()
            array[lane].evict()

    disturber = threading.Thread(target=disturb)
    threads = [threading.Thread(target=work, args=(lane,)) for lane in range(8)]
    for thread in [disturber, *threads]:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    disturber.join()
    assert (array == 59).all()


def test_only_one_of_many_threads_gets_it(path):
    barrier = threading.Barrier(8)
    got = []
    refused = []

    def work():
        barrier.wait()
        try:
            got.append(memory.mapped_array(path, 100))
        except BlockingIOError:
            refused.append(True)

    for _ in range(20):
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(got), len(refused)) == (1, 7)
        got.clear()
        refused.clear()
        gc.collect()
        path.unlink()
