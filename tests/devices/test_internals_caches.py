"""Caches of compiled code and of times: the user's own, whole or not at all."""

from __future__ import annotations

import importlib.util
import os
import re
import resource
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from internals import forget_choices, forget_warnings

import memcfg as mc
from memcfg.devices import (
    _algorithm_choice,
    _algorithm_times,
    _copy_times,
    _file_cache,
)
from memcfg.devices._algorithm_choice import choose_fastest
from memcfg.devices._file_cache import find_file_cache
from memcfg.devices.cpu import _device
from memcfg.devices.cuda import _nvcc
from memcfg.devices.cuda._nvcc import IMAGES, compile_with_nvcc
from memcfg.errors import KernelError, MissingDependencyError

KEY, DATA, NOBODY = "a" * 64, b"compiled", 65534
KINDS = {"cuda": IMAGES, "algorithms": _algorithm_times._KEPT}
if importlib.util.find_spec("torch"):
    from memcfg.torch.limit import _allocator_library
    from memcfg.torch.trace import _costs

    KINDS |= {"torch": _allocator_library.COMPILED, "torch_costs": _costs._KEPT}
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture(autouse=True)
def _new_process(monkeypatch):
    forget_warnings(monkeypatch)
    forget_choices(monkeypatch)


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


# Images that nvcc has compiled. pycuda is a fake.

BYTES = 200_000  # of an image


class Pycuda(types.ModuleType):
    """A compiler whose images are their sources, again and again."""

    def __init__(self):
        super().__init__("pycuda.compiler")
        self.compiled = []
        self.version = "release 13.0"

    def get_nvcc_version(self, nvcc):
        assert nvcc.endswith("/bin/nvcc")
        return self.version

    def compile(self, text, *, nvcc, no_extern_c, arch, options, cache_dir):
        assert nvcc.endswith("/bin/nvcc")
        assert no_extern_c
        assert options == ["--fmad=false", "-w"]
        assert cache_dir is False  # None would be pycuda's own
        if text == "wrong":
            error = ValueError("nvcc compilation of /tmp/kernel.cu failed")
            error.stderr = "kernel.cu(1): error: a\n   context\nkernel.cu(2): error: b"
            raise error
        self.compiled.append((text, arch))
        return (f"{arch} {text} " * BYTES)[:BYTES].encode()


@pytest.fixture
def pycuda(monkeypatch, tmp_path):
    fake, package = Pycuda(), types.ModuleType("pycuda")
    package.compiler = fake
    monkeypatch.setitem(sys.modules, "pycuda", package)
    monkeypatch.setitem(sys.modules, "pycuda.compiler", fake)
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.parent.mkdir()
    nvcc.write_text("#!/bin/sh\nexit 1\n")  # pycuda calls it, and this one is a fake
    nvcc.chmod(0o700)
    monkeypatch.setenv("PATH", str(nvcc.parent), prepend=os.pathsep)
    return fake


@pytest.fixture
def folder(monkeypatch, tmp_path):
    found = tmp_path / "caches" / "images"
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", str(found))
    return found


def image(text, arch="sm_90"):
    return (f"{arch} {text} " * BYTES)[:BYTES].encode()


