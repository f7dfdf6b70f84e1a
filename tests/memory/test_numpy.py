"""NumPy's arrays in a resource: the limit, the statistics, what stays as it was."""

from __future__ import annotations

import gc
import pickle
import threading
import tracemalloc

import numpy as np
import pytest
from machine import resident_bytes
from numpy._core.multiarray import get_handler_name, get_handler_version
from resources import ALL_MAKERS, NAMES, touchable

from memcfg import memory
from memcfg.errors import ResourceExhaustedError

MIB = 2**20


@pytest.fixture
def pool():
    pool = memory.Pool(limit="64MiB", name="arrays")
    yield pool
    gc.collect()
    pool.check()


@pytest.mark.parametrize("name", NAMES)
def test_arrays_lie_in_any_resource_with_memory(name):
    resource = ALL_MAKERS[name]()
    if not touchable(resource):
        with pytest.raises(ValueError, match="arrays need memory"):
            memory.numpy_allocator(resource)
        return
    with memory.numpy_allocator(resource) as allocator:
        assert allocator.resource is resource
        array = np.arange(1000.0)
        twice = array * 2
        grown = np.zeros(10)
        grown.resize(100_000, refcheck=False)
    assert resource.owners() == {"numpy": 8000 + 8000 + 800_000}
    assert twice.sum() == 999_000
    assert not grown.any()
    del array, twice, grown
    assert resource.stats().current_bytes == 0
    resource.check()


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.empty(0),
        lambda: np.zeros(0),
        lambda: np.array(3.0),
        lambda: np.zeros((3, 0, 5)),
        lambda: np.zeros(5, dtype="V0"),
        lambda: np.zeros(4, dtype="U0"),
        lambda: np.array([{}, [], "text", None], dtype=object),
        lambda: np.zeros(7, dtype=[("a", "i4"), ("b", "O"), ("c", "f8", (3, 2))]),
        lambda: np.array(["one", "three"], dtype=np.dtypes.StringDType()),
        lambda: np.array(["2024-01-01"], dtype="M8[D]"),
        lambda: np.ma.masked_array([1, 2, 3], [0, 1, 0]),
        lambda: np.matrix([[1, 2], [3, 4]]) if hasattr(np, "matrix") else None,
        lambda: np.rec.array([(1, 2.0)], dtype=[("x", int), ("y", float)]),
        lambda: np.asfortranarray(np.ones((5, 7))),
        lambda: np.fromiter(range(1000), int),
        lambda: np.fromstring("1 2 3", sep=" "),
        lambda: np.loadtxt(["1 2", "3 4"]),
        lambda: np.array(list(range(10_000))).astype("f4"),
    ],
)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_every_kind_of_array(pool, make):
    expected = make()
    with memory.numpy_allocator(pool):
        array = make()
        assert pool.stats().current_bytes > 0
    assert memory.owner_of(np.asarray(array)) is pool
    np.testing.assert_array_equal(array, expected)
    copy = array.copy()
    assert memory.owner_of(np.asarray(copy)) is None
    del array
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_numpy_knows_the_allocator(pool):
    assert get_handler_name() == "default_allocator"
    with memory.numpy_allocator(pool):
        assert get_handler_name() == "memcfg"
        array = np.ones(3)
    assert get_handler_name() == "default_allocator"
    assert get_handler_name(array) == "memcfg"
    assert get_handler_version(array) == 1
    assert array.ctypes.data % 64 == 0


def test_an_array_outlives_the_block_the_allocator_and_every_name(pool):
    with memory.numpy_allocator(pool) as allocator:
        array = np.arange(100_000)
    del allocator
    view = array[10:20:3]
    del array
    gc.collect()
    assert pool.stats().current_bytes == 800_000
    np.testing.assert_array_equal(view, [10, 13, 16, 19])
    del view
    assert pool.stats().current_bytes == 0


