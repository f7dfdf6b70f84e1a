"""Codecs give back what they got, in the bytes that NumPy makes of their words."""

from __future__ import annotations

import os
import subprocess
import sys

import codec_oracle as oracle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcfg._core import codec_bounds, decode_bytes, encode_bytes, lossless_codecs

SPECIAL = [0x80000000, 0x7FC00001, 0xFF812345, 1, 0x807FFFFF, 0x7F800000, 0x3F800000]


@st.composite
def buffers(draw):
    """Draw bytes of words that are zero, equal or special, as often as is drawn."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    words = random.integers(0, 2**32, draw(st.integers(0, 1200)), np.uint32)
    words[random.random(words.size) < draw(st.sampled_from([0, 0.1, 0.5, 0.9, 1]))] = 0
    special = random.random(words.size) < draw(st.sampled_from([0, 0.3]))
    words[special] = random.choice(SPECIAL, np.count_nonzero(special))
    repeated = np.repeat(words, draw(st.integers(1, 5)))
    return repeated.tobytes() + random.bytes(draw(st.integers(0, 3)))


def encode(codec, data):
    target = np.empty(codec_bounds(memoryview(data).nbytes)[codec], np.uint8)
    return target[: encode_bytes(codec, data, target)].tobytes()


def decode(codec, code, nbytes):
    target = np.full(nbytes, 0xA5, np.uint8)
    decode_bytes(codec, code, target)
    return target.tobytes()


@pytest.mark.parametrize("codec", oracle.ENCODERS)
@given(data=buffers())
def test_codes_are_those_of_numpy(codec, data):
    code = oracle.ENCODERS[codec](data)
    assert encode(codec, data) == code
    assert decode(codec, code, len(data)) == data
    assert len(code) <= codec_bounds(len(data))[codec]


@given(data=buffers(), times=st.sampled_from([1, 30]))
def test_planes_are_those_of_numpy(data, times):
    data = data * times
    code = encode("planes_zstd", data)
    assert oracle.read_planes_zstd(code, len(data)) == data
    assert decode("planes_zstd", code, len(data)) == data
    assert decode("planes_zstd", oracle.planes_zstd(data), len(data)) == data


def test_planes_of_activations_are_smaller():
    """Signs and exponents of normal numbers repeat: less than 7 of 8 bytes are kept."""
    values = np.random.default_rng(0).normal(size=2**16).astype(np.float32)
    assert len(encode("planes_zstd", values.tobytes())) < 0.875 * values.nbytes


def test_a_library_that_is_missing_is_named(tmp_path):
    (tmp_path / "libzstd.so.1").touch()
    code = """
from memcfg._core import codec_bounds, encode_bytes
from memcfg.errors import MissingDependencyError
assert "planes_zstd" in codec_bounds(0)
try:
    encode_bytes("planes_zstd", b"", bytearray(64))
except MissingDependencyError as error:
    print(error)
"""
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"LD_LIBRARY_PATH": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert "the codec planes_zstd needs libzstd.so.1, which cannot be loaded" in out
    assert "apt install libzstd1" in out


@pytest.mark.parametrize("density", [0.05, 0.2, 0.353, 0.5, 0.6, 0.9])
def test_the_ratio_is_that_of_the_formula(density):
    """Of d, the density of what was drawn: 128 / (128 d + 4)."""
    random = np.random.default_rng(0)
    data = np.where(random.random(2**20) < density, random.random(2**20), 0)
    data = data.astype(np.float32)
    packed = len(encode("zvc", data.tobytes())) - oracle.HEADER
    d = np.count_nonzero(data) / data.size
    assert data.nbytes / packed == pytest.approx(128 / (128 * d + 4), rel=1e-12)


@pytest.mark.parametrize("codec", lossless_codecs())
def test_what_does_not_fit_is_still_there(codec):
    data = np.arange(1, 1001, dtype=np.float32)
    before = data.copy()
    with pytest.raises(ValueError, match=f"{codec} needs more than the 500 bytes"):
        encode_bytes(codec, data, np.empty(500, np.uint8))
    np.testing.assert_array_equal(data, before)
    assert decode(codec, encode(codec, data.tobytes()), 4000) == data.tobytes()


@pytest.mark.parametrize("codec", lossless_codecs())
def test_wrong_bytes_are_refused(codec):
    for code in (b"", b"\0" * 100, b"\3" + b"\0" * 99, b"\1" + b"\0" * 99):
        with pytest.raises(ValueError, match=f"these bytes are no {codec}"):
            decode(codec, code, 400)


def test_buffers_are_checked():
    with pytest.raises(ValueError, match="no codec 'zip'"):
        encode_bytes("zip", b"", bytearray(64))
    with pytest.raises(ValueError, match="read-only"):
        encode_bytes("zvc", b"", bytes(64))
    with pytest.raises(ValueError, match="behind one another"):
        decode_bytes("zvc", bytearray(64), np.empty(64)[::2])


# -- lossy ----------------------------------------------------------------


@st.composite
def floats(draw):
    """Draw float32 of all sizes, whatever their bits, and of those near each other."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.integers(0, 1000))
    words = random.integers(0, 2**32, count, np.uint32)
    words[random.random(count) < 0.1] = random.choice([*SPECIAL, 0, 0xFF800000])
    values = words.view(np.float32)
    near = np.exp2(random.uniform(-30, 20, count)) * random.choice([-1, 1], count)
    return np.where(random.random(count) < 0.5, values, near.astype(np.float32))


