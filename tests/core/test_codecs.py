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
    target = np.empty(codec_bounds(len(data))[codec], np.uint8)
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