def test_an_array_keeps_its_resource_alive():
    with memory.numpy_allocator(memory.statistics(memory.Pool(limit="8MiB"))):
        array = np.arange(1000)
    gc.collect()
    owner = memory.owner_of(array)
    assert owner.stats().current_bytes == 8000
    array.resize(10_000, refcheck=False)
    assert owner.stats().current_bytes == 80_000
    assert owner.upstream.stats().limit_bytes == 8 * MIB


def test_all_of_the_limit_and_not_a_byte_more(pool):
    with memory.numpy_allocator(pool) as allocator:
        array = np.empty(64 * MIB, np.uint8)
        del array
        with pytest.raises(MemoryError):
            np.empty(64 * MIB + 1, np.uint8)
    assert allocator.refusal.requested_bytes == 64 * MIB + 1
    assert pool.stats().peak_bytes == 64 * MIB


def test_a_refusal_that_leaves_the_block_is_the_resource_s(pool):
    held = pool.allocate(MIB, tag="held")
    kept = []

    def work():
        kept.append(np.ones(1000))
        kept.append(np.zeros((100, MIB)))

    allocator = memory.numpy_allocator(pool, tag="mine")
    with pytest.raises(ResourceExhaustedError) as caught, allocator:
        work()
    error = caught.value
    assert error.requested_bytes == 800 * MIB
    assert error.limit_bytes == 64 * MIB
    assert error.in_use_bytes == MIB + 8000
    assert error.owners == {"held": MIB, "mine": 8000}
    assert error.device == "arrays"
    cause = error.__cause__
    assert isinstance(cause, MemoryError)
    assert not isinstance(cause, ResourceExhaustedError)
    assert "shape (100, 1048576)" in str(cause)
    assert get_handler_name() == "default_allocator"
    held.free()


def inner(nbytes):
    return np.empty(nbytes, np.uint8)


@pytest.mark.parametrize(
    "refused",
    [
        lambda: inner(65 * MIB),
        lambda: list(map(inner, [65 * MIB])),
        lambda: np.sort(np.ones(5 * MIB)),
        lambda: np.concatenate([np.ones(4 * MIB)] * 2),
        lambda: np.ones(MIB).resize(9 * MIB),
        lambda: np.ones(8 * MIB - 8) + 1,
        lambda: np.tile(np.ones(MIB), 9),
    ],
)
def test_a_refusal_wherever_numpy_meets_it(pool, refused):
    with pytest.raises(ResourceExhaustedError) as caught, memory.numpy_allocator(pool):
        refused()
    assert caught.value.limit_bytes == 64 * MIB
    assert type(caught.value.__cause__) in (
        MemoryError,
        np._core._exceptions._ArrayMemoryError,
    )
    del caught
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_inside_the_block_numpy_tells_in_its_own_words(pool):
    with memory.numpy_allocator(pool) as allocator:
        assert allocator.refusal is None
        with pytest.raises(np._core._exceptions._ArrayMemoryError, match="512"):
            np.empty((512, MIB), np.uint8)
        assert allocator.refusal.requested_bytes == 512 * MIB
        with pytest.raises(MemoryError):
            np.empty(513 * MIB, np.uint8)
        assert allocator.refusal.requested_bytes == 513 * MIB
        np.ones(3)
    assert allocator.refusal.requested_bytes == 513 * MIB


def test_another_memory_error_is_nobody_s_refusal(pool):
    def first_ours_then_python_s():
        for action in (lambda: np.empty(65 * MIB, np.uint8), lambda: [0] * 2**62):
            try:
                action()
            except MemoryError as error:
                last = error
        raise last

    def another():
        try:
            np.empty(65 * MIB, np.uint8)
        except MemoryError:
            raise KeyError from None

    with pytest.raises(MemoryError) as caught, memory.numpy_allocator(pool):
        first_ours_then_python_s()
    assert type(caught.value) is MemoryError
    with pytest.raises(KeyError), memory.numpy_allocator(pool):
        another()


def test_a_refusal_told_again_is_still_one(pool):
    def careful():
        try:
            np.empty(65 * MIB, np.uint8)
        except MemoryError:
            raise

    with pytest.raises(ResourceExhaustedError), memory.numpy_allocator(pool):
        careful()


