"""Which algorithm of a CPU's convolution is the default: what the environment asks."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from internals import (
    forget_choices,
    forget_warnings,
    rewrite_times,
    set_kernel_seconds,
)
from kernels import onednn

import memcfg as mc
from memcfg.devices import CpuDevice, OperandSpec
from memcfg.devices.cpu import kernel_table
from memcfg.errors import KernelError

nn = mc.nn
VARIABLE, CACHE = "MEMCFG_CPU_ALGORITHMS", "MEMCFG_ALGORITHM_CACHE"


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    """Nothing is chosen yet in this process, or kept on the disk."""
    forget_choices(monkeypatch)
    forget_warnings(monkeypatch)
    found = tmp_path / "seconds"
    monkeypatch.setenv(CACHE, str(found))
    return found


@pytest.fixture
def ask(monkeypatch):
    onednn()
    monkeypatch.setenv("MEMCFG_KERNELS", "onednn")

    def switch(choice, limit=None):
        monkeypatch.setenv(VARIABLE, choice)
        return CpuDevice("/device:CPU:0", limit)

    return switch


def convolution(size=8, channels=16, units=32):
    attributes = {"strides": (1, 1), "padding": ((1, 1),) * 2, "dilation": (1, 1)}
    shapes = [(2, size, size, channels), (3, 3, channels, units)]
    inputs = [OperandSpec(shape, "float32") for shape in shapes]
    outputs = [OperandSpec((2, size, size, units), "float32")]
    return "conv2d", {**attributes, "groups": 1}, inputs, outputs


def names(device, op=None):
    return [row[0] for row in device.kernels.algorithms(*(op or convolution()))]


def seconds(monkeypatch, table):
    """Have the algorithms take these seconds; count how often they are measured."""
    calls = []

    def measured(kernel):
        calls.append(kernel.algorithm)
        return table[kernel.algorithm]

    set_kernel_seconds(monkeypatch, measured)
    return calls


def test_the_fastest_is_the_default_where_that_is_asked_for(ask, monkeypatch, folder):
    calls = seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    device = ask("default")
    listed = names(device)
    assert listed[0] == "onednn"
    assert device.kernels.make(*convolution()).algorithm == "onednn"
    assert not calls
    assert not folder.exists()
    device = ask("fastest")
    assert names(device)[0] == "direct"
    assert sorted(names(device)) == sorted(listed)
    assert device.kernels.make(*convolution()).algorithm == "direct"
    assert device.kernels.make(*convolution(), "brgemm").algorithm == "brgemm"
    library = {"onednn", "brgemm", "direct"}
    assert sorted(calls) == sorted(library & {*listed})  # once, and none with columns
    vector = OperandSpec((16,), "float32")
    add = ("add", {}, [vector] * 2, [vector])
    assert device.kernels.make(*add).algorithm == "native"  # nothing to choose
    assert len(list(folder.iterdir())) == 1


def test_packing_is_of_the_algorithm_that_is_chosen(ask, monkeypatch):
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 2.0, "direct": 3.0})
    found = ask("fastest").kernels.packing(*convolution())
    assert found is not None
    assert found.kernel.algorithm == "brgemm"


def test_the_least_scratch_is_taken_where_that_is_asked_for(ask):
    device = ask("least_scratch")
    rows = device.kernels.algorithms(*convolution())[:-1]
    native = [row for row in rows if row[0] != "reference"]
    assert native[0][1] == min(scratch for _, scratch, _ in native)
    made = device.kernels.make(*convolution())
    assert (made.algorithm, made.scratch_bytes) == native[0][:2]


def test_another_choice_is_refused(ask):
    with pytest.raises(KernelError, match=r"is 'quick'; it takes one of default, fast"):
        _ = ask("quick").kernels


def test_a_choice_is_kept_on_the_disk(ask, monkeypatch):
    calls = seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    assert names(ask("fastest"))[0] == "direct"
    count = len(calls)
    forget_choices(monkeypatch)
    seconds(monkeypatch, {})  # would be KeyError
    assert names(ask("fastest"))[0] == "direct"
    forget_choices(monkeypatch)
    monkeypatch.setenv(CACHE, "none")
    calls = seconds(monkeypatch, {"onednn": 1.0, "brgemm": 3.0, "direct": 2.0})
    assert names(ask("fastest"))[0] == "onednn"
    assert len(calls) == count


def test_a_choice_holds_for_the_process_and_for_all_devices(ask, monkeypatch):
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    first = ask("fastest")
    assert names(first)[0] == "direct"
    seconds(monkeypatch, {"onednn": 1.0, "brgemm": 3.0, "direct": 2.0})
    monkeypatch.setenv(CACHE, "none")
    assert names(ask("fastest"))[0] == "direct"


def test_without_the_memory_to_measure_it_is_the_librarys_choice(ask, monkeypatch):
    small = ask("fastest", 4096)
    assert names(small)[0] == "onednn"
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    assert names(ask("fastest"))[0] == "onednn"  # as all plans of this process have it
    forget_choices(monkeypatch)
    assert names(ask("fastest"))[0] == "direct"  # nothing was kept on the disk


def test_a_table_that_only_plans_chooses_nothing(ask, monkeypatch):
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    device = ask("fastest")
    rows = kernel_table("onednn").algorithms(*convolution())
    assert rows[0][0] == "onednn"
    assert names(device)[0] == "direct"


@pytest.mark.parametrize("damage", ["short", "flipped", "other", "negative"])
def test_a_damaged_file_is_measured_again(ask, monkeypatch, folder, damage):
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    assert names(ask("fastest"))[0] == "direct"
    (path,) = folder.iterdir()
    data = path.read_bytes()
    if damage == "short":
        path.write_bytes(data[:-1])
    elif damage == "flipped":
        path.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        times = {"other": [], "negative": dict.fromkeys(names(ask("fastest")), -1)}
        rewrite_times(path, json.dumps(times[damage]))
    forget_choices(monkeypatch)
    with pytest.warns(RuntimeWarning, match="seconds in .* is damaged"):
        assert names(ask("fastest"))[0] == "direct"
    forget_choices(monkeypatch)
    seconds(monkeypatch, {})  # it is whole again
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(ask("fastest"))[0] == "direct"


def test_a_folder_that_cannot_be_written_to_is_told_of_once(ask, monkeypatch, tmp_path):
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv(CACHE, str(file / "below"))
    seconds(monkeypatch, {"onednn": 3.0, "brgemm": 3.0, "direct": 2.0})
    device = ask("fastest")
    with pytest.warns(
        RuntimeWarning, match=f"seconds of .* not kept .*{CACHE}"
    ) as told:
        assert names(device)[0] == "direct"
    assert told[0].filename == __file__  # the line that asked, not one of memcfg's
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert names(device, convolution(units=16))[0] == "direct"


def test_policies_have_the_same_bits(ask, folder):
    """Measured in earnest: whatever is chosen, it is the same for all."""
    ask("fastest")
    x = np.random.default_rng(0).standard_normal((4, 8, 8, 3)).astype(np.float32)
    y = np.arange(4)
    weights = []
    for policy in ("keep_all", "share", "sqrt_checkpoint"):
        mc.config.reset()
        nn.set_random_seed(1)
        layers = [nn.Conv2D(8, 3, padding="same", activation="relu") for _ in range(4)]
        model = nn.Sequential(
            [nn.Input(x.shape[1:]), *layers, nn.Flatten(), nn.Dense(4)]
        )
        loss = nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss, memory=policy)
        for _ in range(3):
            model.train_on_batch(x, y)
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == report.predicted_peak_bytes
        weights.append(model.get_weights())
        model.close()
    for other in weights[1:]:
        for a, b in zip(weights[0], other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert folder.exists()