def in_a_child(act):
    """Run it in a fork of this process; return how that ended."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_source_is_compiled_once(pycuda, folder):
    for _ in range(3):
        assert compile_with_nvcc("a", 90) == image("a")
    assert pycuda.compiled == [("a", "sm_90")]
    (made,) = folder.iterdir()
    assert made.stat().st_size > BYTES
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_another_source_gpu_or_nvcc_is_another_image(pycuda, folder):
    compile_with_nvcc("a", 90)
    assert compile_with_nvcc("b", 90) == image("b")
    assert compile_with_nvcc("a", 80) == image("a", "sm_80")
    pycuda.version = "release 13.1"
    compile_with_nvcc("a", 90)
    assert len(pycuda.compiled) == len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("part", ["magic", "digest", "image", "short", "empty", "long"])
def test_a_damaged_file_is_compiled_again(pycuda, folder, part):
    compile_with_nvcc("a", 90)
    (path,) = folder.iterdir()
    data = bytearray(path.read_bytes())
    places = {"magic": 3, "digest": 20, "image": len(data) - 5}
    if part in places:
        data[places[part]] ^= 1
    sizes = {"short": -1, "empty": 0}
    path.write_bytes(data[: sizes.get(part, len(data))] + b"x" * (part == "long"))
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2


@pytest.mark.parametrize("moment", ["fsync", "replace"])
def test_a_killed_process_leaves_no_image(pycuda, folder, moment):
    def die(*arguments):
        os.kill(os.getpid(), signal.SIGKILL)

    def act():
        if moment == "fsync":
            os.fsync = die
        else:
            Path.replace = die
        compile_with_nvcc("a", 90)

    assert in_a_child(act) == -signal.SIGKILL
    (left,) = folder.iterdir()
    assert left.suffix != ".cuda"
    assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 1


def test_several_processes_at_once(pycuda, folder):
    def act():
        for number in range(20):
            if compile_with_nvcc(str(number), 90) != image(str(number)):
                os._exit(1)

    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            act()
            os._exit(0)
        children.append(child)
    for child in children:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    act()
    assert pycuda.compiled == []  # here
    assert len(list(folder.iterdir())) == 20


def test_a_full_disk_is_warned_of_once(pycuda, folder):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.warns(RuntimeWarning, match="are not kept on the disk") as told:
            assert [compile_with_nvcc(text, 90) for text in "aba"] == [
                *map(image, "aba")
            ]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(told) == 1
    assert "MEMCFG_CUDA_CACHE" in str(told[0].message)
    assert list(folder.iterdir()) == []
    assert len(pycuda.compiled) == 3


def test_a_folder_that_cannot_be_made_is_warned_of_once(pycuda, folder):
    folder.parent.write_text("a file")
    with pytest.warns(RuntimeWarning, match="are not kept on the disk") as told:
        assert [compile_with_nvcc(text, 90) for text in "ab"] == [*map(image, "ab")]
    assert len(told) == 1


def test_the_oldest_make_way_and_nothing_else(pycuda, folder, monkeypatch):
    limit = 3 * BYTES + BYTES // 2
    monkeypatch.setattr(_nvcc, "IMAGES", replace(IMAGES, limit=limit))
    for each in (folder.parent, folder):
        each.mkdir(mode=0o700)
    other = folder / "thesis.tex"
    other.write_bytes(bytes(2 * BYTES))
    left = folder / f".memcfg-{'0' * 16}"  # by a process that was killed
    left.write_bytes(bytes(BYTES))
    os.utime(other, (0, 0))
    os.utime(left, (1, 1))
    for age, text in enumerate("abc"):
        compile_with_nvcc(text, 90)
        for path in folder.glob("*.cuda"):
            if path.stat().st_mtime > 1e6:
                os.utime(path, (10 + age, 10 + age))
    assert not left.exists()
    compile_with_nvcc("a", 90)  # it is the newest now
    compile_with_nvcc("d", 90)
    assert other.exists()
    pycuda.compiled.clear()
    for text in "acd":
        compile_with_nvcc(text, 90)
    assert pycuda.compiled == []
    compile_with_nvcc("b", 90)
    assert pycuda.compiled == [("b", "sm_90")]


def test_none_turns_it_off(pycuda, monkeypatch):
    monkeypatch.setenv("MEMCFG_CUDA_CACHE", "none")
    for _ in range(2):
        assert compile_with_nvcc("a", 90) == image("a")
    assert len(pycuda.compiled) == 2


def test_the_folder_is_the_users(monkeypatch):
    monkeypatch.delenv("MEMCFG_CUDA_CACHE", raising=False)
    monkeypatch.setenv("HOME", "/somebody")
    for value, folder in [
        ("/caches", "/caches/memcfg/cuda"),
        ("caches", "/somebody/.cache/memcfg/cuda"),  # as if it were not set
        ("", "/somebody/.cache/memcfg/cuda"),
    ]:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        assert find_file_cache(IMAGES).folder == Path(folder)


def test_without_a_home_it_is_warned_of_once(pycuda, monkeypatch, tmp_path):
    def nobody(number):
        raise KeyError(number)

    for name in ("MEMCFG_CUDA_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    with pytest.warns(RuntimeWarning, match="no home directory.*MEMCFG_CUDA_CACHE"):
        assert compile_with_nvcc("kernel", 90) == image("kernel")
    assert compile_with_nvcc("kernel", 90) == image("kernel")
    assert len(pycuda.compiled) == 2
    assert sorted(tmp_path.iterdir()) == before


def test_what_nvcc_refuses_is_reported_in_a_line(pycuda, folder):
    told = re.escape(
        "nvcc cannot compile a kernel: kernel.cu(1): error: a; kernel.cu(2): error: b"
    )
    with pytest.raises(KernelError, match=f"^{told}$"):
        compile_with_nvcc("wrong", 90)
    assert not folder.exists()


def test_what_is_missing_is_reported_in_a_sentence(monkeypatch, pycuda, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(_nvcc, "_TOOLKIT", str(tmp_path / "cuda"))
    with pytest.raises(MissingDependencyError, match=r"by nvcc, .* nor in .*/cuda: it"):
        compile_with_nvcc("", 90)
    monkeypatch.setitem(sys.modules, "pycuda", None)
    with pytest.raises(MissingDependencyError, match=r"pip install pycuda"):
        compile_with_nvcc("", 90)


def test_nvcc_is_found_in_the_toolkit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr(_nvcc, "_TOOLKIT", str(tmp_path / "usual"))
    assert _nvcc.find_nvcc() is None
    for name in ("usual", "path", "home"):  # each before the one above
        nvcc = tmp_path / name / "bin" / "nvcc"
        nvcc.parent.mkdir(parents=True)
        nvcc.touch(0o700)
        if name != "usual":
            monkeypatch.setenv(f"CUDA_{name.upper()}", str(tmp_path / name))
        assert _nvcc.find_nvcc() == str(nvcc)
    monkeypatch.setenv("PATH", str(tmp_path / "usual" / "bin"))
    assert _nvcc.find_nvcc() == str(tmp_path / "usual" / "bin" / "nvcc")


def test_looking_for_it_writes_nothing(folder):
    text = "from memcfg.devices._file_cache import find_file_cache as find\n"
    text += "from memcfg.devices.cuda._nvcc import IMAGES\n"
    text += "assert find(IMAGES).read('0' * 64) is None\n"
    subprocess.run([sys.executable, "-c", text], check=True)
    assert not folder.exists()


# The fastest of several algorithms, chosen once.


@given(
    times=st.lists(st.floats(1e-6, 10), min_size=1, max_size=5),
    unknown=st.booleans(),
)
def test_another_is_chosen_if_it_takes_5_percent_less(times, unknown):
    """The first, unless another takes 5 % less; brute force."""
    labels = [f"a{i}" for i in range(len(times))]
    measured = [0.0, *times[1:]] if unknown else times
    _algorithm_choice._chosen.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMCFG_ALGORITHM_CACHE", "none")
        found = choose_fastest(labels, ("here",), "op", lambda: measured)
    best = times.index(min(times))
    expected = best if not unknown and times[best] < 0.95 * times[0] else 0
    assert found == labels[expected]


def test_threads_choose_once(monkeypatch):
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", "none")
    calls, found = [], []

    def measure():
        calls.append(1)
        return [2.0, 1.0 / len(calls)]

    def choose():
        found.append(choose_fastest(["a", "b"], ("here",), "op", measure))

    threads = [threading.Thread(target=choose) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(calls), found) == (1, ["b"] * 4)


# -- seconds of copies ---------------------------------------------------------------


def lane_device(**options):
    """The device of such a configuration, for which no lane was measured."""
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(**options)
    mc.config.set_logical_device_configuration(cpu, [wanted])
    return mc.config.logical_device()


@pytest.fixture
def cache_folder(monkeypatch, tmp_path):
    """Nothing is known yet."""
    found = tmp_path / "seconds"
    monkeypatch.setenv("MEMCFG_ALGORITHM_CACHE", str(found))
    return found


MOUNTS = r"""22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:5 / /tmp rw - tmpfs tmpfs rw
24 23 8:1 / /tmp/a\040disk rw - xfs /dev/sda1 rw
odd
"""


@pytest.fixture
def clock(monkeypatch, cache_folder):
    """Have copies out take a nanosecond a byte, and copies in two; list the bytes."""
    sizes = []
    real = _copy_times._Copies._seconds

    def noted(self, pool, nbytes):
        sizes.append(nbytes)
        taken = iter([1e-9 * nbytes, 2e-9 * nbytes])

        def shortest(run):
            run()
            return next(taken)

        monkeypatch.setattr(_copy_times, "shortest_run", shortest)
        return real(self, pool, nbytes)

    monkeypatch.setattr(_copy_times._Copies, "_seconds", noted)
    return sizes


def test_the_slower_direction_counts(clock):
    device = lane_device(spill_to="host")
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock == [64 << 20]
    assert device.pool.stats().current_bytes == 0


@pytest.mark.parametrize(
    ("options", "nbytes"),
    [
        ({"memory_limit": "20MiB"}, 16 << 20),
        ({"memory_limit": "1.5MiB"}, 1 << 20),
        ({"spill_limit": "8MiB"}, 8 << 20),
        ({"spill_limit": "9MiB", "memory_limit": "5MiB"}, 4 << 20),
    ],
)
def test_as_many_bytes_are_copied_as_there_is_room_for(clock, options, nbytes):
    device = lane_device(spill_to="host", **options)
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock[-1] == nbytes
    assert device.pool.stats().current_bytes == 0


def test_bytes_of_a_tier_that_others_have_reserved_are_not_taken(clock):
    class Other:
        """Another program's owner."""

    device, other = lane_device(spill_to="host", spill_limit="16MiB"), Other()
    device.tier_limit.reserve(other, {"host": 9 << 20})
    assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert clock == [16 << 20, 8 << 20, 4 << 20]
    device.tier_limit.reserve(other, {"host": 16 << 20})  # nothing else is left there