def test_refusals_keep_no_array_alive(pool):
    def use():
        array = np.ones(MIB)
        try:
            raise KeyError
        except KeyError:
            return array + np.empty(65 * MIB, np.uint8)

    with memory.numpy_allocator(pool) as allocator:
        with pytest.raises(MemoryError):
            use()
        gc.collect()
        assert pool.stats().current_bytes == 0
    with pytest.raises(ResourceExhaustedError), allocator:
        use()
    gc.collect()
    assert pool.stats().current_bytes == 0
    assert allocator.refusal.__traceback__ is None
    assert allocator.refusal.__context__ is None


def test_code_that_does_not_fit_can_work_in_place(pool):
    with memory.numpy_allocator(pool):
        a, b = np.ones(3 * MIB), np.full(3 * MIB, 2.0)
        with pytest.raises(MemoryError):
            a * b
        np.multiply(a, b, out=a)
        a += 1
        np.add(a, b, out=b, where=a > 2)
    assert a.sum() == 9 * MIB
    assert b.sum() == 15 * MIB
    assert pool.stats().peak_bytes < 52 * MIB


def test_the_context_names_the_arrays_else_the_allocator(pool):
    with memory.numpy_allocator(pool, tag="features") as allocator:
        a = np.empty(8)
        with memory.tag("step"):
            b = np.empty(8)
            with memory.tag(""):
                c = np.empty(8)
        with memory.tag("größe \udcff"):
            d = np.empty(8)
            d.resize(16, refcheck=False)
    assert allocator.tag == "features"
    assert pool.owners() == {"features": 128, "step": 64, "größe \udcff": 128}
    del a, b, c, d
    assert pool.owners() == {}
    with memory.tag("outside"), memory.numpy_allocator(pool):
        array = np.empty(8)
    assert pool.owners() == {"outside": 64}
    del array


def test_a_tag_that_was_set_before_does_not_stay(pool):
    with memory.numpy_allocator(pool):
        context = memory.tag("step")
        context.__enter__()
    array = np.empty(8)
    block = pool.allocate(1)
    assert block.tag == "step"
    context.__exit__(None, None, None)
    assert pool.allocate(1).tag == ""
    del array, block


def test_resize_moves_only_where_it_must(pool):
    with memory.numpy_allocator(pool):
        array = np.arange(MIB)
        address = array.ctypes.data
        array.resize(2 * MIB, refcheck=False)
        assert array.ctypes.data == address
        np.testing.assert_array_equal(array[:MIB], np.arange(MIB, dtype=int))
        assert not array[MIB:].any()
        array.resize(1000, refcheck=False)
        assert array.ctypes.data == address
        assert pool.owners() == {"numpy": 8000}
        fence = np.empty(10_000)
        array.resize(200_000, refcheck=False)
        np.testing.assert_array_equal(array[:1000], range(1000))
        array.resize(0, refcheck=False)
        array.resize((3, 5), refcheck=False)
        assert not array.any()
    del fence


def test_a_refused_resize_leaves_the_array_untouched(pool):
    with memory.numpy_allocator(pool) as allocator:
        array = np.arange(5 * MIB)
        address = array.ctypes.data
        block = pool.allocate(8 * MIB)
        with pytest.raises(MemoryError):
            array.resize(8 * MIB, refcheck=False)
        assert allocator.refusal is not None
    assert array.shape == (5 * MIB,)
    assert array.ctypes.data == address
    assert pool.stats().current_bytes == 48 * MIB
    np.testing.assert_array_equal(array[:: 2**16], range(0, 5 * MIB, 2**16))
    block.free()


