"""What a cache keeps, when, and where: in memory and in files."""

from __future__ import annotations

import errno
import gc
import os
import resource
import signal
import struct
import subprocess
import sys
import textwrap
import tracemalloc
import warnings
import zlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from steps import Items, listed, numbers, passing

from memcfg.data import Dataset, TensorSpec
from memcfg.errors import FormatError, ResourceExhaustedError
from memcfg.memory import Pool


class Point(NamedTuple):
    x: Any
    y: Any


def cached(source, path="", name=None):
    """Cache what a node makes."""
    return Dataset(source).cache(path, name)


def left(dataset, count):
    """Read a part of a pass, and leave it."""
    found = listed(dataset.take(count))
    gc.collect()
    return found


@pytest.fixture(params=["memory", "file"])
def where(request, tmp_path):
    return "" if request.param == "memory" else str(tmp_path / "cache")


def leaves(element):
    """List the leaves of an element, with their paths."""
    if isinstance(element, dict):
        parts = sorted(element.items())
    elif isinstance(element, tuple):
        parts = enumerate(element)
    else:
        return [((type(element),), element)]
    return [((type(element), key, *to), x) for key, e in parts for to, x in leaves(e)]


def same(one, other):
    pairs = list(zip(leaves(one), leaves(other), strict=False))
    return len(leaves(one)) == len(leaves(other)) and all(
        at == to
        and a.dtype == b.dtype
        and a.shape == b.shape
        and np.asarray(a).tobytes() == np.asarray(b).tobytes()
        for (at, a), (to, b) in pairs
    )


# Rules


def test_the_source_makes_a_whole_pass_once(where):
    source = numbers(10)
    node = cached(source, where)
    for _ in range(3):
        assert listed(node) == list(range(10))
    assert (source.begun, source.pulled) == (1, 10)


def test_an_empty_pass_is_kept_too(where):
    source = numbers(0)
    node = cached(source, where)
    assert listed(node) == listed(node) == []
    assert source.begun == 1


def test_a_repeated_cache_reads_what_the_first_pass_noted(where):
    source = numbers(4)
    assert listed(cached(source, where).repeat(3)) == [0, 1, 2, 3] * 3
    assert source.begun == 1


def test_a_cached_shuffle_has_one_order(where):
    node = numbers(50).dataset.shuffle(50, 1).cache(where)
    assert listed(node) == listed(node)


