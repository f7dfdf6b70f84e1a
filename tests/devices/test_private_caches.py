"""Caches of compiled code and of times are the user's own, as ssh asks of its files."""

from __future__ import annotations

import importlib.util
import os
import stat
import tempfile
import warnings
from pathlib import Path

import pytest

from memcfg.devices import _algorithm_times, _file_cache
from memcfg.devices._file_cache import find_file_cache
from memcfg.devices.cuda._nvcc import IMAGES

KEY, DATA, NOBODY = "a" * 64, b"compiled", 65534
KINDS = {"cuda": IMAGES, "algorithms": _algorithm_times._KEPT}
if importlib.util.find_spec("torch"):
    from memcfg.torch.limit import _allocator_library
    from memcfg.torch.trace import _costs

    KINDS |= {"torch": _allocator_library.COMPILED, "torch_costs": _costs._KEPT}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture(autouse=True)
def untold(monkeypatch):
    monkeypatch.setattr(_file_cache, "_told", set())


@pytest.fixture(params=KINDS)
def cache(request, monkeypatch, tmp_path):
    """A cache that has been written, and is read."""
    kind = KINDS[request.param]
    monkeypatch.setenv(kind.variable, str(tmp_path / "mine" / "cache"))
    found = find_file_cache(kind)
    found.write(KEY, DATA)
    assert found.read(KEY) == DATA
    return found


def refused(cache, match):
    """Neither read nor written, and told of once."""
    before = [(path.name, path.read_bytes()) for path in cache.folder.iterdir()]
    with pytest.warns(RuntimeWarning, match=match):
        assert cache.read(KEY) is None
    assert not cache.has(KEY)  # a second warning would be an error
    cache.write("b" * 64, DATA)
    after = [(path.name, path.read_bytes()) for path in cache.folder.iterdir()]
    assert after == before


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o277, 0o777])
def test_folders_are_0700_and_files_0600_whatever_the_umask(
    monkeypatch, tmp_path, mask
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("MEMCFG_CUDA_CACHE", raising=False)
    before = os.umask(mask)
    try:
        find_file_cache(IMAGES).write(KEY, DATA)
    finally:
        os.umask(before)
    folders = [tmp_path / ".cache"]
    folders += [folders[0] / "memcfg", folders[0] / "memcfg" / "cuda"]
    assert [mode(folder) for folder in folders] == [0o700] * 3
    (file,) = folders[2].iterdir()
    assert mode(file) == 0o600
    assert find_file_cache(IMAGES).read(KEY) == DATA


@pytest.mark.parametrize("bits", [0o020, 0o002, 0o1002])
def test_a_folder_that_others_can_write_is_refused(cache, bits):
    cache.folder.chmod(0o700 | bits)
    refused(
        cache, rf"\({cache.folder}: it is writable by others.*{cache.kind.variable}"
    )
    cache.folder.chmod(0o755)  # others may read
    assert cache.read(KEY) == DATA


@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_folder_that_others_could_replace_is_refused(cache, bits):
    around = cache.folder.parent
    around.chmod(0o700 | bits)
    refused(cache, rf"\({around}: it is writable by others")
    around.chmod(0o1777)  # as /tmp: they cannot rename what is not theirs
    assert cache.read(KEY) == DATA


@as_root
@pytest.mark.parametrize("whose", ["folder", "around"])
def test_a_folder_of_another_user_is_refused(cache, whose):
    folder = {"folder": cache.folder, "around": cache.folder.parent}[whose]
    os.chown(folder, NOBODY, -1)
    refused(cache, rf"\({folder}: it is owned by user {NOBODY}\)")


def test_what_a_link_leads_to_counts(monkeypatch, tmp_path):
    there, link = tmp_path / "there", tmp_path / "link"
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", str(link))
    there.mkdir(mode=0o700)
    link.symlink_to(there)
    cache = find_file_cache(IMAGES)
    cache.write(KEY, DATA)
    assert cache.read(KEY) == DATA
    there.chmod(0o702)
    refused(cache, rf"\({there}: it is writable by others")


@pytest.mark.parametrize("bits", [0o020, 0o002])
def test_a_file_that_others_can_write_is_not_read_and_made_again(cache, bits):
    (path,) = cache.folder.iterdir()
    path.chmod(0o600 | bits)
    with pytest.warns(RuntimeWarning, match="it is writable by others"):
        assert cache.read(KEY) is None
    assert not cache.has(KEY)
    cache.write(KEY, DATA)
    assert mode(path) == 0o600
    assert cache.read(KEY) == DATA


@as_root
def test_a_file_of_another_user_is_not_read(cache):
    (path,) = cache.folder.iterdir()
    os.chown(path, NOBODY, -1)
    with pytest.warns(RuntimeWarning, match=f"it is owned by user {NOBODY}"):
        assert cache.read(KEY) is None
    cache.write(KEY, DATA)
    assert path.stat().st_uid == os.geteuid()
    assert cache.read(KEY) == DATA


@as_root
def test_another_user_reads_what_root_has_written():
    """An administrator may fill a folder for all; none of them can change it."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        cache = _file_cache.FileCache(Path(name, "cache"), IMAGES)
        cache.write(KEY, DATA)
        (path,) = cache.folder.iterdir()
        cache.folder.chmod(0o755)
        path.chmod(0o644)
        child = os.fork()
        if child == 0:
            try:
                os.seteuid(NOBODY)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    assert cache.read(KEY) == DATA
                    os.seteuid(0)
                    os.chown(path, NOBODY - 1, -1)
                    os.seteuid(NOBODY)
                    assert cache.read(KEY) is None
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_folders_above_the_home_are_not_looked_at(monkeypatch, tmp_path):
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    tmp_path.chmod(0o777)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", str(home / "cache"))
    cache = find_file_cache(IMAGES)
    cache.write(KEY, DATA)
    assert cache.read(KEY) == DATA
    monkeypatch.setenv("HOME", "/nowhere")
    refused(cache, rf"\({tmp_path}: it is writable by others")