def test_views_keep_the_memory(pool):
    with memory.numpy_allocator(pool):
        array = np.arange(60).reshape(3, 4, 5)
    views = [
        array[1:, ::2],
        array.T,
        array.view(np.uint8),
        np.broadcast_to(array, (2, 3, 4, 5)),
        np.asarray(memoryview(array)),
        np.lib.stride_tricks.sliding_window_view(array, 2, axis=0),
        np.from_dlpack(array),
    ]
    assert [memory.owner_of(view) for view in views[:-1]] == [pool] * 6
    del array
    while views:
        assert pool.stats().current_bytes == 512
        views.pop()
    assert pool.stats().current_bytes == 0


def test_the_owner_of_other_arrays(pool):
    block = pool.allocate(4096)
    arena = pool.arena(2**20)
    arena.grow(4096)
    assert memory.owner_of(np.frombuffer(block, np.uint8)[::2]) is pool
    assert memory.owner_of(np.asarray(memoryview(block).cast("f"))) is pool
    assert memory.owner_of(np.asarray(arena)) is pool
    for foreign in (
        np.ones(3),
        np.frombuffer(b"bytes", np.uint8),
        np.asarray(bytearray(8)),
        np.asarray(memoryview(np.ones(3))),
        np.ctypeslib.as_array((np.ctypeslib.ctypes.c_int * 4)()),
        np.broadcast_to(np.ones(3)[1:], (2, 2)),
    ):
        assert memory.owner_of(foreign) is None
    for wrong in (block, [1, 2], memoryview(b"x"), np.float64(3), None):
        with pytest.raises(TypeError, match="not an array"):
            memory.owner_of(wrong)
    with memory.numpy_allocator(pool):
        array = np.ones(3)
        array.flags.writeable = False
    assert memory.owner_of(array) is pool
    with memory.numpy_allocator(memory.limiting(pool, "1MiB")) as limited:
        assert memory.owner_of(np.ones(3)) is limited.resource


def test_arrays_in_a_file(tmp_path):
    with memory.mmap_file(tmp_path / "scratch", 64 * MIB) as file:
        with memory.numpy_allocator(file):
            array = np.arange(1000.0)
            array.resize(MIB, refcheck=False)
            filled = np.full(4 * MIB, 7.0)
            del filled
            zeros = np.zeros(4 * MIB)  # where the sevens were
        assert array[:1000].sum() == 499_500
        assert not zeros.any()
        assert memory.owner_of(zeros[::2]) is file
        with pytest.raises(BufferError):
            file.close()
        del array, zeros
    mapped = memory.mapped_array(tmp_path / "column", (1000,), "f8")
    assert memory.owner_of(mapped[3:]).path == str(tmp_path / "column")


def test_it_is_known_who_holds_the_arrays(pool):
    tracked = memory.tracking(pool, stacks=True)
    with memory.numpy_allocator(tracked), memory.tag("mine"):
        array = np.ones(100)
    (block,) = tracked.live()
    assert (block.address, block.nbytes) == (array.ctypes.data, 800)
    assert block.tag == "mine"
    functions = [function for _, _, function in block.stack]
    assert functions[:2] == ["ones", "test_it_is_known_who_holds_the_arrays"]


def test_zeros_take_no_memory_until_they_are_written(pool):
    with memory.numpy_allocator(pool):
        before = resident_bytes()
        array = np.zeros(7 * MIB)
        assert resident_bytes() - before < 8 * MIB
        assert not array[::1000].any()
        array[:] = 7
        assert resident_bytes() - before > 40 * MIB
        del array
        again = np.zeros(7 * MIB)  # where the sevens were
        assert not again.any()
        small = np.full(100, 7)
        del small
        assert not np.zeros(100, int).any()


def test_an_array_is_freed_by_another_thread(pool):
    shelf = []

    def make():
        with memory.numpy_allocator(pool):
            shelf.extend(np.full(1000, i) for i in range(100))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert [array[-1] for array in shelf] == list(range(100))
    assert pool.stats().current_bytes == 800_000 + 100 * 0
    shelf.clear()
    assert pool.stats().current_bytes == 0