def test_a_part_of_a_pass_keeps_nothing_and_warns_once(where):
    source = numbers(10)
    node = cached(source, where, name="mine")
    with pytest.warns(UserWarning, match="'mine' ended before its data did"):
        assert left(node, 3) == [0, 1, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert left(node, 2) == [0, 1]
    assert source.begun == 2
    assert listed(node) == listed(node) == list(range(10))
    assert source.begun == 3


def test_a_pass_of_which_nothing_was_read_does_not_warn(where):
    node = cached(numbers(3), where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        passing(node).close()
        assert listed(node.take(0)) == []
        assert listed(node) == [0, 1, 2]


def test_asking_what_elements_are_keeps_nothing_and_does_not_warn(where):
    source = numbers(3)
    node = cached(source, where)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert node.map(lambda x: x).element_spec.dtype == np.int64
    assert listed(node) == [0, 1, 2]
    assert source.begun == 2


def test_all_elements_without_the_end_are_a_part(where):
    source = numbers(3)
    node = cached(source, where)
    with pytest.warns(UserWarning, match="ended before"):
        assert left(node, 3) == [0, 1, 2]
    assert listed(node) == [0, 1, 2]
    assert source.begun == 2


def test_a_failed_pass_keeps_nothing_and_does_not_warn(where):
    boom = ValueError("boom")
    source = Items([np.int64(1), boom])
    node = cached(source, where)
    for _ in range(2):
        elements = passing(node)
        assert next(elements) == 1
        with pytest.raises(ValueError, match="boom") as caught:
            next(elements)
        assert caught.value is boom
    source.items = [np.int64(7)]
    assert listed(node) == [7]
    source.items = []
    assert listed(node) == [7]


def test_elements_are_as_they_were(where):
    elements = [
        (
            np.arange(6, dtype=np.float32).reshape(2, 3)[:, ::2],
            {"b": np.str_("grün"), "a": np.array([b"x", b"longer"])},
            Point(np.float16(1.5), np.array(["", "abc"])),
            np.bool_(True),
        ),
        (
            np.empty((0, 3), np.float32),
            {"b": np.str_(""), "a": np.array([b""])},
            Point(np.float16(np.nan), np.array([["é"]])),
            np.bool_(False),
        ),
    ]
    source = Items(elements)
    source.element_spec = (
        TensorSpec([None, None]),
        {"b": TensorSpec((), "U"), "a": TensorSpec([None], "S")},
        Point(TensorSpec((), np.float16), TensorSpec(None, "U")),
        TensorSpec((), bool),
    )
    node = cached(source, where)
    for _ in range(2):
        for one, other in zip(passing(node), elements, strict=True):
            assert same(one, other)
            assert list(one[1]) == ["b", "a"]


# In memory


def test_what_memory_keeps_is_in_the_pool_and_read_only(pool):
    def element():
        return {"x": np.ones(1000)}

    node = cached(Items([element] * 10))
    first = list(passing(node, pool))
    assert all(element["x"].flags.writeable for element in first)
    first[0]["x"][:] = 7
    del first
    gc.collect()
    assert pool.stats().current_bytes == 10 * 8000
    for given_out in passing(node, pool):
        assert (given_out["x"] == 1).all()
        with pytest.raises(ValueError, match="read-only"):
            given_out["x"][0] = 2
        with pytest.raises(ValueError, match="WRITEABLE"):
            given_out["x"].flags.writeable = True
        given_out["x"].shape = (10, 100)
        given_out["y"] = 3
    assert {*next(passing(node, pool))} == {"x"}
    del node, given_out
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_an_array_that_its_maker_uses_again_is_kept_as_it_was():
    scratch = np.zeros(3)

    def element():
        scratch[:] += 1
        return scratch

    node = cached(Items([element] * 3))
    for _ in passing(node):
        pass
    assert [one.tolist() for one in passing(node)] == [[1] * 3, [2] * 3, [3] * 3]


def test_what_does_not_fit_is_an_error_and_releases_memory():
    pool = Pool(limit="1MiB", name="small")
    node = cached(Items([lambda: np.ones(10_000)] * 100))
    elements = passing(node, pool)
    with pytest.raises(ResourceExhaustedError):
        list(elements)
    del elements
    gc.collect()
    assert pool.stats().current_bytes == 0


def test_passes_side_by_side_note_their_own():
    source = numbers(4)
    node = cached(source)
    one, other = passing(node), passing(node)
    assert [int(next(one)), int(next(other)), int(next(one))] == [0, 0, 1]
    assert [int(x) for x in other] == [1, 2, 3]
    assert listed(node) == [0, 1, 2, 3]
    assert [int(x) for x in one] == [2, 3]
    assert source.begun == 2
    assert listed(node) == [0, 1, 2, 3]


# In files


def test_another_process_reads_what_one_wrote(tmp_path):
    path = str(tmp_path / "cache")
    assert listed(cached(numbers(5), path)) == [0, 1, 2, 3, 4]
    assert os.listdir(tmp_path) == ["cache"]
    none = numbers(0)
    assert listed(cached(none, path)) == [0, 1, 2, 3, 4]
    assert none.begun == 0


def test_paths_of_any_kind_are_taken(tmp_path):
    for path in (tmp_path / "one", os.fsencode(tmp_path / "two")):
        assert listed(cached(numbers(2), path)) == [0, 1]
        assert os.path.exists(path)
    with pytest.raises(TypeError):
        cached(numbers(2), 3)
    with pytest.raises(FileNotFoundError):
        listed(cached(numbers(2), str(tmp_path / "no" / "folder")))


def test_a_second_writer_is_refused_until_the_first_is_done(tmp_path):
    node = cached(numbers(3), str(tmp_path / "cache"))
    first = passing(node)
    next(first)
    with pytest.raises(BlockingIOError, match="another pass writes this cache"):
        next(passing(node))
    assert os.listdir(tmp_path) == ["cache.partial"]
    with pytest.warns(UserWarning, match="ended before"):
        first.close()
    assert os.listdir(tmp_path) == []
    assert listed(node) == [0, 1, 2]


def test_a_killed_process_leaves_no_lock(tmp_path):
    script = """
        import os, signal, sys
        from steps import numbers, passing
        elements = passing(numbers(100).dataset.cache(sys.argv[1]))
        next(elements)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = str(tmp_path / "cache")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), path],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
    )
    assert done.returncode == -signal.SIGKILL
    assert os.listdir(tmp_path) == ["cache.partial"]
    assert listed(cached(numbers(3), path)) == [0, 1, 2]
    assert os.listdir(tmp_path) == ["cache"]


def test_a_forked_child_does_not_keep_the_lock(tmp_path):
    path = str(tmp_path / "cache")
    elements = passing(cached(numbers(3), path))
    next(elements)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reading, 1)
        os._exit(0)
    try:
        assert [int(x) for x in elements] == [1, 2]
        os.unlink(path)
        assert listed(cached(numbers(2), path)) == [0, 1]
    finally:
        os.write(writing, b"x")
        os.waitpid(child, 0)
        os.close(reading)
        os.close(writing)


def test_a_forked_child_does_not_remove_the_file_of_its_parent(tmp_path):
    path = str(tmp_path / "cache")
    elements = passing(cached(numbers(3), path))
    next(elements)
    child = os.fork()
    if child == 0:
        warnings.simplefilter("ignore")  # its pass was not read to the end
        try:
            elements.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert [int(x) for x in elements] == [1, 2]
    assert os.listdir(tmp_path) == ["cache"]


@pytest.fixture
def short_files():
    """No file may be longer than 64 KiB; the signal that tells so is ignored."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (65536, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, before)


@pytest.mark.usefixtures("short_files")
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path):
    node = cached(Items([np.ones(1000)] * 100), str(tmp_path / "cache"))
    elements = passing(node)
    with pytest.raises(OSError) as caught:  # noqa: PT011
        list(elements)
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


def test_reading_a_file_needs_memory_for_one_element(tmp_path, pool):
    node = cached(Items([lambda: np.ones(2**17)] * 64), str(tmp_path / "cache"))
    for _ in passing(node, pool):
        pass
    pool.reset_peak()
    for element in passing(node, pool):
        assert (element == 1).all()
    del element
    assert pool.stats().peak_bytes <= 3 * 2**20


def test_a_key_that_a_file_cannot_keep_is_refused(tmp_path):
    node = cached(Items([{1.5: np.int64(1)}]), str(tmp_path / "cache"))
    with pytest.raises(TypeError, match="str or int"):
        listed(node)
    assert os.listdir(tmp_path) == []


def test_a_named_tuple_of_other_fields_is_refused(tmp_path):
    path = str(tmp_path / "cache")

    class Other(NamedTuple):
        a: Any
        b: Any

    source = Items([Point(np.int64(1), np.int64(2))])
    list(passing(cached(source, path)))
    source.element_spec = Other(0, 0)
    with pytest.raises(FormatError, match="fields"):
        list(passing(cached(source, path)))


@pytest.mark.parametrize(
    "other",
    [
        np.zeros((1, 2)),
        (np.zeros((1, 2)), np.zeros(1), np.zeros(1)),
        (np.zeros((1, 2), np.float32), np.zeros(1)),
        (np.zeros((1, 2, 2)), np.zeros(1)),
        {"a": np.zeros((1, 2)), "b": np.zeros(1)},
    ],
    ids=["an array", "three", "dtype", "axes", "a dict"],
)
def test_a_file_of_other_elements_is_refused(other, tmp_path):
    path = tmp_path / "cache"
    for length in (2, 3):  # sizes may differ
        both = (np.zeros((1, length)), np.zeros(1))
        assert len(list(Dataset.from_tensor_slices(both).cache(path))) == 1
    with pytest.raises(FormatError, match=r"those of the dataset .*: remove it"):
        list(Dataset.from_tensor_slices(other).cache(path))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("cache") / "cache")
    list(passing(cached(Items([(np.arange(3), np.str_("ab"))] * 2), path)))
    with open(path, "rb") as file:
        return path, file.read()


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_any_damage_is_found(written, data):
    path, whole = written
    damaged = bytearray(whole)
    kind = data.draw(st.sampled_from(["cut", "change", "longer"]))
    index = data.draw(st.integers(0, len(whole) - 1))
    if kind == "cut":
        del damaged[index:]
    elif kind == "change":
        damaged[index] ^= data.draw(st.integers(1, 255))
    else:
        damaged += b"Z"
    with open(path, "wb") as file:
        file.write(damaged)
    with pytest.raises(FormatError, match="cache"):
        read(path)


