"""Files as memory: lengths, contents, owners, and what is no file."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from memcfg import config, memory
from memcfg.errors import InvalidFreeError, ResourceExhaustedError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX files")

LENGTHS = [1, 63, 64, 65, 100, 4095, 4096, 4097, 1_000_000]


def disk_bytes(path: Path) -> int:
    return path.stat().st_blocks * 512


def fill(file: memory.MappedFile, value: int) -> None:
    """Write the whole file through one block."""
    with file.allocate(file.nbytes) as block:
        np.frombuffer(block, np.uint8).fill(value)
        gc.collect()


@pytest.fixture
def path(tmp_path):
    yield tmp_path / "file"
    left = {each.name for each in tmp_path.iterdir()}
    assert not {name for name in left if name.startswith(".memcfg")}


@pytest.mark.parametrize("nbytes", LENGTHS)
def test_a_file_is_exactly_as_long_as_asked_for(path, nbytes):
    with memory.mmap_file(path, nbytes) as file:
        assert file.nbytes == path.stat().st_size == nbytes <= disk_bytes(path)
        assert file.stats().largest_free_bytes == nbytes
        assert path.read_bytes() == bytes(nbytes)
        fill(file, 7)
        assert path.read_bytes() == b"\7" * nbytes
    assert path.read_bytes() == b"\7" * nbytes


def test_a_length_may_have_a_unit(path):
    with memory.mmap_file(path, "1.5MiB") as file:
        assert file.nbytes == 3 * 2**19
        assert file.path == str(path) == file.name
        assert "1.50 MiB" in repr(file)


@pytest.mark.parametrize("nbytes", LENGTHS)
def test_its_blocks_never_reach_behind_its_end(path, nbytes):
    with memory.mmap_file(path, nbytes) as file:
        lines = [file.allocate(64) for _ in range(nbytes // 64)]
        with pytest.raises(ResourceExhaustedError, match="no more room") as caught:
            file.allocate(64)
        assert "more bytes" in caught.value.hint
        assert caught.value.limit_bytes == file.stats().limit_bytes
        for line in lines:
            memoryview(line)[:] = b"x" * 64
        used = nbytes // 64 * 64
        assert path.read_bytes() == b"x" * used + bytes(nbytes - used)
        for line in lines:
            line.free()
        assert file.stats().largest_free_bytes == nbytes
    assert path.stat().st_size == nbytes


def test_a_scattered_file_says_so(path):
    with memory.mmap_file(path, 640) as file:
        blocks = [file.allocate(64) for _ in range(10)]
        for block in blocks[::2]:
            block.free()
        with pytest.raises(ResourceExhaustedError, match="not in one piece"):
            file.allocate(128)
        for block in blocks[1::2]:
            block.free()


def test_a_file_that_is_there_keeps_its_bytes(path):
    path.write_bytes(b"old" * 100)
    before = path.stat().st_ino
    with memory.mmap_file(path) as file:
        assert file.nbytes == 300
    with memory.mmap_file(path, 300):
        assert path.read_bytes() == b"old" * 100
    with memory.mmap_file(path, 5000) as file:
        assert path.read_bytes() == b"old" * 100 + bytes(4700)
        with file.allocate(5000) as block:
            assert bytes(block) == path.read_bytes()
    with pytest.raises(ValueError, match=r"5000 bytes, more than the 4999"):
        memory.mmap_file(path, 4999)
    assert (path.stat().st_size, path.stat().st_ino) == (5000, before)


@pytest.mark.parametrize("nbytes", [None, 1, 10_000])
def test_overwriting_makes_a_new_file_of_zeros(path, nbytes):
    path.write_bytes(b"old" * 100)
    path.chmod(0o640)
    with path.open("rb") as old:
        with memory.mmap_file(path, nbytes, overwrite=True) as file:
            assert file.nbytes == (nbytes or 300)
            assert path.read_bytes() == bytes(file.nbytes)
            fill(file, 1)
        assert old.read() == b"old" * 100
    assert path.stat().st_mode & 0o7777 == 0o640
    assert [each.name for each in path.parent.iterdir()] == ["file"]


def test_a_new_file_has_the_permissions_of_any_new_file(path):
    mask = os.umask(0o027)
    try:
        memory.mmap_file(path, 10).close()
    finally:
        os.umask(mask)
    assert path.stat().st_mode & 0o7777 == 0o640


@pytest.mark.parametrize("overwrite", [False, True])
def test_links_are_followed(path, overwrite):
    path.write_bytes(b"old")
    link = path.with_name("link")
    link.symlink_to("file")
    with memory.mmap_file(link, 10, overwrite=overwrite) as file:
        assert file.path == str(link)
        fill(file, 5)
    assert link.is_symlink()
    assert path.read_bytes() == b"\5" * 10
    dangling = path.with_name("dangling")
    dangling.symlink_to("fresh")
    memory.mmap_file(dangling, 10, overwrite=overwrite, delete=True).close()
    assert dangling.is_symlink()
    assert not path.with_name("fresh").exists()


def test_gaps_get_their_disk_at_once(path):
    with path.open("wb") as stream:
        stream.truncate(2**22)
    assert disk_bytes(path) < 2**20
    with memory.mmap_file(path):
        assert disk_bytes(path) >= 2**22
    assert path.read_bytes() == bytes(2**22)


def test_it_takes_any_kind_of_path_and_remembers_it(path, monkeypatch):
    monkeypatch.chdir(path.parent)
    for each in ("file", b"file", Path("file"), str(path), os.fsencode(path)):
        with memory.mmap_file(each, 10, delete=True) as file:
            assert file.path == str(path)
            monkeypatch.chdir("/")  # and still removes the right one
        monkeypatch.chdir(path.parent)
        assert not path.exists()
    odd = os.fsdecode(b"\xff\xfe n\xc3\xa4me\n")
    with memory.mmap_file(odd, 10) as file:
        assert file.path == str(path.with_name(odd))
    assert path.with_name(odd).exists()


def test_long_names(path):
    for length in (101, 255):
        memory.mmap_file(path.with_name("n" * length), 10).close()
    with pytest.raises(OSError, match="too long") as caught:
        memory.mmap_file(path.with_name("n" * 256), 10)
    assert caught.value.errno == errno.ENAMETOOLONG


def no_files(folder: Path) -> dict[str, tuple[object, type[OSError], int]]:
    (folder / "full").mkdir()
    (folder / "full" / "text").write_text("x")
    os.mkfifo(folder / "pipe")
    (folder / "loop").symlink_to("loop")
    return {
        "folder": (folder / "full", IsADirectoryError, errno.EISDIR),
        "this folder": (".", IsADirectoryError, errno.EISDIR),
        "slash": (str(folder / "full" / "text") + "/", IsADirectoryError, errno.EISDIR),
        "missing folder": (folder / "no" / "x", FileNotFoundError, errno.ENOENT),
        "under a file": (folder / "full/text/x", NotADirectoryError, errno.ENOTDIR),
        "nothing": ("", FileNotFoundError, errno.ENOENT),
        "nul": ("a\0b", OSError, errno.EINVAL),
        "pipe": (folder / "pipe", OSError, errno.EINVAL),
        "device": ("/dev/null", OSError, errno.EINVAL),
        "loop": (folder / "loop", OSError, errno.EINVAL),
    }


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("nbytes", [None, 10])
def test_what_is_no_file(tmp_path, nbytes, overwrite):
    for name, (bad, kind, number) in no_files(tmp_path).items():
        with pytest.raises(kind) as caught:
            memory.mmap_file(bad, nbytes, overwrite=overwrite, delete=True)
        assert caught.value.errno == number, name
        assert caught.value.filename == os.fspath(bad), name
        if name == "missing folder":
            assert f"the folder {tmp_path / 'no'}" in str(caught.value)
    assert {each.name for each in tmp_path.iterdir()} == {"full", "pipe", "loop"}
    assert (tmp_path / "full" / "text").read_text() == "x"


def test_a_length_must_come_from_somewhere(path):
    with pytest.raises(ValueError, match="no file"):
        memory.mmap_file(path)
    path.touch()
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="0 bytes: say how many"):
            memory.mmap_file(path, overwrite=overwrite)
    assert path.stat().st_size == 0
    memory.mmap_file(path, 10).close()
    assert path.stat().st_size == 10


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"nbytes": 0}, ValueError),
        ({"nbytes": -1}, ValueError),
        ({"nbytes": "0MiB"}, ValueError),
        ({"nbytes": "many"}, ValueError),
        ({"nbytes": 1.5}, TypeError),
        ({"nbytes": True}, TypeError),
        ({"nbytes": 10, "overwrite": 1}, TypeError),
        ({"nbytes": 10, "delete": None}, TypeError),
        ({"nbytes": 10, "path": 3}, TypeError),
        ({"nbytes": 10, "path": None}, TypeError),
        ({"nbytes": 2**63}, OSError),
        ({"nbytes": 2**70}, OSError),
        ({"nbytes": 2**60}, OSError),
    ],
)
def test_arguments_that_are_none(path, arguments, error):
    with pytest.raises(error):
        memory.mmap_file(**{"path": path, **arguments})
    assert not path.exists()
    path.write_bytes(b"old")
    with pytest.raises(error):
        memory.mmap_file(**{"path": path, **arguments})
    assert path.read_bytes() == b"old"


def test_a_file_has_one_owner(path):
    with memory.mmap_file(path, 10) as file:
        fill(file, 1)
        for options in ({}, {"overwrite": True}, {"delete": True}, {"nbytes": 20}):
            with pytest.raises(BlockingIOError, match="in this process: ") as caught:
                memory.mmap_file(path, **options)
            assert caught.value.filename == str(path)
        program = (
            f"from memcfg import memory\nmemory.mmap_file({str(path)!r}, 5, "
            "overwrite=True, delete=True)"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=False
        )
        assert "BlockingIOError" in done.stderr
        assert "another process" in done.stderr
    assert path.read_bytes() == b"\1" * 10
    memory.mmap_file(path, 20).close()


def test_it_cannot_be_closed_while_blocks_are_out(path):
    file = memory.mmap_file(path, 4096)
    block = file.allocate(100, tag="a")
    view = np.frombuffer(block, np.uint8)
    for _ in range(2):
        with pytest.raises(BufferError, match="128 bytes, are out"):
            file.close()
    assert not file.closed
    del block
    with pytest.raises(BufferError):
        file.close()
    del view
    gc.collect()
    file.close()
    file.close()
    assert file.closed


def test_an_exception_is_not_hidden_by_the_blocks_in_its_frames(path):
    file = None

    def fail():
        nonlocal file
        with memory.mmap_file(path, 4096) as file:
            block = file.allocate(100)
            raise KeyError(block.address)

    with pytest.raises(KeyError):
        fail()
    assert not file.closed
    gc.collect()
    file.close()


def test_a_closed_file_is_of_no_use(path):
    file = memory.mmap_file(path, 4096)
    address = file.allocate(10).detach()
    file.deallocate(address, 10)
    file.close()
    for use in (
        lambda: file.allocate(1),
        file.flush,
        file.evict,
        file.__enter__,
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    with pytest.raises(InvalidFreeError):
        file.deallocate(address, 10)
    stats = file.stats()
    assert (stats.reserved_bytes, stats.largest_free_bytes) == (0, 0)
    assert stats.allocation_count == 1
    assert (file.nbytes, file.path, file.owners()) == (4096, str(path), {})
    file.check()
    file.trim()
    repr(file)


def test_forgotten_files_close_themselves(path):
    def cycle():
        file = memory.mmap_file(path, 100)
        fill(file, 3)
        loop = [file]
        loop.append(loop)

    cycle()
    gc.collect()
    memory.mmap_file(path, 100).close()
    assert path.read_bytes() == b"\3" * 100
    block = memory.mmap_file(path, 100).allocate(10)  # keeps the file
    with pytest.raises(BlockingIOError):
        memory.mmap_file(path, 100)
    del block
    memory.mmap_file(path, 100).allocate(10).detach()  # does not
    memory.mmap_file(path, 100).close()


def test_a_file_is_removed_if_it_is_still_there(path):
    other = path.with_name("other")
    memory.mmap_file(path, 10, delete=True).close()
    assert not path.exists()
    memory.mmap_file(path, 10, delete=True)  # forgotten
    assert not path.exists()
    with memory.mmap_file(path, 10, delete=True):
        path.unlink()
    with memory.mmap_file(path, 10, delete=True):
        path.rename(other)
        path.write_bytes(b"replaced")
    assert path.read_bytes() == b"replaced"
    assert other.exists()
    path.unlink()
    with memory.mmap_file(path, 100, delete=True), pytest.raises(BlockingIOError):
        memory.mmap_file(path, 100, delete=True)
    assert not path.exists()


def test_a_file_that_was_there_is_not_deleted_unless_it_is_overwritten(path):
    for old in (b"old", b""):
        path.write_bytes(old)
        for nbytes in (None, 1, 3, 1000):
            with pytest.raises(FileExistsError, match="unless it is overwr") as caught:
                memory.mmap_file(path, nbytes, delete=True)
            assert caught.value.filename == str(path)
        with pytest.raises(FileExistsError):
            memory.mapped_array(path, 10, delete=True)
        assert path.read_bytes() == old
        memory.mmap_file(path, 10, overwrite=True, delete=True).close()
        assert not path.exists()


def test_what_was_written_survives_the_removal_behind_our_back(path):
    with memory.mmap_file(path, 10_000) as file, file.allocate(10_000) as block:
        path.unlink()
        memoryview(block)[:] = b"x" * 10_000
        file.flush()
        assert bytes(block) == b"x" * 10_000
    assert not path.exists()


def test_evicted_pages_come_back(path):
    nbytes = 2**24
    with memory.mmap_file(path, nbytes) as file:
        block = file.allocate(nbytes)
        data = np.frombuffer(block, np.uint8)
        data[:] = 9
        if sys.platform == "linux":
            before = resident_of_files()
            assert file.evict() == nbytes
            assert before - resident_of_files() > nbytes * 0.9
            assert file.evict() == 0
            assert data[: nbytes // 2].min() == 9
            assert file.evict(nbytes // 2) < nbytes // 4  # what was read ahead
            assert file.evict(0, 4096) == 4096
        assert (data.min(), data.max()) == (9, 9)
        for bad in ((-1,), (nbytes + 1,), (0, nbytes + 1), (0, -1), (nbytes, 1)):
            with pytest.raises(ValueError, match=r"such bytes|negative"):
                file.evict(*bad)
        with pytest.raises(TypeError):
            file.evict(1.5)
        assert file.evict(nbytes) == file.evict(0, 0) == 0
        del data, block


def resident_of_files() -> int:
    """Bytes of files that this process has resident, on disks and in memory."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    kinds = [line for line in lines if line.startswith(("RssFile", "RssShmem"))]
    return sum(int(line.split()[1]) for line in kinds) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux what is resident")
