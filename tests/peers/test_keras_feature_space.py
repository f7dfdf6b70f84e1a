"""Columns of tables as numbers, beside Keras's."""

from __future__ import annotations

import os
import wave

import numpy as np
import pytest

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")
pytest.importorskip("tensorflow", reason="Keras computes on tables by TensorFlow")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),
]
BOTH = keras.utils.FeatureSpace, mc.nn.utils.FeatureSpace
TABLE = {
    "plain": np.linspace(-1, 3, 9).astype(np.float32),
    "scaled": np.arange(9, dtype=np.float32),
    "normal": np.array([3, 1, 4, 1, 5, 9, 2, 6, 5], np.float32),
    "binned": np.array([0.1, 9, 3, 4, 5, 2, 8, 7, 6], np.float32),
    "age": np.array([7, 9, 7, 8, 9, 9, 7, 7, 9]),
    "kind": np.array(list("abacabcca")),
    "word": np.array(list("thesewrds")),
    "number": np.arange(9) * 1000,
}


def spaces(output_mode, mode):
    for kind in BOTH:
        yield kind(
            features={
                "plain": "float",
                "scaled": kind.float_rescaled(scale=0.5, offset=1.0),
                "normal": "float_normalized",
                "binned": kind.float_discretized(3, output_mode=mode),
                "age": kind.integer_categorical(output_mode=mode),
                "kind": kind.string_categorical(num_oov_indices=2, output_mode=mode),
                "word": kind.string_hashed(num_bins=5, output_mode=mode),
                "number": "integer_hashed",
            },
            crosses=[("kind", "age"), kind.cross(("age", "binned"), 7, mode)],
            crossing_dim=6,
            hashing_dim=4,
            output_mode=output_mode,
        )


def array(value):
    return np.asarray(keras.ops.convert_to_numpy(value))


@pytest.mark.parametrize("output_mode", ["concat", "dict"])
@pytest.mark.parametrize("mode", ["one_hot", "int"])
def test_tables_and_rows(output_mode, mode):
    if (output_mode, mode) == ("concat", "int"):
        return
    one, other = spaces(output_mode, mode)
    one.adapt(dict(TABLE))
    other.adapt(dict(TABLE))
    row = {name: column[4].item() for name, column in TABLE.items()}
    strange = {name: column[:3] for name, column in TABLE.items()}
    strange |= {"kind": np.array(["x", "y", "a"]), "age": np.array([1, 2, 7])}
    for given in (TABLE, row, strange):
        wanted, found = one(dict(given)), other(dict(given))
        if output_mode == "concat":
            wanted, found = {"all": wanted}, {"all": found}
        assert [*wanted] == [*found]
        for name in wanted:
            a, b = array(wanted[name]), found[name]
            assert a.shape == b.shape, name
            np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6, err_msg=name)


def test_sounds_of_folders(tmp_path):
    random = np.random.default_rng(0)
    for name, count in (("a/0", 5), ("a/1", 8), ("b/0", 3)):
        path = tmp_path / f"{name}.wav"
        path.parent.mkdir(exist_ok=True)
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(100)
            file.writeframes(random.integers(-9999, 9999, count, np.int16).tobytes())
    for options in (
        {"batch_size": 2},
        {"output_sequence_length": 6, "label_mode": "binary"},
        {"labels": None, "output_sequence_length": 4, "seed": 3, "shuffle": True},
    ):
        given = {"shuffle": False, "verbose": False} | options
        one, other = (
            each.audio_dataset_from_directory(str(tmp_path), **given)
            for each in (keras.utils, mc.nn.utils)
        )
        if given["shuffle"]:  # each pass is in an order of its own
            one, other = ([np.sort(x, axis=0) for x in each] for each in (one, other))
        for a, b in zip(one, other, strict=True):
            for x, y in zip(
                *([e] if "labels" in given else e for e in (a, b)), strict=True
            ):
                np.testing.assert_array_equal(np.asarray(x), y)