def test_without_room_nothing_is_known_and_nothing_kept(clock, cache_folder):
    device = lane_device(spill_to="host", memory_limit="512KiB")
    assert device.copy_rate("host") == 0.0
    assert not cache_folder.exists()
    mc.config.set_memory_limit("CPU:0", "4MiB")
    assert device.copy_rate("host") == pytest.approx(0.5e9)


def test_a_lane_is_measured_once_on_a_machine(clock, monkeypatch, tmp_path):
    for _ in range(2):  # the second device reads it from the disk
        device = lane_device(spill_to="host", lane_bandwidth="1GB")
        assert device.copy_rate("host") == pytest.approx(0.5e9)
    assert len(clock) == 1
    for name in ("one", "two"):  # folders of one file system
        (tmp_path / name).mkdir()
        device = lane_device(spill_to=str(tmp_path / name))
        assert device.copy_rate("file") == pytest.approx(0.5e9)
    assert len(clock) == 2
    monkeypatch.setattr(_device, "filesystem_of", lambda folder: "another disk")
    assert lane_device(spill_to=str(tmp_path)).copy_rate("file") > 0
    assert len(clock) == 3


def test_a_stated_bandwidth_does_not_slow_the_measurement(clock):
    """Copies of a lane of 1 KB a second would take a day."""
    device = lane_device(spill_to="host", lane_bandwidth="1KB")
    assert device.copy_rate("host") == pytest.approx(0.5e9)


