"""Weights as lists and as files."""

from __future__ import annotations

import json
import os
import tracemalloc

import numpy as np
import pytest
from safetensors.numpy import load_file, save, save_file

import memcfg as mc
from memcfg.errors import FormatError, WeightsError

nn = mc.nn


def chain(width=4, **names):
    return nn.Sequential(
        [
            nn.Input((8, 8, 3)),
            nn.Conv2D(width, 3, padding="same", **names),
            nn.BatchNormalization(),
            nn.Flatten(),
            nn.Dense(5),
        ]
    )


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(params=["before training", "after training"])
def model(request, loss, images):
    """Give a model whose weights are on the host, or in the arena."""
    made = chain()
    made.compile("adam", loss)
    if request.param == "after training":
        made.fit(*images, verbose=0)
    yield made
    made.close()


def random_weights(model):
    generator = np.random.default_rng(2)
    return [generator.random(w.shape, np.float32) for w in model.get_weights()]


def test_lists_go_in_and_out(model, images):
    x, _ = images
    values = random_weights(model)
    model.set_weights(values)
    assert equal(model.get_weights(), values)
    predictions = model.predict(x, verbose=0)
    other = chain()
    other.set_weights(values)
    assert np.array_equal(other.predict(x, verbose=0), predictions)


def test_lists_are_copies(model):
    values = random_weights(model)
    model.set_weights(values)
    values[0][...] = 9
    got = model.get_weights()
    got[1][...] = 9
    assert not (model.get_weights()[0] == 9).any()
    assert not (model.get_weights()[1] == 9).any()


def test_other_numbers_are_converted(model):
    values = random_weights(model)
    model.set_weights([v.astype(np.float64) for v in values])
    assert equal(model.get_weights(), values)
    assert {w.dtype for w in model.get_weights()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda v: v[:-1], "8 weights, but the list has 7"),
        (lambda v: [*v, v[0]], "the list has 9"),
        (lambda v: [*v[:-1], v[-1][:3]], r"'dense.*bias' has shape \(5,\)"),
        (lambda v: [*v[:-1], v[-1].astype(complex)], "got complex128"),
        (lambda v: [*v[:-1], "weights"], "float32, got"),
        (lambda v: [*v[:-1], [[1.0], [1.0, 2.0]]], "not an array"),
        (lambda v: v[0], "a list of arrays"),
    ],
)
def test_wrong_lists_change_nothing(model, spoil, message):
    before = model.get_weights()
    with pytest.raises(WeightsError, match=message):
        model.set_weights(spoil(random_weights(model)))
    assert equal(model.get_weights(), before)


def test_files_go_in_and_out(model, tmp_path, images):
    path = tmp_path / "w.safetensors"
    model.save_weights(path)
    other = chain()  # with other automatic names
    assert not equal(other.get_weights(), model.get_weights())
    other.load_weights(str(path))
    assert equal(other.get_weights(), model.get_weights())
    assert list(tmp_path.iterdir()) == [path]


def test_names_in_files_are_the_models_own(tmp_path):
    path = tmp_path / "w.safetensors"
    model = nn.Sequential(
        [nn.Input((4,)), nn.Dense(3), nn.Dense(3, name="dense"), nn.Dense(2)]
    )
    model.save_weights(path)
    assert sorted(load_file(path)) == sorted(
        f"{layer}/{weight}"
        for layer in ("dense_1", "dense", "dense_2")
        for weight in ("kernel", "bias")
    )


def spoiled(values, key, value):
    return {**values, key: value}


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda v: {k: x for k, x in v.items() if k != "dense/bias"},
            "Missing: 'dense/bi",
        ),
        (lambda v: spoiled(v, "more/kernel", np.zeros(3, np.float32)), "'more/kernel'"),
        (
            lambda v: spoiled(v, "dense/bias", np.zeros(6, np.float32)),
            r"'dense/bias' has shape \(5,\) in the model, got \(6,\)",
        ),
        (lambda v: spoiled(v, "dense/bias", np.zeros(5)), "float64"),
        (lambda v: {}, "another architecture"),
    ],
)
def test_files_of_other_models_change_nothing(model, tmp_path, spoil, message):
    path = tmp_path / "w.safetensors"
    model.save_weights(path)
    save_file(spoil(load_file(path)), path)
    before = random_weights(model)
    model.set_weights(before)
    with pytest.raises(WeightsError, match=message):
        model.load_weights(path)
    assert equal(model.get_weights(), before)


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_truncated_files_change_nothing(model, tmp_path, keep):
    path = tmp_path / "w.safetensors"
    model.save_weights(path)
    data = path.read_bytes()
    path.write_bytes(data[:keep])
    before = model.get_weights()
    with pytest.raises(WeightsError, match="damaged"):
        model.load_weights(path)
    assert equal(model.get_weights(), before)


def forged(entries, values=b"", length=None):
    """Write a safetensors file by hand, right or wrong."""
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    length = len(text) if length is None else length
    return length.to_bytes(8, "little") + text + values