@given(
    st.lists(
        hnp.arrays(
            st.one_of(
                hnp.scalar_dtypes(),
                hnp.unicode_string_dtypes(),
                hnp.byte_string_dtypes(),
            ).map(lambda dtype: dtype.newbyteorder("=")),
            hnp.array_shapes(min_dims=0, min_side=0, max_dims=3),
        ),
        max_size=4,
    )
)
@settings(deadline=None)
def test_arrays_come_back_as_they_were(tmp_path_factory, arrays):
    path = str(tmp_path_factory.mktemp("cache") / "cache")
    elements = [array if array.ndim else array[()] for array in arrays]
    for _ in passing(cached(Items(elements), path)):
        pass
    found = list(passing(cached(Items([]), path)))
    assert len(found) == len(elements)
    assert all(map(same, found, elements))


@pytest.mark.parametrize(("step", "count"), [("take", 100), ("skip", 0)])
def test_inner_passes_cache_for_themselves(step, count, where):
    """A dataset that a function makes each time has a cache of its own."""
    source = numbers(3)
    made = Dataset.range(2).flat_map(lambda _: cached(source))
    assert listed(getattr(made, step)(count)) == [0, 1, 2] * 2
    assert source.begun == 2
    kept = cached(source, where)
    assert listed(Dataset.range(2).flat_map(lambda _: kept)) == [0, 1, 2] * 2
    assert source.begun == 3