@given(values=floats())
def test_a_mask_tells_what_is_positive(values):
    code = encode("mask", values)
    assert code == oracle.mask(values)
    back = np.frombuffer(decode("mask", code, values.nbytes), np.float32)
    np.testing.assert_array_equal(back, (values > 0).astype(np.float32))


@pytest.mark.parametrize("codec", oracle.MINIFLOATS)
@given(values=floats())
def test_minifloats_are_the_nearest_of_all(codec, values):
    own = oracle.MINIFLOATS[codec]
    code = encode(codec, values)
    codes = oracle.read_minifloats(codec, code, values.size)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(codes[numbers], own.encode(values)[numbers])
    back = np.frombuffer(decode(codec, code, values.nbytes), np.float32)
    same = own.values[codes]
    assert np.array_equal(back, same, equal_nan=True)
    assert np.array_equal(np.signbit(back), np.signbit(values))
    np.testing.assert_array_equal(np.isnan(back), np.isnan(values))
    np.testing.assert_array_equal(np.isinf(back), np.isinf(values))


@pytest.mark.parametrize("codec", oracle.MINIFLOATS)
def test_all_codes_come_back(codec):
    own = oracle.MINIFLOATS[codec]
    codes = own.encode(own.values)
    again = encode(codec, own.values)
    numbers = ~np.isnan(own.values)
    found = oracle.read_minifloats(codec, again, own.values.size)
    np.testing.assert_array_equal(found[numbers], codes[numbers])
    np.testing.assert_array_equal(found[numbers], np.arange(2**own.bits)[numbers])


@pytest.mark.parametrize("codec", oracle.MINIFLOATS)
def test_errors_of_minifloats_are_within_their_bounds(codec):
    """Half the last bit: of the number, or of the smallest one that is normal."""
    own = oracle.MINIFLOATS[codec]
    random = np.random.default_rng(0)
    values = np.exp2(random.uniform(-30, np.log2(own.finite[-1]), 2**18))
    values = values.astype(np.float32)
    back = np.frombuffer(
        decode(codec, encode(codec, values), values.nbytes), np.float32
    )
    error = np.abs(back.astype(np.float64) - values)
    bound = own.relative * np.maximum(values, own.smallest)
    assert np.all(error <= bound)
    assert (error / bound).max() > 0.9
    large = np.array([1e30, -1e30], np.float32)
    most = np.frombuffer(decode(codec, encode(codec, large), 8), np.float32)
    np.testing.assert_array_equal(most, np.array([1, -1]) * own.finite[-1])


@pytest.mark.parametrize("bits", [2, 4, 8])
@given(values=floats())
def test_groups_are_rounded_to_a_level_beside_them(bits, values):
    codec = f"group{bits}"
    code = encode(codec, values)
    assert encode(codec, values) == code
    least, scale, levels = oracle.read_groups(bits, code, values.size)
    for begin in range(0, values.size, 256):
        with np.errstate(invalid="ignore"):  # NaN that signals
            group = values[begin : begin + 256].astype(np.float64)
        if not np.isfinite(group).all():
            assert np.isnan(least[begin])
            continue
        assert least[begin] == group.min()
        span = (group.max() - group.min()) / (2**bits - 1)
        assert scale[begin] == np.float32(span)
        if scale[begin] > 2.0**-126:
            place = (group - least[begin]) / np.float64(scale[begin])
            assert np.all(np.abs(levels[begin : begin + 256] - place) < 1 + 1e-6)
    expected = least.astype(np.float64) + levels * scale.astype(np.float64)
    with np.errstate(invalid="ignore"):
        expected = np.minimum(expected, np.finfo(np.float32).max).astype(np.float32)
    back = np.frombuffer(decode(codec, code, values.nbytes), np.float32)
    assert np.array_equal(back, expected, equal_nan=True)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("value", [0.1, 0.5, 0.7777])
def test_the_mean_of_rounded_groups_is_the_number(bits, value):
    """Over groups of a tensor, and at one place over tensors that differ elsewhere."""
    group = np.full(256, value, np.float32)
    group[:2] = 0, 1
    values = np.tile(group, 2000)
    back = decode(f"group{bits}", encode(f"group{bits}", values), values.nbytes)
    inside = np.frombuffer(back, np.float32).reshape(-1, 256)[:, 2:]
    assert is_mean_of(inside.ravel(), group[2], bits)
    assert abs(np.corrcoef(inside[:-1].ravel(), inside[1:].ravel())[0, 1]) < 0.01
    assert abs(np.corrcoef(inside[:, :-1].ravel(), inside[:, 1:].ravel())[0, 1]) < 0.01
    seen = []
    for other in np.linspace(0.01, 0.99, 3000, dtype=np.float32):
        group[2] = other
        back = decode(f"group{bits}", encode(f"group{bits}", group), group.nbytes)
        seen.append(np.frombuffer(back, np.float32)[100])
    assert is_mean_of(np.array(seen), group[100], bits)


def is_mean_of(found, value, bits):
    """Whether a mean is within five of its standard deviations."""
    step = 1 / (2**bits - 1)
    part = value / step % 1
    deviation = step * np.sqrt(part * (1 - part) / found.size)
    return abs(found.mean(dtype=np.float64) - value) < 5 * deviation + 1e-7


def test_lossy_codecs_take_float32():
    for codec in {*codec_bounds(0)} - {*lossless_codecs()}:
        with pytest.raises(ValueError, match=f"{codec} encodes float32, not 5 bytes"):
            encode_bytes(codec, bytes(5), bytearray(100))
        assert decode(codec, encode(codec, b""), 0) == b""