@pytest.mark.parametrize(
    ("folder_of", "told"),
    [
        ("/home/me", "/ ext4 /dev/vda"),
        ("/tmp", "/tmp tmpfs tmpfs"),
        ("/tmpfiles", "/ ext4 /dev/vda"),
        ("/tmp/a disk/b", "/tmp/a disk xfs /dev/sda1"),
    ],
)
def test_a_file_system_is_that_of_the_innermost_mount(
    monkeypatch, tmp_path, folder_of, told
):
    path = tmp_path / "mounts"
    path.write_text(MOUNTS)
    monkeypatch.setattr(_copy_times, "_MOUNTS", path)
    assert _copy_times.filesystem_of(folder_of) == told
    monkeypatch.setattr(_copy_times, "_MOUNTS", tmp_path / "none")
    assert _copy_times.filesystem_of(folder_of) == ""


def test_lanes_that_are_measured_do_not_wait_for_ever(tmp_path, monkeypatch):
    """A disk that hangs is asked first when lanes are measured."""
    made = []

    class Stalled:
        def __init__(self, arena, spaces, lanes):
            made.append(lanes)

        def copy(self, *_):
            pass

        def run(self):
            raise KernelError("a copy has not got on for 5 s")

    monkeypatch.setattr("memcfg.devices.cpu._device.Program", Stalled)
    monkeypatch.setattr(
        "memcfg.devices.cpu._device.Lane", lambda rate, timeout: (rate, timeout)
    )
    mc.config.reset()
    (cpu,) = mc.config.list_physical_devices("CPU")
    wanted = mc.config.LogicalDeviceConfiguration(
        spill_to=str(tmp_path), lane_timeout=5
    )
    mc.config.set_logical_device_configuration(cpu, [wanted])
    assert mc.config.logical_device().copy_rate("file") == 0.0
    assert made == [[(None, 5.0)] * 2]  # once, not for smaller sizes again
