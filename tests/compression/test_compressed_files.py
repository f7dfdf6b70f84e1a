"""Files of compressed models: what is read is what was written, section by section."""

from __future__ import annotations

import contextlib
import copy
import json
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from coding_oracle import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

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
    refused("lacks sections, or has too many", shape=[2**62], columns=1)
    refused("columns and no axis", shape=[], columns=1)
    refused("should be positive", columns=0)
    refused("unknown key", more=1)
    refused("two weights have one key", key="dense/bias")
    refused("in one of them only", WeightsError, key="other")
    refused("damaged", codec="range")


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("layers", None, FormatError),
        ("layers", 7, FormatError),
        ("layers", [7], FormatError),
        ("model", 7, FormatError),
        ("units", "x", TypeError),
    ],
)
def test_descriptions_of_other_types_are_refused(saved, tmp_path, key, value, error):
    document, sections = parts_of(saved[2])
    description = document["model"]
    if key == "units":
        row = next(each for each in description["layers"] if key in each["config"])
        description = row["config"]
    description[key] = value
    path = tmp_path / "a.mcz"
    path.write_bytes(with_parts(document, sections))
    words = "units must be" if key == "units" else f"{path}: .* is malformed"
    with pytest.raises(error, match=words):
        compression.load(path).model()


def quantized(dtype, group=None, products="float32"):
    model = nn.Sequential(
        [
            nn.Input((9, 9, 3)),
            nn.Conv2D(7, 2, name="conv"),
            nn.Flatten(),
            nn.Dense(50, activation="relu", name="dense"),
            nn.Dense(3, name="head"),
        ]
    )
    return compression.quantize(model, dtype, group=group, products=products)


