"""Arrays that are maps of files: models read the file, and the map is not touched."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numpy as np
import pytest

import memcfg as mc
from memcfg.errors import FormatError

nn = mc.nn
SMAPS = Path("/proc/self/smaps")

pytestmark = pytest.mark.skipif(
    not SMAPS.exists(), reason="the system does not tell its maps"
)


@pytest.fixture
def files(tmp_path, rows):
    """Return samples and labels in files, 100 times those of `rows`."""
    for name, array in zip("xy", rows, strict=True):
        np.save(tmp_path / name, np.concatenate([array] * 100))
    return [tmp_path / "x.npy", tmp_path / "y.npy"]


def opened(files, mode="r"):
    return [np.load(path, mmap_mode=mode) for path in files]


def resident(path):
    """Bytes of a file that are in memory through maps of this process."""
    found = re.findall(
        rf"{re.escape(str(path))}\n(?:\w+:.*\n)*?Rss: +(\d+) kB", SMAPS.read_text()
    )
    assert found
    return 1024 * sum(map(int, found))


@pytest.mark.parametrize("shuffle", [True, False])
def test_no_page_of_a_map_is_touched(dense, files, shuffle):
    """And the numbers are those of plain arrays."""
    found, expected = dense(), dense()
    expected.set_weights(found.get_weights())
    plain = [np.load(path) for path in files]
    mapped = opened(files)
    before = [resident(path) for path in files]
    options = {"verbose": 0, "shuffle": shuffle, "seed": 1, "validation_split": 0.3}
    history = found.fit(*mapped, 64, 2, **options).history
    assert history == expected.fit(*plain, 64, 2, **options).history
    found.fit(*mapped, 64, verbose=0, seed=2, validation_data=mapped)
    expected.fit(*plain, 64, verbose=0, seed=2, validation_data=plain)
    assert found.evaluate(*mapped, verbose=0) == expected.evaluate(*plain, verbose=0)
    assert np.array_equal(
        found.predict(mapped[0][::-1], verbose=0),
        expected.predict(plain[0][::-1], verbose=0),
    )
    assert [resident(path) for path in files] == before


def test_wrong_labels_of_a_map_are_named_by_their_place(dense, files):
    """They are read a part at a time."""
    for path in files:
        np.save(path, np.concatenate([np.load(path)] * 24))
    labels = np.load(files[1])
    labels[70_000] = 7
    np.save(files[1], labels)
    with pytest.raises(ValueError, match=r"label 7 at y\[70000\]"):
        dense().fit(*opened(files), verbose=0, validation_split=0.01)


def test_a_file_that_becomes_shorter_ends_training_between_two_steps(dense, files):
    """Through the map the process would be killed."""
    model = dense()
    mapped = opened(files)
    model.train_on_batch(np.array(mapped[0][:8]), np.array(mapped[1][:8]))
    before = model.get_weights()
    with files[0].open("r+b") as file:
        file.truncate(200)
    with pytest.raises((FormatError, ValueError)):
        model.fit(*mapped, verbose=0)
    for first, second in zip(before, model.get_weights(), strict=True):
        assert np.array_equal(first, second)


def test_a_large_map_that_is_not_read_from_its_file_is_told(dense, files, tmp_path):
    model = dense()
    path = tmp_path / "large.npy"
    shape = (130, 1 << 16)  # 32.5 MiB, on the disk nothing
    np.lib.format.open_memmap(path, "w+", np.float32, shape)
    with (
        pytest.warns(UserWarning, match="private copy") as warned,
        pytest.raises(ValueError, match="has shape"),
    ):
        model.predict(np.load(path, mmap_mode="c"), verbose=0)
    assert {each.filename for each in warned} == {__file__}
    x, y = opened(files, "c")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(x, verbose=0)  # small
        model.predict(opened(files)[0], verbose=0)
        model.fit(np.array(x), np.array(y), verbose=0)
