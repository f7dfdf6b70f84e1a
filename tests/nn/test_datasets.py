"""Data sets of Keras, from files of their forms that are made here."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import tarfile

import numpy as np
import pytest
from internals import set_data_source

import memcfg as mc

datasets = mc.nn.datasets


@pytest.fixture
def folder(tmp_path, monkeypatch):
    set_data_source(monkeypatch, tmp_path)
    mc.nn.utils.disable_interactive_logging()
    yield tmp_path
    mc.nn.utils.enable_interactive_logging()


def test_digits(folder):
    random = np.random.default_rng(0)
    made = {"x_train": random.integers(0, 256, (5, 28, 28), np.uint8)}
    made |= {
        "y_train": np.arange(5),
        "x_test": made["x_train"][:2],
        "y_test": np.ones(2),
    }
    np.savez(folder / "mnist.npz", **made)
    found = [each for part in datasets.mnist.load_data() for each in part]
    for each, name in zip(
        found, ("x_train", "y_train", "x_test", "y_test"), strict=True
    ):
        np.testing.assert_array_equal(each, made[name])
    np.savez(folder / "mnist.npz", x_train=np.array([{}], object))
    with pytest.raises(ValueError, match="allow_pickle"):
        datasets.mnist.load_data("other.npz")


def test_clothes(folder):
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), np.uint8)
    for part, count in (("train", 4), ("t10k", 2)):
        labels = struct.pack(">ii", 2049, count) + bytes(range(count))
        pixels = struct.pack(">iiii", 2051, count, 28, 28) + images[:count].tobytes()
        for name, data in (("labels-idx1", labels), ("images-idx3", pixels)):
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(data))
    (x, y), (x2, y2) = datasets.fashion_mnist.load_data()
    np.testing.assert_array_equal(x, images)
    np.testing.assert_array_equal(x2, images[:2])
    assert (y.tolist(), y2.tolist()) == ([0, 1, 2, 3], [0, 1])


def archive(path, files):
    with tarfile.open(path, "w:gz") as made:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            made.addfile(info, io.BytesIO(data))


def test_small_pictures(folder):
    random = np.random.default_rng(0)
    rows = {n: random.integers(0, 256, (2, 3072), np.uint8) for n in "123456"}

    def batch(number, **labels):
        entry = {b"data": rows[number]} | {k.encode(): v for k, v in labels.items()}
        return pickle.dumps(entry, protocol=2)

    files = {f"data_batch_{n}": batch(n, labels=[int(n), 0]) for n in "12345"}
    files["test_batch"] = batch("6", labels=[6, 9])
    archive(
        folder / "cifar-10-python.tar.gz",
        {f"cifar-10-batches-py/{name}": data for name, data in files.items()},
    )
    (x, y), (x2, y2) = datasets.cifar10.load_data()
    assert (x.shape, x.dtype) == ((10, 32, 32, 3), np.uint8)
    assert y.ravel().tolist() == [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
    for row, pixel in np.ndindex(2, 5):  # red, green and blue lie behind each other
        for color in range(3):
            assert x2[row, 0, pixel, color] == rows["6"][row, 1024 * color + pixel]
    assert y2.tolist() == [[6], [9]]

    both = {"fine_labels": [70, 80], "coarse_labels": [3, 4]}
    hundred = {n: batch(k, **both) for n, k in (("train", "1"), ("test", "2"))}
    archive(
        folder / "cifar-100-python.tar.gz",
        {f"cifar-100-python/{name}": data for name, data in hundred.items()},
    )
    assert datasets.cifar100.load_data()[0][1].tolist() == [[70], [80]]
    assert datasets.cifar100.load_data("coarse")[1][1].tolist() == [[3], [4]]
    with pytest.raises(ValueError, match="unknown label_mode"):
        datasets.cifar100.load_data("finer")


def test_no_code_of_a_file_is_executed(folder):
    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    data = pickle.dumps({b"data": Evil(), b"fine_labels": []}, protocol=2)
    archive(folder / "cifar-100-python.tar.gz", {"cifar-100-python/train": data})
    with pytest.raises(mc.errors.FormatError, match=r"would call \w+\.print"):
        datasets.cifar100.load_data()
    for name in ("imdb", "reuters"):
        with pytest.raises(AttributeError, match="is a pickle"):
            getattr(datasets, name)


@pytest.mark.parametrize("name", ["boston_housing", "california_housing"])
def test_tables(folder, name):
    x = np.arange(1400.0).reshape(700, 2)
    np.savez(folder / f"{name}.npz", x=x, y=x[:, 0])
    load = getattr(datasets, name).load_data
    (a, b), (c, d) = load(test_split=0.3)
    assert (len(a), len(c)) == (489, 211)
    np.testing.assert_array_equal(np.sort(np.concatenate([b, d])), x[:, 0])
    np.testing.assert_array_equal(a[:, 0], b)
    order = np.arange(700)
    np.random.RandomState(113).shuffle(order)
    np.testing.assert_array_equal(a, x[order[:489]])
    with pytest.raises(ValueError, match="test_split must be in"):
        load(test_split=1.0)
    if name == "california_housing":
        assert len(load("small")[0][0]) == 480
        with pytest.raises(ValueError, match="unknown version"):
            load("tiny")
