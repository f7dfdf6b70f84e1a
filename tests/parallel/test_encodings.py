"""Encodings of arrays of 0, T and -T: what they add, their lengths, damaged ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from internals import ROUND_POSITIONS, count_encoded, encoded_rounds, round_words


def drawn(rng, size, entries, magnitude):
    """Return an array with a number of entries at random places."""
    array = np.zeros(size, np.float32)
    places = rng.choice(size, entries, replace=False)
    array[places] = rng.choice(np.float32([-1, 1]), entries) * np.float32(magnitude)
    return array


def encodings(arrays):
    made = []
    elements = sum(each.size for each in arrays)
    for each in encoded_rounds(arrays):
        words = np.full(round_words(elements, len(arrays)), -7, np.int32)
        length, _ = each.encode(words)
        made.append(words[:length])
    return made


def added(arrays, encoded):
    for each, words in zip(encoded_rounds(arrays), encoded, strict=True):
        each.add(words)


SHAPES = st.lists(
    st.one_of(st.integers(0, 70), st.sampled_from([16_383, 16_385, 40_000])),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(SHAPES, st.floats(0, 1), st.floats(2**-126, 2**100, width=32), st.integers(0, 9))
def test_an_encoding_adds_what_was_encoded(sizes, share, magnitude, seed):
    rng = np.random.default_rng(seed)
    arrays = [drawn(rng, size, round(size * share), magnitude) for size in sizes]
    others = [rng.standard_normal(size).astype(np.float32) for size in sizes]
    wanted = [a + b for a, b in zip(others, arrays, strict=True)]
    encoded = encodings(arrays)
    added(others, encoded)
    for mine, each in zip(others, wanted, strict=True):
        np.testing.assert_array_equal(mine, each)
    totals = count_encoded(arrays, 3)
    assert totals.entries == sum(map(np.count_nonzero, arrays))
    assert totals.elements == sum(sizes)
    assert totals.sent_bytes == 3 * sum(words.nbytes for words in encoded)
    assert totals.dense_bytes == 3 * 4 * sum(sizes)


@pytest.mark.parametrize("entries", [10, 100, 624, 625, 626, 1000, 2000])
def test_an_encoding_has_at_most_a_sixteenth_of_the_words(entries):
    """The bound of DL4J's EncodedGradientsAccumulatorTest, for 10,000 elements."""
    array = drawn(np.random.default_rng(1), 10_000, entries, 1e-3)
    (words,) = encodings([array])
    assert len(words) < 10_000 / 16 + 6
    assert len(words) <= entries + 4


def test_long_arrays_are_encoded_in_rounds_of_bounded_length():
    rng = np.random.default_rng(2)
    array = drawn(rng, 2 * ROUND_POSITIONS + 100, 300_000, 0.5)
    small = drawn(rng, 33, 5, 0.5).reshape(3, 11)
    encoded = encodings([array, small])
    assert len(encoded) == 3
    assert max(map(len, encoded)) <= round_words(array.size + 33, 2)
    assert round_words(array.size, 1) == 4 + ROUND_POSITIONS // 16
    result = [np.zeros_like(array), np.zeros_like(small)]
    added(result, encoded)
    np.testing.assert_array_equal(result[0], array)
    np.testing.assert_array_equal(result[1], small)


@pytest.mark.parametrize(
    "values",
    [[1, 2, 0], [1, np.nan, 0], [np.nan, 0, 0], [np.inf, 0, 0], [1, 0, -np.inf]],
)
def test_other_values_have_no_encoding(values):
    array = np.float32(values)
    with pytest.raises(ValueError, match="one finite magnitude"):
        encodings([array])
    with pytest.raises(ValueError, match="one finite magnitude"):
        count_encoded([array], 1)


def sparse_and_dense():
    rng = np.random.default_rng(3)
    for entries in (4, 40):
        arrays = [drawn(rng, 50, entries // 2, 2.0), drawn(rng, 90, entries // 2, 2.0)]
        yield arrays, encodings(arrays)[0]


@settings(max_examples=300, deadline=None)
@given(
    st.booleans(),
    st.integers(0, 13),
    st.integers(-(2**31), 2**31 - 1) | st.integers(-200, 200),
)
def test_a_damaged_encoding_is_refused_or_adds_one_magnitude(dense, at, value):
    """One word is replaced. What is accepted is the encoding of what it adds."""
    _, encoded = list(sparse_and_dense())[dense]
    words = np.zeros(round_words(140, 2), np.int32)
    words[: len(encoded)] = encoded
    words[at % len(encoded)] = value
    result = [np.zeros(50, np.float32), np.zeros(90, np.float32)]
    (window,) = encoded_rounds(result)
    try:
        window.add(words)
    except ValueError:
        assert not any(each.any() for each in result)
    else:
        (again,) = encodings(result)
        np.testing.assert_array_equal(again, words[: len(again)])


def test_an_encoding_that_ends_early_is_refused():
    for arrays, encoded in sparse_and_dense():
        (window,) = encoded_rounds(arrays)
        with pytest.raises(ValueError, match="too short"):
            window.add(encoded[:-1])