def test_pickles(pool):
    with memory.numpy_allocator(pool):
        array = np.arange(MIB).reshape(2**10, 2**10)
        for protocol in (2, 5):
            text = pickle.dumps(array, protocol)
            again = pickle.loads(text)
            np.testing.assert_array_equal(again, array)
        buffers = []
        text = pickle.dumps(array, 5, buffer_callback=buffers.append)
        shared = pickle.loads(text, buffers=buffers)
        assert np.shares_memory(shared, array)
        assert memory.owner_of(shared) is pool
    del array, again, shared, buffers
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_tracemalloc_sees_the_arrays(pool):
    tracemalloc.start()
    try:
        with memory.numpy_allocator(pool):
            array = np.empty(MIB)
            array.resize(2 * MIB, refcheck=False)
        rows = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.DomainFilter(inclusive=True, domain=389047)]
        )
        assert sum(row.size for row in rows.traces) >= 16 * MIB
        del array, rows
        rows = tracemalloc.take_snapshot().filter_traces(
            [tracemalloc.DomainFilter(inclusive=True, domain=389047)]
        )
        assert sum(row.size for row in rows.traces) < MIB
    finally:
        tracemalloc.stop()


def test_what_numpy_does_in_the_block(pool):
    rng = np.random.default_rng(3)
    expected = rng.normal(size=(200, 300))
    with memory.numpy_allocator(pool):
        array = expected.copy()
        results = [
            np.sort(array, axis=0, kind="stable"),
            np.argsort(array, axis=1),
            np.concatenate([array, array.T.reshape(200, 300)]),
            array @ array.T,
            np.linalg.svd(array)[1],
            np.fft.fft2(array),
            np.einsum("ij,kj->ik", array, array),
            np.add.reduceat(array, [0, 50, 100]),
            np.cumsum(array, axis=1),
            array[array > 0],
            np.unique(array.astype(int), return_counts=True)[1],
            np.median(array, axis=0),
            np.nonzero(array > 1)[0],
            np.lexsort(array[:, :3].T),
            np.partition(array, 20, axis=1)[:, 20],
        ]
        assert all(memory.owner_of(each) is not None for each in results)
    array = expected
    others = [
        np.sort(array, axis=0, kind="stable"),
        np.argsort(array, axis=1),
        np.concatenate([array, array.T.reshape(200, 300)]),
        array @ array.T,
        np.linalg.svd(array)[1],
        np.fft.fft2(array),
        np.einsum("ij,kj->ik", array, array),
        np.add.reduceat(array, [0, 50, 100]),
        np.cumsum(array, axis=1),
        array[array > 0],
        np.unique(array.astype(int), return_counts=True)[1],
        np.median(array, axis=0),
        np.nonzero(array > 1)[0],
        np.lexsort(array[:, :3].T),
        np.partition(array, 20, axis=1)[:, 20],
    ]
    for mine, other in zip(results, others, strict=True):
        np.testing.assert_allclose(mine, other)


def test_memory_that_was_freed_behind_an_array_is_told(pool, monkeypatch):
    told = []
    monkeypatch.setattr("sys.unraisablehook", told.append)
    with memory.numpy_allocator(pool):
        array = np.empty(1000)
    pool.deallocate(array.ctypes.data, 8000)
    try:
        raise KeyError("on its way")
    except KeyError:
        del array
    assert [type(each.exc_value).__name__ for each in told] == ["InvalidFreeError"]
    told.clear()
    pool.check()


def test_what_is_no_argument(pool):
    for bad in (None, 3, "64MiB", memory.Pool):
        with pytest.raises(TypeError):
            memory.numpy_allocator(bad)
    with pytest.raises(TypeError):
        memory.numpy_allocator(pool, tag=3)
    with pytest.raises(TypeError):
        memory.numpy_allocator(pool, "tag")


def test_its_repr_tells_where_it_is(pool):
    allocator = memory.numpy_allocator(pool, tag="mine")
    assert "'mine'" in repr(allocator)
    assert "not entered" in repr(allocator)
    with allocator:
        assert "not entered" not in repr(allocator)