def two_entries(**changes):
    """Give entries of the weights of `dense`, of which one has changes."""
    kernel = {"dtype": "F32", "shape": [2, 1], "data_offsets": [0, 8]}
    bias = {"dtype": "F32", "shape": [1], "data_offsets": [8, 12], **changes}
    return {"dense/kernel": kernel, "dense/bias": bias}


def dense():
    return nn.Sequential([nn.Input((2,)), nn.Dense(1)])


def test_a_file_of_another_writer_is_read(tmp_path):
    path = tmp_path / "w.safetensors"
    entries = {"__metadata__": {"note": "x" * 10**5}, **two_entries()}
    values = np.array([3, 1, 2], np.float32).tobytes()  # the bias first
    entries["dense/kernel"]["data_offsets"] = [4, 12]
    entries["dense/bias"]["data_offsets"] = [0, 4]
    path.write_bytes(forged(entries, values))
    model = dense()
    model.load_weights(path)
    assert [w.tolist() for w in model.get_weights()] == [[[1], [2]], [3]]


@pytest.mark.parametrize(
    "data",
    [
        forged(two_entries(), bytes(11)),
        forged(two_entries(), bytes(13)),
        forged(two_entries(data_offsets=[4, 8]), bytes(12)),
        forged(two_entries(data_offsets=[9, 13]), bytes(13)),
        forged(two_entries(data_offsets=[8, 4]), bytes(12)),
        forged(two_entries(data_offsets=[8, 16]), bytes(16)),
        forged(two_entries(data_offsets=[8, 2**63]), bytes(12)),
        forged(two_entries(data_offsets=[8]), bytes(12)),
        forged(two_entries(data_offsets=None), bytes(12)),
        forged(two_entries(shape=3), bytes(12)),
        forged(two_entries(dtype=["F32"]), bytes(12)),
        forged(two_entries(more=1), bytes(12)),
        forged({**two_entries(), "dense/bias": 3}, bytes(12)),
        forged(b"[" * 10**5),
        forged(b'{"a":' * 10**5),
        forged(b"{" + b" " * 2**21 + b"}"),
        forged(b"{}", length=2**63),
        forged(b'{"a": 1, "a": 1}'),
        forged(b"\xff\xfe{}"),
        forged(b'{"\xff": 1}'),
        b"",
        bytes(7),
        bytes(8),
    ],
)
def test_a_file_that_lies_changes_nothing_and_takes_no_memory(tmp_path, data):
    path = tmp_path / "w.safetensors"
    path.write_bytes(data)
    model = dense()
    before = model.get_weights()
    tracemalloc.start()
    try:
        with pytest.raises(WeightsError, match=r"w\.safetensors"):
            model.load_weights(path)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert equal(model.get_weights(), before)


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"\x80\2}q\0.", "a pickle"),
        (b"\x93NUMPY", "an array of NumPy's"),
        (b"something else", "truncated or has no header"),
    ],
)
def test_a_file_of_another_format_is_called_by_its_name(tmp_path, start, kind):
    path = tmp_path / "x.weights.h5"
    path.write_bytes(start + bytes(100))
    with pytest.raises(WeightsError, match=f"not a safetensors file.*it is {kind}"):
        dense().load_weights(path)


@pytest.mark.parametrize("start", [b"\x89HDF\r\n\x1a\n", b"PK\3\4"])
def test_a_damaged_file_of_keras_is_refused(tmp_path, start):
    """Without h5py, which reads them, the error says what to install."""
    path = tmp_path / "x.weights.h5"
    path.write_bytes(start + bytes(100))
    words = r"damaged|pip install memcfg\[h5\]"
    with pytest.raises((FormatError, ImportError), match=words):
        dense().load_weights(path)


