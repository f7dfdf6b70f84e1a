"""Layers of text and categories compute what Keras's compute."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
keras = pytest.importorskip("keras", reason="needs Keras: tox run -e parity")
tf = pytest.importorskip("tensorflow", reason="needs TensorFlow: tox run -e parity")

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]
BOTH = keras.layers, mc.nn.layers

WORDS = st.text("abcé .,!XY\t'", max_size=12)
TEXTS = st.lists(WORDS, min_size=1, max_size=6)


def array(result):
    return keras.ops.convert_to_numpy(result) if keras.ops.is_tensor(result) else result


def results(name, data, adapted=None, **options):
    """What both layers give, and their vocabularies; None for an error."""
    found = []
    for layers in BOTH:
        try:
            warnings.simplefilter("ignore")  # Keras's own; tests restore the filters
            layer = getattr(layers, name)(**options)
            if adapted is not None:
                layer.adapt(adapted)
            result = np.asarray(array(layer(data)))
            words = layer.get_vocabulary() if hasattr(layer, "get_vocabulary") else ()
            found.append((result, [*words]))
        except Exception:
            found.append(None)
    return found


def same(found):
    (one, words), (other, others) = found
    assert words == others
    assert one.shape == other.shape
    if other.dtype.kind == "U":
        assert one.tolist() == other.tolist()
        return
    assert one.dtype.kind == other.dtype.kind
    np.testing.assert_allclose(other, one, rtol=1e-6)


MODES = st.sampled_from(["int", "multi_hot", "count", "tf_idf"])


@given(
    TEXTS,
    TEXTS,
    MODES,
    st.sampled_from(
        ["lower_and_strip_punctuation", "lower", "strip_punctuation", None]
    ),
    st.sampled_from(["whitespace", "character", None]),
    st.sampled_from([None, 2, (2,), (1, 3)]),
    st.sampled_from([None, 4, 30]),
)
@settings(deadline=None, max_examples=25)
def test_texts(seen, texts, mode, standardize, split, ngrams, most):
    if split is None:
        ngrams = None  # Keras's op of groups needs words
    options = {
        "output_mode": mode,
        "standardize": standardize,
        "split": split,
        "ngrams": ngrams,
        "max_tokens": most,
    }
    if mode == "int":
        options["output_sequence_length"] = 5
    given_seen, given_texts = (np.array(each)[:, None] for each in (seen, texts))
    found = results("TextVectorization", given_texts, given_seen, **options)
    if found == [None, None]:
        return  # such as of texts without words
    same(found)


def test_texts_of_a_vocabulary():
    options = {"vocabulary": ["earth", "wind", "and", "fire"]}
    texts = np.array(["wind and FIRE!", "earth, water", ""])
    same(results("TextVectorization", texts, **options))
    same(results("TextVectorization", texts, output_mode="count", **options))
    weights = {"idf_weights": [0.5, 1.0, 2.0, 3.0], "output_mode": "tf_idf"}
    same(results("TextVectorization", texts, **options, **weights))
    padded = {"max_tokens": 9, "pad_to_max_tokens": True, "output_mode": "multi_hot"}
    same(results("TextVectorization", texts, **options, **padded))


@given(
    st.lists(st.lists(WORDS, min_size=2, max_size=2), min_size=1, max_size=5),
    st.lists(st.lists(WORDS, min_size=2, max_size=2), min_size=1, max_size=5),
    st.sampled_from(["int", "one_hot", "multi_hot", "count", "tf_idf"]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([None, "a"]),
    st.sampled_from([None, 4]),
    st.sampled_from([None, 7, (3, 2**62)]),
)
@settings(deadline=None, max_examples=25)
def test_strings(seen, data, mode, unknown, mask, most, salt):
    found = results(
        "StringLookup",
        np.array(data),
        np.array(seen),
        output_mode=mode,
        num_oov_indices=unknown,
        mask_token=mask,
        max_tokens=most,
        salt=salt,
    )
    if None in [each and "result" for each in found]:
        # Keras makes an empty vocabulary of special tokens alone.
        assert found[1] is None
        assert found[0] is None or len(found[0][1]) <= unknown + (mask is not None)
        return
    same(found)


@given(
    st.lists(st.integers(-5, 9), min_size=1, max_size=8),
    st.lists(st.integers(-50, 90), min_size=1, max_size=8),
    st.sampled_from(["int", "one_hot", "multi_hot", "count"]),
    st.sampled_from([1, 3]),
    st.sampled_from([None, 0]),
    st.sampled_from(["floormod", "farmhash"]),
)
@settings(deadline=None, max_examples=25)
def test_integers(seen, data, mode, unknown, mask, method):
    found = results(
        "IntegerLookup",
        np.array(data),
        np.array(seen),
        output_mode=mode,
        num_oov_indices=unknown,
        mask_token=mask,
        oov_method=method,
    )
    if found[1] is None:  # Keras makes an empty vocabulary
        assert set(seen) <= {0, -1}
        return
    same(found)


def test_inverted_lookups():
    data = np.array([0, 3, 1, 9])
    same(results("StringLookup", data, vocabulary=list("abc"), invert=True))
    same(results("IntegerLookup", data, vocabulary=[7, 8], invert=True))
    options = {"vocabulary": ["[UNK]", "b", "c"], "invert": True}
    same(results("StringLookup", data, **options))


@given(
    st.lists(st.text(max_size=90), min_size=1, max_size=6),
    st.integers(1, 1000),
    st.sampled_from([None, 5, (2**63 - 1, 3)]),
    st.sampled_from(["int", "one_hot", "multi_hot", "count"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_hashing(texts, bins, salt, mode, masked):
    texts = [text.replace("\0", "0") for text in texts]
    found = results(
        "Hashing",
        np.array(texts),
        num_bins=bins,
        salt=salt,
        output_mode=mode,
        mask_value=texts[0] if masked else None,
    )
    same(found)


@pytest.mark.parametrize("length", [*range(70), 127, 128, 129, 191, 192, 193, 1000])
def test_fingerprints_of_each_length(length):
    text = "".join(chr(33 + n * 7 % 90) for n in range(length))
    same(results("Hashing", np.array([text, text[::-1]]), num_bins=2**31 - 1))
    same(results("Hashing", np.array([text]), num_bins=2**31 - 1, salt=(11, 2**40)))


def test_hashing_of_numbers():
    for data in (np.arange(-5, 40), np.arange(12).reshape(4, 3), np.arange(5.0) * 1.7):
        same(results("Hashing", data, num_bins=7))
        same(results("Hashing", data, num_bins=7, mask_value=3))


@given(
    st.lists(st.tuples(WORDS, st.integers(-9, 9), WORDS), min_size=1, max_size=6),
    st.integers(1, 1000),
    st.sampled_from(["int", "one_hot"]),
    st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_crossings(rows, bins, mode, flat):
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    if not flat:
        columns = [column[:, None] for column in columns]
    same(results("HashedCrossing", tuple(columns), num_bins=bins, output_mode=mode))


@pytest.mark.parametrize("mode", ["multi_hot", "one_hot", "count"])
@pytest.mark.parametrize(
    "data", [[3, 2, 0, 1], [[0, 1], [0, 0], [1, 2], [3, 1]], [[0], [3]], 2]
)
def test_categories(mode, data):
    same(results("CategoryEncoding", np.array(data), num_tokens=4, output_mode=mode))


def test_weighted_categories():
    data, weights = np.array([[0, 1], [0, 0]]), np.array([[0.1, 0.2], [0.3, 0.4]])
    found = [
        np.asarray(
            array(
                layers.CategoryEncoding(num_tokens=3, output_mode="count")(
                    data, count_weights=weights
                )
            )
        )
        for layers in BOTH
    ]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-6)


@given(
    st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=60),
    st.integers(1, 9),
    st.sampled_from([0.01, 0.1, 0.3]),
    st.sampled_from(["int", "one_hot"]),
)
@settings(deadline=None, max_examples=40)
def test_discretization(numbers, bins, epsilon, mode):
    data = np.array(numbers, np.float32)
    options = {"num_bins": bins, "epsilon": epsilon, "output_mode": mode}
    layers = [each.Discretization(**options) for each in BOTH]
    for layer in layers:
        layer.adapt(data)
    theirs, ours = layers
    np.testing.assert_allclose(ours.bin_boundaries, theirs.bin_boundaries, rtol=1e-5)
    if len(set(theirs.bin_boundaries)) == len(theirs.bin_boundaries):
        bounds = {"bin_boundaries": theirs.bin_boundaries, "output_mode": mode}
        same(results("Discretization", data, **bounds))


def test_discretization_of_batches():
    batches = np.random.default_rng(0).normal(size=(20, 50, 3)).astype(np.float32)
    found = []
    for layers in BOTH:
        layer = layers.Discretization(num_bins=8)
        layer.adapt(iter(batches))
        found.append(layer.bin_boundaries)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)


def test_vocabularies_of_datasets():
    texts = np.array(["a b", "b c", "c c d", "e"])
    theirs = keras.layers.TextVectorization(output_mode="tf_idf")
    theirs.adapt(tf.data.Dataset.from_tensor_slices(texts).batch(3))
    ours = mc.nn.layers.TextVectorization(output_mode="tf_idf")
    ours.adapt(mc.data.Dataset.from_tensor_slices(texts).batch(3))
    assert theirs.get_vocabulary() == ours.get_vocabulary()
    np.testing.assert_allclose(ours(texts), array(theirs(texts)), rtol=1e-6)