def test_a_limit_on_resident_memory_evicts_before_it_refuses(path):
    pool = memory.Pool()
    with memory.mmap_file(path, "96MiB") as file:
        fill(file, 1)
        file.evict()
        info = config.get_host_memory_info()
        before = config.set_host_memory_limit(rss=info["resident"] + 2**25)
        try:
            fill(file, 2)
            assert config.get_host_memory_info()["resident"] > info["resident"] + 2**26
            pool.allocate(2**20).free()
            with pytest.raises(ResourceExhaustedError):
                pool.allocate(2**26)
        finally:
            config.set_host_memory_limit(rss=before.rss)
        assert config.get_host_memory_info()["tracked"] == 0
        with path.open("rb") as stream:
            assert set(stream.read()) == {2}


def test_pools_and_arrays_stand_in_a_file(path):
    with memory.mmap_file(path, "32MiB") as file:
        pool = memory.Pool(file, limit="16MiB")
        assert (pool.name, pool.upstream) == (str(path), file)
        for resource in (file, pool):
            with memory.numpy_allocator(resource):
                first = np.zeros(500_000)
                second = np.ones(300_000)
                third = first[: second.size] + second
            assert memory.owner_of(third) is resource
            assert third.sum() == second.sum() == 300_000
            assert resource.stats().current_bytes > 1_000_000 * 8
            with memory.numpy_allocator(resource), pytest.raises(MemoryError):
                np.zeros(2**23)
            del first, second, third
        pool.trim()
        pool.check()
        del pool, resource
    assert path.stat().st_size == 2**25