def test_a_header_that_is_a_list_is_refused(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes((8).to_bytes(8, "little") + b"[1,2,3] ")
    with pytest.raises(WeightsError, match=r"w\.safetensors"):
        dense().load_weights(path)


@pytest.mark.parametrize("suffix", [".hdf5", ".keras", ".npz", ".pt", ".PTH", ".ckpt"])
def test_a_name_of_another_format_is_refused(tmp_path, suffix):
    """`x.weights.h5` is a file that Keras reads, and others are not written."""
    path = tmp_path / f"x.weights{suffix}"
    with pytest.raises(ValueError, match=r"save them as '.*x\.weights\.safetensors'"):
        dense().save_weights(path)
    with pytest.raises(ValueError, match=r"or for Keras as '.*x\.weights\.h5'"):
        dense().save_weights(tmp_path / "x.h5")
    assert list(tmp_path.iterdir()) == []
    for name in ("x.weights.safetensors", "x", "x.weights", "x.bin", ".h5"):
        dense().save_weights(tmp_path / name)
        dense().load_weights(str(tmp_path / name))


def test_a_file_is_what_safetensors_writes(model, tmp_path):
    path = tmp_path / "w.safetensors"
    model.save_weights(path)
    values = load_file(path)
    assert path.read_bytes() == save(values, {"format": "memcfg.weights/1"})
    odd = nn.Sequential(
        [nn.Input((2,)), nn.Dense(1, name='ü "\\ \t\x01\x7f\u2028😀'), nn.Dense(1)]
    )
    odd.save_weights(path)
    values = load_file(path)
    assert path.read_bytes() == save(values, {"format": "memcfg.weights/1"})


@pytest.mark.parametrize("trained", [False, True])
def test_files_take_no_second_copy_of_the_weights(tmp_path, trained, loss):
    """Saving holds a weight at a time; loading all, once: a bad one changes nothing."""
    path, count, width = tmp_path / "w.safetensors", 8, 256
    layers = [nn.Dense(width, use_bias=False) for _ in range(count)]
    model = nn.Sequential([nn.Input((width,)), *layers])
    if trained:
        model.compile("sgd", loss)
        x = np.zeros((4, width), np.float32)
        model.train_on_batch(x, np.zeros(4, np.int32))
    largest = 4 * width * width
    model.get_weights()  # they are drawn
    tracemalloc.start()
    try:
        model.save_weights(path)
        saving = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        model.load_weights(path)
        loading = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert saving < 1.5 * largest
    assert loading < (count + 0.5) * largest


def test_a_missing_file(model, tmp_path):
    with pytest.raises(FileNotFoundError):
        model.load_weights(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        model.save_weights(tmp_path / "no" / "where")


def test_a_save_that_fails_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "w.safetensors"
    model.save_weights(path)
    data = path.read_bytes()
    model.set_weights(random_weights(model))

    def full(_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        model.save_weights(path)
    assert path.read_bytes() == data
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_leads_to_the_file_that_is_replaced(model, tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "w.safetensors", tmp_path / "link"
    model.save_weights(target)
    link.symlink_to(target)
    model.set_weights(random_weights(model))
    model.save_weights(link)
    assert link.is_symlink()
    assert list((tmp_path / "there").iterdir()) == [target]
    other = chain()
    other.load_weights(target)
    assert equal(other.get_weights(), model.get_weights())


def test_an_error_names_the_path_that_was_given(model, tmp_path):
    for path in (tmp_path / "no" / "where", tmp_path):
        with pytest.raises(OSError, match="directory") as caught:
            model.save_weights(path)
        assert caught.value.filename == str(path)


def test_lists_are_not_shared_between_models(images):
    """Values on the host belong to one model, also after `compile` moved them."""
    first, second = chain(), chain()
    values = random_weights(first)
    for model in (first, second):
        model.set_weights(values)
    second.set_weights([value + 1 for value in values])
    assert equal(first.get_weights(), values)


def test_loading_keeps_the_optimizers_state(loss, rows, tmp_path):
    """Only weights are replaced: momentum goes on."""
    x, y = rows
    model = nn.Sequential([nn.Dense(4)])
    model.compile(nn.SGD(0.1, momentum=0.9), loss)
    model.train_on_batch(x, y)
    before = model.get_weights()
    model.save_weights(tmp_path / "w.safetensors")
    model.train_on_batch(x, y)
    first = model.get_weights()[0] - before[0]
    model.load_weights(tmp_path / "w.safetensors")
    model.train_on_batch(x, y)
    second = model.get_weights()[0] - before[0]
    assert not np.allclose(first, second)


class TestStatelessCalls:
    """Calls with other values of the weights, which stay as they are."""

    def test_values_have_the_dtypes_of_the_weights(self):
        layer = nn.Normalization()
        layer.adapt(np.ones((3, 4), np.float32))
        before = layer.get_weights()
        number = 2**24 + 1  # of samples; float32 has no such number
        given = [np.zeros(4), np.full(4, 4), number]
        result, after = layer.stateless_call([], given, np.ones((2, 4), np.float32))
        np.testing.assert_allclose(result, np.full((2, 4), 0.5), rtol=1e-6)
        assert (after[2].dtype, after[2]) == (np.int32, number)
        for one, other in zip(before, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)

    def test_what_is_refused_leaves_the_weights(self):
        layer = nn.Dense(2)
        x = np.ones((3, 4), np.float32)
        with pytest.raises(ValueError, match="build it first"):
            layer.stateless_call([np.ones((4, 2))], [], x)
        layer(x)
        before = layer.get_weights()
        kernel, bias = np.zeros((4, 2)), np.zeros(2)
        with pytest.raises(ValueError, match="has 2 trainable weights and 0 others"):
            layer.stateless_call([kernel], [], x)
        with pytest.raises(ValueError, match="and 1 and 1 values were given"):
            layer.stateless_call([kernel], [bias], x)
        with pytest.raises(ValueError, match=r"must have shape \(2,\), got \(3,\)"):
            layer.stateless_call([kernel, np.zeros(3)], [], x)
        with pytest.raises(ValueError, match=r"cannot take|would need"):
            layer.stateless_call([kernel, bias], [], np.ones((3, 5)))
        for one, other in zip(before, layer.get_weights(), strict=True):
            np.testing.assert_array_equal(one, other)

        @mc.function
        def traced(x):
            return layer.stateless_call([kernel, bias], [], x)[0]

        with pytest.raises(RuntimeError, match="is for arrays"):
            traced(x)
        with pytest.raises(AttributeError, match="use apply"):
            nn.SGD().stateless_apply  # noqa: B018
