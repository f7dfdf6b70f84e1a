"""Files of compressed models: what is read is what was written, section by section."""

from __future__ import annotations

import json
import struct
import zlib

import numpy as np
import pytest
from coding_oracle import crc32c

import memcfg as mc
from memcfg import compression, nn
from memcfg.compression import Coding, CompressedModel
from memcfg.errors import FormatError, WeightsError


def sparse(shape, seed=0, density=0.1, values=15):
    random = np.random.default_rng(seed)
    codebook = random.normal(size=values).astype(np.float32)
    kept = random.random(shape) < density
    return np.where(kept, codebook[random.integers(0, values, shape)], 0).astype("f4")


def network():
    """Have weights that are coded, a bias, statistics and a shared layer."""
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(16, 3, activation="relu", name="conv")(x)
    h = nn.BatchNormalization(name="norm")(h)
    h = nn.Flatten()(h)
    dense = nn.Dense(576, name="dense")
    model = nn.Model(x, nn.Dense(10, name="head")(dense(dense(h))))
    random = np.random.default_rng(1)
    model.set_weights(
        [
            sparse(w.shape, i) if w.ndim > 1 else random.random(w.shape, np.float32)
            for i, w in enumerate(model.get_weights())
        ]
    )
    return model


def parts_of(path):
    """Read a file by the words of docs/compressed-format.md."""
    data = path.read_bytes()
    assert data[:8] == b"\x89mcz\r\n\x1a\n"
    length, checksum = struct.unpack_from("<II", data, 8)
    header = data[16 : 16 + length]
    assert crc32c(header) == checksum
    document = json.loads(zlib.decompress(header))
    offset, sections = 16 + length, {}
    for weight in document["weights"]:
        for nbytes, checksum in weight["sections"]:
            section = data[offset : offset + nbytes]
            assert crc32c(section) == checksum
            sections.setdefault(weight["key"], []).append(section)
            offset += nbytes
    assert offset == len(data)
    return document, sections


def with_parts(document, sections):
    """Make a file with right checksums and sizes."""
    for weight in document["weights"]:
        own = sections.get(weight.get("key"), ())
        if "sections" in weight and own:
            weight["sections"] = [[len(each), crc32c(each)] for each in own]
    header = zlib.compress(json.dumps(document).encode())
    start = b"\x89mcz\r\n\x1a\n" + struct.pack("<II", len(header), crc32c(header))
    return start + header + b"".join(b"".join(own) for own in sections.values())


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "model.mcz"
    model = network()
    small = CompressedModel(model)
    small.save(path)
    return model, small, path