def cache_of(form, *elements):
    """Write a file with a form of whatever kind, and right checksums."""
    data = form.encode()
    head = struct.pack("<I", len(data)) + data + struct.pack("<I", zlib.crc32(data))
    records = [b"E" + each + struct.pack("<I", zlib.crc32(each)) for each in elements]
    end = b"Z" + struct.pack("<Q", len(elements))
    return b"".join([b"memcfg.cache/1\nF", head, *records, end])


def read(path):
    """Read a file of whatever elements, those with names as pairs."""
    source = Items([])
    source.element_spec = (0, 0)
    source.is_probed = True  # so that elements are compared with nothing
    return list(passing(cached(source, path)))


@pytest.mark.parametrize(
    "form",
    [
        "[" * 10**5 + "]" * 10**5,
        '["tuple", ' * 10**5,
        "[" + '["tuple", ' * 900 + "null" + "]" * 900 + ", []]",
        '[null, [["<f8", 1e999]]]',
        '[null, [["<f8", -1]]]',
        '[null, [["<f8", true]]]',
        '[null, [["<f8", 1000000000000]]]',
        '[null, [["<f8,<f8", 1]]]',
        '[null, [["(9999,9999,9999)<f8", 0]]]',
        '[null, [["|O", 0]]]',
        '[null, [["<U999999999", 0]]]',
        "[null, [[3, 0]]]",
        '[["named", "Point", ["x"], null], [["<f8", 0]]]',
        '[["dict", [[1]], null], [["<f8", 0]]]',
        "3",
        "{}",
        "[NaN, NaN]",
    ],
)
def test_a_form_that_is_none_is_refused_whatever_its_checksum_says(form, tmp_path):
    path = tmp_path / "cache"
    path.write_bytes(cache_of(form, bytes(12)))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="not a cache of this dataset"):
            read(path)
        assert tracemalloc.get_traced_memory()[1] < 2**25
    finally:
        tracemalloc.stop()


def test_elements_of_no_bytes_take_no_memory_that_the_file_has_not(tmp_path):
    path = tmp_path / "cache"
    element = struct.pack("<Iq", 0, 2**40)
    path.write_bytes(cache_of('[null, [["|S0", 1]]]', element))
    with pytest.raises(FormatError, match="larger than the file"):
        read(path)