@pytest.mark.parametrize("limit", ["8MiB", "16KiB"])
@pytest.mark.parametrize("group", [None, 31])
@pytest.mark.parametrize(("dtype", "share"), [("int8", 1), ("int4", 2)])
def test_weights_of_integers_take_their_bits(dtype, share, group, limit, tmp_path):
    model = quantized(dtype, group)
    small = CompressedModel(model, section_bytes=limit)
    held = {each.name: each for each in small.weights}
    for name, (rows, units) in {
        "conv/kernel": (12, 7),
        "dense/kernel": (448, 50),
        "head/kernel": (50, 3),
    }.items():
        groups = 1 if group is None else -(-rows // group)
        assert held[name].codec == "integers"
        assert held[name].nbytes == units * (-(-rows // share) + 4 * groups)
    small.save(tmp_path / "a.mcz")
    loaded = compression.load(tmp_path / "a.mcz")
    made = loaded.model()
    x = np.random.default_rng(0).normal(size=(4, 9, 9, 3)).astype(np.float32)
    expected = model.predict(x, verbose=0)
    np.testing.assert_array_equal(made.predict(x, verbose=0), expected)
    found = loaded.predict(x)
    loaded.close()
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    if limit == "8MiB":  # products by sections may round otherwise
        np.testing.assert_array_equal(found, expected)
    for one, other in zip(made.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one.numpy(), other.numpy())
    assert made.plan(4, program="predict").peak_bytes == (
        model.plan(4, program="predict").peak_bytes
    )
    again = CompressedModel(made, section_bytes=limit)
    again.save(tmp_path / "b.mcz")
    assert (tmp_path / "b.mcz").read_bytes() == (tmp_path / "a.mcz").read_bytes()


@pytest.mark.parametrize("limit", ["8MiB", "16KiB", "400B"])
@pytest.mark.parametrize(("dtype", "group"), [("int8", None), ("int4", 32)])
def test_products_of_integers_are_those_of_the_file(tmp_path, dtype, group, limit):
    model = quantized(dtype, group, "int8")
    small = CompressedModel(model, section_bytes=limit)
    small.save(tmp_path / "a.mcz")
    x = np.random.default_rng(0).normal(size=(4, 9, 9, 3)).astype(np.float32)
    expected = model.predict(x, verbose=0)
    loaded = compression.load(tmp_path / "a.mcz")
    np.testing.assert_array_equal(loaded.model().predict(x, verbose=0), expected)
    for each in (small, loaded):  # of bytes in memory, and on the disk
        streamed = each.streamed()
        np.testing.assert_array_equal(streamed.predict(x, verbose=0), expected)
        report = streamed.memory_report(verify=True)
        assert report.predicted_peak_bytes == report.measured_peak_bytes
        streamed.close()
    floats = CompressedModel(quantized(dtype, group)).streamed()
    peaks = [each.plan(4, program="predict").peak_bytes for each in (floats, streamed)]
    assert peaks[0] > 1.5 * peaks[1]  # no kernel of Dense in float32


@pytest.mark.parametrize("place", [0, -1])  # in the scales, and in the codes
def test_damaged_integers_end_the_step(tmp_path, place):
    path = tmp_path / "a.mcz"
    CompressedModel(quantized("int8", products="int8")).save(path)
    document, sections = parts_of(path)
    loaded = compression.load(path)
    x = np.random.default_rng(0).normal(size=(4, 9, 9, 3)).astype(np.float32)
    expected = loaded.predict(x)
    whole = path.read_bytes()
    (code,) = sections["dense/kernel"]
    damaged = bytearray(code)
    damaged[place] ^= 1
    assert whole.count(code) == 1
    with path.open("r+b") as file:  # the one that is open
        file.write(whole.replace(code, bytes(damaged)))
    with pytest.raises(FormatError, match="the checksum of 'dense/kernel'"):
        loaded.predict(x)
    with path.open("r+b") as file:
        file.write(whole)
    np.testing.assert_array_equal(loaded.predict(x), expected)
    sections["dense/kernel"] = [code[:-1] + b"\x80"]
    path.write_bytes(with_parts(document, sections))
    with pytest.raises(FormatError, match="-128 is no integer of it"):
        compression.load(path).predict(x)


def test_kernels_of_integers_in_columns_are_put_together(tmp_path):
    path = tmp_path / "a.mcz"
    CompressedModel(quantized("int8", products="int8")).save(path)
    document, sections = parts_of(path)
    x = np.random.default_rng(0).normal(size=(4, 9, 9, 3)).astype(np.float32)
    expected = compression.load(path).predict(x)
    kernel = next(w for w in document["weights"] if w["key"] == "conv/kernel")
    kernel["columns"] = 4
    (code,) = sections["conv/kernel"]
    scales, rows = np.frombuffer(code, "<f4", 7), np.frombuffer(code[28:], np.int8)
    sections["conv/kernel"] = [
        scales[own].tobytes() + rows.reshape(12, 7)[:, own].tobytes()
        for own in (slice(4), slice(4, 7))
    ]
    path.write_bytes(with_parts(document, sections))
    np.testing.assert_allclose(compression.load(path).predict(x), expected, atol=0.1)


def test_files_of_integers_that_lie_are_refused(tmp_path):
    path = tmp_path / "a.mcz"
    CompressedModel(quantized("int8")).save(path)
    document, sections = parts_of(path)
    kernel = next(w for w in document["weights"] if w["key"] == "dense/kernel")
    assert (kernel["codec"], kernel["bits"]) == ("integers", 8)

    def refused(words, **changes):
        old = dict(kernel)
        kernel.update(changes)
        path.write_bytes(with_parts(document, sections))
        with pytest.raises(FormatError, match=words):
            compression.load(path).model()
        kernel.clear()
        kernel.update(old)

    refused("integers of 5 bits", bits=5)
    refused("unknown products: 'x'", products="x")
    refused("should be positive", group=0)
    refused("lacks bytes, or has too many", group=1)
    refused("lacks bytes, or has too many", bits=4)
    refused("has bits and is not of integers", codec="codebook")
    (code,) = sections["dense/kernel"]
    sections["dense/kernel"] = [code[:-1] + b"\x80"]
    refused("-128 is no integer of it")


def codes():
    """Have codes of all kinds, in several sections."""
    nn.set_random_seed(0)
    layers = [nn.Dense(96, name=f"dense{i}") for i in range(4)]
    model = nn.Sequential([nn.Input((96,)), *layers])
    model.set_weights(
        [
            sparse(w.shape, i) if w.ndim > 1 else w
            for i, w in enumerate(model.get_weights())
        ]
    )
    coders = ("huffman", "none", "range")
    settings = {f"dense{i}/kernel": Coding(coder=c) for i, c in enumerate(coders)}
    return CompressedModel(model, settings, section_bytes="24KiB")


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("codes")
    codes().save(folder / "codes.mcz")
    CompressedModel(quantized("int4", 31)).save(folder / "integers.mcz")
    products = quantized("int4", 31, "int8")
    CompressedModel(products, section_bytes="16KiB").save(folder / "products.mcz")
    names = "codes", "integers", "products"
    return folder, [parts_of(folder / f"{each}.mcz") for each in names]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_with_right_checksums_is_an_error_or_other_values(coded, data):
    folder, files = coded
    document, sections = copy.deepcopy(data.draw(st.sampled_from(files)))
    key = data.draw(st.sampled_from([k for k in sections if k.endswith("kernel")]))
    own = sections[key]
    place = data.draw(st.integers(0, len(own) - 1))
    code = bytearray(own[place])
    for _ in range(data.draw(st.integers(1, 4))):
        where = data.draw(st.integers(0, 40) | st.integers(0, len(code) - 1))
        code[where] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del code[data.draw(st.integers(0, len(code))) :]
    own[place] = bytes(code)
    path = folder / "damaged.mcz"
    path.write_bytes(with_parts(document, sections))
    for act in (
        lambda small: small.model(),
        lambda small: predicted(small.streamed()),
        lambda small: predicted(small.streamed(products="auto")),
    ):
        with contextlib.suppress(FormatError, WeightsError), np.errstate(all="ignore"):
            act(compression.load(path))


def predicted(model):
    shape = model.layers[0].kernel.shape
    x = np.ones((1, 96) if len(shape) == 2 else (1, 9, 9, 3), np.float32)
    try:
        return model.predict(x, verbose=0)
    finally:
        model.close()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_header_is_read_or_refused(coded, data):
    folder, files = coded
    document, sections = copy.deepcopy(data.draw(st.sampled_from(files)))
    weight = data.draw(st.sampled_from(document["weights"]))
    name = data.draw(
        st.sampled_from(
            [
                "shape",
                "dtype",
                "codec",
                "columns",
                "bits",
                "group",
                "products",
                "sections",
                "key",
            ]
        )
    )
    values = st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=9)
        | st.sampled_from(["plain", "codebook", "range", "integers", "int8"]),
        lambda each: st.lists(each, max_size=4),
        max_leaves=6,
    )
    weight[name] = data.draw(values)
    path = folder / "other.mcz"
    packed = zlib.compress(json.dumps(document).encode())
    start = b"\x89mcz\r\n\x1a\n" + struct.pack("<II", len(packed), crc32c(packed))
    path.write_bytes(
        start + packed + b"".join(b"".join(own) for own in sections.values())
    )
    with contextlib.suppress(FormatError, WeightsError):
        compression.load(path).model()


def peak_of_refusal(path, words):
    """Load a file that is refused; return the most bytes of Python meanwhile."""
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match=words):
            compression.load(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [b" " * (2**26 + 1), b"[" + b"[]," * (2**22 // 3) + b"0]"],
    ids=["spaces", "lists"],
)
def test_a_header_that_unpacks_without_end_is_refused(text, tmp_path):
    """It may unpack to 64 bytes for each of its own, and no more are unpacked."""
    bomb = zlib.compress(text, 9)
    start = b"\x89mcz\r\n\x1a\n" + struct.pack("<II", len(bomb), crc32c(bomb))
    (tmp_path / "a.mcz").write_bytes(start + bomb)
    assert len(text) > 900 * len(bomb)
    assert peak_of_refusal(tmp_path / "a.mcz", "too long") < 2**18 + 200 * len(bomb)


def test_a_weight_of_columns_without_end_is_refused(tmp_path):
    path = tmp_path / "a.mcz"
    CompressedModel(network()).save(path)
    document, sections = parts_of(path)
    document["weights"][0] |= {"shape": [2**26], "columns": 1}
    path.write_bytes(with_parts(document, sections))
    assert peak_of_refusal(path, "lacks sections") < 2**20


def test_a_header_that_zlib_packs_too_well_is_stored_as_it_is(tmp_path):
    name = "a" * 100_000
    nn.set_random_seed(0)
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2, name=name)])
    CompressedModel(model).save(tmp_path / "a.mcz")
    loaded = compression.load(tmp_path / "a.mcz")
    assert loaded.header_bytes > 3 * len(name)
    assert loaded.model().layers[-1].name == name
    model = nn.Sequential([nn.Input((3,)), nn.Dense(2, name=60 * name)])
    with pytest.raises(ValueError, match=r"bytes of JSON, .* at most 16777216: pass"):
        CompressedModel(model)


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