@pytest.mark.parametrize("coder", ["none", "huffman", "range"])
def test_models_come_back_with_their_bits(coder, tmp_path):
    model = network()
    names = [w.path for w in model.weights if len(w.shape) > 1]
    small = CompressedModel(
        model, {name: Coding(5, coder) for name in names}, section_bytes="64KiB"
    )
    small.save(tmp_path / "a.mcz")
    assert small.nbytes == (tmp_path / "a.mcz").stat().st_size
    loaded = compression.load(tmp_path / "a.mcz")
    again = loaded.model()
    for one, other in zip(model.weights, again.weights, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    x = np.random.default_rng(0).random((5, 8, 8, 3), np.float32)
    np.testing.assert_array_equal(loaded.predict(x), model.predict(x, verbose=0))
    loaded.save(tmp_path / "b.mcz")
    assert (tmp_path / "a.mcz").read_bytes() == (tmp_path / "b.mcz").read_bytes()
    assert small.dense_bytes == sum(w.numpy().nbytes for w in model.weights)


def test_sizes_add_up_to_the_file(saved):
    _, small, path = saved
    loaded = compression.load(path)
    for each in (small, loaded):
        assert each.nbytes == path.stat().st_size
        assert each.header_bytes + sum(w.nbytes for w in each.weights) == each.nbytes
    by_name = {w.name: w for w in loaded.weights}
    assert by_name["dense/kernel"].codec == "codebook"
    assert by_name["dense/kernel"].nbytes < by_name["dense/kernel"].dense_bytes / 10
    assert by_name["dense/bias"] == ("dense/bias", (576,), "plain", 2304, 2304)


def test_sections_are_where_the_format_says(saved, tmp_path):
    """Each has some columns, and is decoded without the others."""
    model, _, path = saved
    document, sections = parts_of(path)
    assert document["format"] == "memcfg.compressed/1"
    assert [len(own) for own in sections.values()] == [1] * 10
    bias = np.frombuffer(sections["dense/bias"][0], "<f4")
    np.testing.assert_array_equal(bias, model.get_layer("dense").bias.numpy())
    CompressedModel(model, section_bytes=576 * 4 * 200).save(tmp_path / "a.mcz")
    document, sections = parts_of(tmp_path / "a.mcz")
    (kernel,) = (w for w in document["weights"] if w["key"] == "dense/kernel")
    assert (kernel["columns"], len(kernel["sections"])) == (192, 3)
    whole = model.get_layer("dense").kernel.numpy()
    for i, section in enumerate(sections["dense/kernel"]):
        part = compression.EncodedArray(section, (576, 192)).decode()
        np.testing.assert_array_equal(part, whole[:, 192 * i : 192 * i + 192])


def test_files_have_no_seeds_and_no_optimizer(saved):
    document, _ = parts_of(saved[2])
    assert document["model"]["compile"] is None
    assert {layer["seed"] for layer in document["model"]["layers"]} == {0}


def test_compiled_models_lose_their_settings(tmp_path):
    model = nn.Sequential([nn.Input((4,)), nn.Dense(3, name="dense")])
    model.compile("adam", "mse")
    model.train_on_batch(np.ones((2, 4), np.float32), np.ones((2, 3), np.float32))
    CompressedModel(model, {}).save(tmp_path / "a.mcz")
    loaded = compression.load(tmp_path / "a.mcz")
    assert [w.codec for w in loaded.weights] == ["plain", "plain"]
    for one, other in zip(model.weights, loaded.model().weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())


def test_damage_is_named(saved, tmp_path):
    data = saved[2].read_bytes()
    path = tmp_path / "a.mcz"
    cases = {
        b"": "does not begin as one",
        b"\x89HDF" + data[4:]: "does not begin as one",
        data[:100]: "truncated",
        data[:-1]: "bytes, but its header says",
        data + b"\0": "bytes, but its header says",
        data[:30] + bytes([data[30] ^ 1]) + data[31:]: "checksum of its header",
    }
    for wrong, words in cases.items():
        path.write_bytes(wrong)
        with pytest.raises(FormatError, match=words):
            compression.load(path)
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    loaded = compression.load(path)
    with pytest.raises(FormatError, match="the checksum of 'head/bias'"):
        loaded.model()
    with pytest.raises(FormatError, match="checksum"):
        loaded.save(tmp_path / "b.mcz")
    assert not (tmp_path / "b.mcz").exists()


def test_files_that_lie_with_right_checksums_are_refused(saved, tmp_path):
    path = tmp_path / "a.mcz"

    def refused(words, error=FormatError, **changes):
        document, sections = parts_of(saved[2])
        kernel = next(w for w in document["weights"] if w["key"] == "dense/kernel")
        kernel.update(changes)
        path.write_bytes(with_parts(document, sections))
        with pytest.raises(error, match=words):
            compression.load(path).model()

    refused("would unpack to", shape=[2**31, 2**31])
    refused("not the weights|has shape", WeightsError, shape=[576, 575])
    refused("unknown dtype or codec", codec="zip")
    refused("unknown dtype or codec", dtype="object")
    refused("coded and not float32", dtype="int32")
    refused("lacks bytes, or has too many", codec="plain")
    refused("lacks sections, or has too many", columns=100)
    refused("no such columns", shape=[2**62], columns=1)
    refused("should be positive", columns=0)
    refused("unknown key", more=1)
    refused("two weights have one key", key="dense/bias")
    refused("in one of them only", WeightsError, key="other")
    refused("damaged", codec="range")


def test_a_header_that_unpacks_without_end_is_refused(tmp_path):
    bomb = zlib.compress(b" " * (2**26 + 1))
    start = b"\x89mcz\r\n\x1a\n" + struct.pack("<II", len(bomb), crc32c(bomb))
    (tmp_path / "a.mcz").write_bytes(start + bomb)
    with pytest.raises(FormatError, match="too long"):
        compression.load(tmp_path / "a.mcz")


def test_arguments_are_checked(saved, tmp_path):
    model, small, path = saved
    with pytest.raises(ValueError, match=r"must end in '\.mcz'"):
        small.save(tmp_path / "a.memcfg")
    with pytest.raises(FileExistsError):
        small.save(path, overwrite=False)
    with pytest.raises(ValueError, match="no weight 'kernel'; it has conv/kernel"):
        CompressedModel(model, {"kernel": Coding()})
    with pytest.raises(TypeError, match="CompressedModel takes a Model, got str"):
        CompressedModel("a.memcfg")
    with pytest.raises(ValueError, match="section_bytes must be positive"):
        CompressedModel(model, section_bytes=0)
    with pytest.raises(TypeError, match="must be a Coding"):
        CompressedModel(model, {"dense/kernel": "huffman"})
    with pytest.raises(FileNotFoundError):
        compression.load(tmp_path / "none.mcz")
    assert repr(compression.load(path)).startswith("<CompressedModel in ")
    assert mc.compression is compression
