"""Files of URLs: hashes, caches, and archives that may not leave their folder."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import memcfg as mc

get_file = mc.nn.utils.get_file


def bytes_of(**given):
    return Path(get_file(**given)).read_bytes()


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "from" / "data.bin"
    path.parent.mkdir()
    path.write_bytes(b"some numbers" * 1000)
    return path


@pytest.fixture
def given(tmp_path, source):
    return {"origin": source.as_uri(), "cache_dir": tmp_path / "cache"}


def test_a_file_is_fetched_once(given, source, tmp_path, capsys):
    path = get_file(**given)
    assert path == str(tmp_path / "cache" / "datasets" / "data.bin")
    assert Path(path).read_bytes() == source.read_bytes()
    source.write_bytes(b"others")
    assert bytes_of(**given) != b"others"
    assert capsys.readouterr().out.count("Downloading") == 1
    assert bytes_of(**given, force_download=True) == b"others"
    named = get_file("own.bin", **given, cache_subdir="mine")
    assert named == str(tmp_path / "cache" / "mine" / "own.bin")


def test_hashes(given, source, tmp_path):
    data = source.read_bytes()
    right = hashlib.sha256(data).hexdigest()
    path = get_file(**given, file_hash=right)
    Path(path).write_bytes(b"damaged")
    assert bytes_of(**given, file_hash=right.upper()) == data
    md5 = hashlib.md5(data).hexdigest()
    get_file("a", **given, md5_hash=md5)
    get_file("b", **given, file_hash=md5, hash_algorithm="md5")
    for wrong in ("0" * 64, "0" * 32):
        with pytest.raises(ValueError, match=rf"has the \w+ hash \w+, not {wrong}"):
            get_file("c", **given, file_hash=wrong)
    names = sorted(each.name for each in (tmp_path / "cache" / "datasets").iterdir())
    assert names == ["a", "b", "data.bin"]  # nothing is left of what is wrong


def test_arguments_that_are_refused(given, tmp_path):
    for wrong, told in (
        ({"origin": None}, "pass origin"),
        ({"origin": "ftp://there/a"}, "http, https, file, got 'ftp"),
        ({"origin": "/etc/passwd"}, "must be a URL"),
        ({"fname": "../a"}, "without a folder"),
        ({"fname": ".."}, "without a folder"),
        ({"hash_algorithm": "crc"}, "unknown hash_algorithm"),
        ({"archive_format": "rar"}, "unknown archive_format"),
        ({"extract": True}, "no tar or zip file"),
    ):
        with pytest.raises(ValueError, match=told):
            get_file(**given | wrong)
    with pytest.raises(OSError, match="missing"):
        get_file(origin=(tmp_path / "missing").as_uri(), cache_dir=tmp_path)


def tar_of(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
            else:
                info.type, info.linkname = content
                archive.addfile(info)
    return path


def zip_of(path, members):
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members:
            archive.writestr(name, content)
    return path


GOOD = [("top/a.txt", b"a"), ("top/in/b.txt", b"b")]


@pytest.mark.parametrize(("make", "suffix"), [(tar_of, "tar.gz"), (zip_of, "zip")])
def test_archives(tmp_path, make, suffix):
    archive = make(tmp_path / f"set.{suffix}", GOOD)
    where = {"origin": archive.as_uri(), "cache_dir": tmp_path / "cache"}
    folder = tmp_path / "cache" / "datasets"
    made = get_file(f"set.{suffix}", **where, extract=True)
    assert made == str(folder / "set_extracted")
    assert (folder / "set_extracted" / "top" / "in" / "b.txt").read_bytes() == b"b"
    assert (folder / f"set.{suffix}").exists()
    with pytest.raises(ValueError, match=r"is a file, not the folder .* pass fname"):
        get_file(**where, extract=True)
    plain = get_file(**where, extract=True, cache_subdir="plain")
    assert plain == str(folder.parent / "plain" / f"set.{suffix}")  # as in Keras
    assert get_file(**where, extract=True, cache_subdir="plain") == plain
    make(archive, [*GOOD, ("top/c.txt", b"c")])
    again = get_file(f"set.{suffix}", **where, extract=True, force_download=True)
    assert (folder / "set_extracted" / "top" / "c.txt").exists()
    assert again == str(folder / "set_extracted")
    other = {"tar.gz": "zip", "zip": "tar"}[suffix]
    with pytest.raises(ValueError, match=f"is no {other} file"):
        get_file("other", **where, extract=True, archive_format=other)


EVIL = [
    [("../evil", b"x")],
    [("top/../../evil", b"x")],
    [("/tmp/memcfg_evil", b"x")],
    [("C:/evil", b"x")],
    [("..\\evil", b"x")],
]
LINKS = [
    [("top", (tarfile.SYMTYPE, "..")), ("top/evil", b"x")],
    [("top", (tarfile.SYMTYPE, "/"))],
    [("top/a", b"a"), ("evil", (tarfile.LNKTYPE, "../../from"))],
    [("a", (tarfile.SYMTYPE, ".")), ("b", (tarfile.SYMTYPE, "a/..")), ("b/evil", b"x")],
    [("pipe", (tarfile.FIFOTYPE, ""))],
]


@pytest.mark.parametrize("members", [*EVIL, *LINKS])
def test_archives_do_not_leave_their_folder(tmp_path, members):
    archives = [tar_of(tmp_path / "set.tar", members)]
    if members in EVIL:
        archives.append(zip_of(tmp_path / "set.zip", members))
    for archive in archives:
        cache = tmp_path / "cache" / archive.suffix[1:]
        where = {"origin": archive.as_uri(), "cache_dir": cache}
        with pytest.raises(ValueError, match=r"outside|refused|no file|link"):
            get_file(**where, extract=True)
        left = {each.relative_to(cache).as_posix() for each in cache.rglob("*")}
        assert left == {"datasets", f"datasets/{archive.name}_archive"}
        assert not list(tmp_path.rglob("evil"))


def test_the_home_of_keras(tmp_path, given, monkeypatch):
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "home"))
    path = get_file(origin=given["origin"])
    assert path == str(tmp_path / "home" / "datasets" / "data.bin")


def test_threads_fetch_and_unpack_a_file_once(given, tmp_path, capsys):
    archive = tmp_path / "from" / "many.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        for number in range(40):
            packed.writestr(f"{number}.txt", "some numbers")
    given["origin"] = archive.as_uri()
    with ThreadPoolExecutor(6) as pool:
        made = [pool.submit(get_file, **given, extract=True) for _ in range(6)]
    assert {len([*Path(each.result()).iterdir()]) for each in made} == {40}
    assert capsys.readouterr().out.count("Downloading") == 1
