"""Layers of text and categories, as steps of a pipeline of data."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memcfg as mc

layers, Dataset = mc.nn.layers, mc.data.Dataset


@given(st.lists(st.text("abc", min_size=1, max_size=2), min_size=1, max_size=30))
def test_a_vocabulary_is_sorted_by_counts(tokens):
    layer = layers.StringLookup()
    layer.adapt(tokens)
    counts = Counter(tokens)
    order = sorted(counts, key=lambda token: (counts[token], token), reverse=True)
    assert layer.get_vocabulary() == ["[UNK]", *order]
    assert layer.vocabulary_size() == len(order) + 1
    assert layer(tokens).tolist() == [order.index(token) + 1 for token in tokens]
    assert layer(["zzz"]).tolist() == [0]
    inverse = layers.StringLookup(vocabulary=layer.get_vocabulary(), invert=True)
    assert inverse(layer(tokens)).tolist() == tokens


def test_texts_in_a_pipeline(tmp_path):
    texts = ["good film", "bad film", "good good", "bad"]
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts))
    lines = mc.data.TextLineDataset(path)
    layer = layers.TextVectorization(output_sequence_length=3)
    layer.adapt(lines.batch(3))
    assert layer.get_vocabulary() == ["", "[UNK]", "good", "film", "bad"]
    single = list(lines.map(layer))
    assert [row.tolist() for row in single][:2] == [[2, 3, 0], [4, 3, 0]]
    (batch,) = lines.batch(4).map(layer)
    assert batch.tolist() == [row.tolist() for row in single]
    labels = np.array([1.0, 0.0, 1.0, 0.0], np.float32)
    model = mc.nn.Sequential(
        [
            mc.nn.Embedding(layer.vocabulary_size(), 8, mask_zero=True),
            mc.nn.GlobalAveragePooling1D(),
            mc.nn.Dense(1),
        ]
    )
    loss = mc.nn.losses.BinaryCrossentropy(from_logits=True)
    model.compile(mc.nn.Adam(0.1), loss)
    truth = Dataset.from_tensors(labels[:, None])
    pairs = Dataset.zip(lines.batch(4).map(layer), truth)
    history = model.fit(pairs, epochs=30, verbose=0)
    assert history.history["loss"][-1] < 0.1


def test_functions_of_ones_own():
    layer = layers.TextVectorization(
        standardize=lambda texts: np.char.upper(texts),
        split=lambda texts: [text.split("-") for text in texts.tolist()],
        vocabulary=["A", "B"],
    )
    assert layer(["a-b", b"b-c-a"]).tolist() == [[2, 3, 0], [3, 1, 2]]


MADE = {
    "StringLookup": {"vocabulary": ["a", "b"]},
    "IntegerLookup": {"vocabulary": [5, 7]},
    "TextVectorization": {"vocabulary": ["a", "b"], "ngrams": 2},
    "Hashing": {"num_bins": 5, "salt": 3},
    "HashedCrossing": {"num_bins": 5},
    "CategoryEncoding": {"num_tokens": 5},
    "Discretization": {"bin_boundaries": [1.0, 2.0]},
}
DATA = {
    "StringLookup": ["b", "c"],
    "IntegerLookup": [7, 5, 1],
    "TextVectorization": ["a b", "b"],
    "Hashing": ["a", "b"],
    "HashedCrossing": (["a", "b"], [1, 2]),
    "CategoryEncoding": [[1, 2], [4, 4]],
    "Discretization": [0.5, 1.5, 7.0],
}


@pytest.mark.parametrize("name", MADE)
def test_copies(name):
    layer = getattr(layers, name)(**MADE[name])
    expected = layer(DATA[name])
    for other in (
        copy.deepcopy(layer),
        pickle.loads(pickle.dumps(layer)),
        type(layer).from_config(layer.get_config()),
    ):
        assert np.array_equal(other(DATA[name]), expected)
    assert getattr(mc.nn.layers, name) is type(layer)


def test_crosses_are_no_parts_of_models():
    layer = layers.HashedCrossing(num_bins=5)
    with pytest.raises(TypeError, match=r"HashedCrossing computes on arrays"):
        layer(mc.nn.Input((2,)))


TEXTS = np.array([["a b"], ["b, a c"], ["c"], ["q b"]])
FIRST = {
    "int": lambda: layers.TextVectorization(
        vocabulary=["a", "b"], output_sequence_length=3
    ),
    "count": lambda: layers.TextVectorization(
        vocabulary=["a", "b"], output_mode="count"
    ),
    "words": lambda: layers.StringLookup(vocabulary=["c", "a b"]),
    "one_hot": lambda: layers.StringLookup(vocabulary=["c"], output_mode="one_hot"),
    "hash": lambda: layers.Hashing(5),
    "bags": lambda: layers.Hashing(5, output_mode="multi_hot"),
}


def text_model(kind):
    nn = mc.nn
    first = FIRST[kind]()
    start = nn.Input((1,), dtype="string", name="text")
    y = first(start)
    if y.dtype == "int32":
        y = nn.Flatten()(nn.Embedding(9, 2)(y))
    return nn.Model(start, nn.Dense(2)(y)), first


@pytest.mark.parametrize("kind", sorted(FIRST))
def test_a_model_that_takes_text_computes_what_its_layers_do(kind, tmp_path):
    model, first = text_model(kind)
    inner = first(TEXTS)
    wanted = model.predict(TEXTS, verbose=0)
    kernel = model.layers[-1].get_weights()[0]
    rows = inner
    if len(model.layers) > 3:
        rows = model.layers[2].get_weights()[0][inner].reshape(4, -1)
    np.testing.assert_allclose(wanted, rows @ kernel, rtol=1e-5, atol=1e-6)
    batches = Dataset.from_tensor_slices(TEXTS).batch(3)
    for each in (TEXTS[:, 0], {"text": TEXTS}, TEXTS.astype(object)):
        found = model.predict(each, verbose=0)
        np.testing.assert_array_equal(found, wanted)
    found = model.predict(batches, verbose=0)  # kernels of other batches
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_array_equal(model(TEXTS), wanted)
    for end in ("m.memcfg", "m.keras"):
        if end == "m.keras":
            pytest.importorskip("h5py")
        model.save(tmp_path / end)
        other = mc.nn.models.load_model(tmp_path / end)
        np.testing.assert_array_equal(other.predict(TEXTS, verbose=0), wanted)
    for other in (copy.deepcopy(model), mc.nn.models.clone_model(model)):
        other.set_weights(model.get_weights())
        np.testing.assert_array_equal(other.predict(TEXTS, verbose=0), wanted)


def test_a_model_that_takes_text_trains():
    labels = np.array([0, 1, 1, 0])
    histories = []
    for streamed in (False, True):
        model, _ = text_model("int")
        for layer in model.layers[2:]:
            shapes = [w.shape for w in layer.weights]
            layer.set_weights(
                [np.linspace(-1, 1, np.prod(s)).reshape(s) for s in shapes]
            )
        loss = mc.nn.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(mc.nn.Adam(0.1), loss)
        data = (TEXTS, labels)
        if streamed:
            given = {"x": Dataset.from_tensor_slices(data).batch(2)}
        else:
            given = {"x": TEXTS, "y": labels, "batch_size": 2, "shuffle": False}
        histories.append(model.fit(**given, epochs=3, verbose=0).history["loss"])
    assert histories[0] == histories[1]
    assert histories[0][-1] < histories[0][0]


def test_text_that_cannot_be_prepared_is_refused():
    nn, text = mc.nn, mc.nn.Input((1,), dtype="string")
    one, other = (layers.StringLookup(vocabulary=["a"]) for _ in range(2))
    for error, match, make in (
        (
            TypeError,
            "takes numbers, and 'input.* gives text",
            lambda: nn.Dense(2)(text),
        ),
        (
            ValueError,
            "gives text, and a model gives numbers",
            lambda: nn.Model(text, text),
        ),
        (
            ValueError,
            "is read by .* an Input for each",
            lambda: nn.Model(text, nn.Concatenate()([one(text), other(text)])),
        ),
        (ValueError, "has no vocabulary", lambda: layers.StringLookup()(text)),
        (
            ValueError,
            "needs output_sequence_length",
            lambda: layers.TextVectorization(vocabulary=["a"])(text),
        ),
        (
            ValueError,
            "has an axis of any length",
            lambda: one(nn.Input((None,), dtype="string")),
        ),
        (
            TypeError,
            "computes on arrays, not on what the layer",
            lambda: one(nn.Dense(2)(nn.Input((2,)))),
        ),
        (
            TypeError,
            "starts with Input",
            lambda: nn.Sequential([one, nn.Embedding(3, 2)]).predict(TEXTS),
        ),
    ):
        with pytest.raises(error, match=match):
            make()
    inner, _ = text_model("words")
    start = nn.Input((1,))
    with pytest.raises(ValueError, match="not of a model or layer within one"):
        nn.Model(start, inner(start)).predict(np.ones((2, 1)), verbose=0)
    with pytest.raises(TypeError, match="takes text, not float64"):
        inner.predict(np.ones((2, 1)), verbose=0)


def test_integers_of_64_bits_are_looked_up_whole():
    nn, large = mc.nn, 2**40
    start = nn.Input((2,), dtype="int64")
    y = layers.IntegerLookup(vocabulary=[large, 5], output_mode="multi_hot")(start)
    model = nn.Model(start, nn.Dense(1, use_bias=False)(y))
    model.set_weights([np.array([[1.0], [10.0], [100.0]], "f4")])
    found = model.predict(np.array([[large, 5], [7, 5]]), verbose=0)
    assert found.ravel().tolist() == [110.0, 101.0]
    plain = nn.Sequential([nn.Input((1,), dtype="int64"), nn.Embedding(4, 1)])
    with pytest.raises(ValueError, match="to 2147483647"):
        plain.predict(np.array([[large]]), verbose=0)


def test_adapted_layers_are_copied_with_what_they_found():
    for layer, data in (
        (layers.StringLookup(), ["x", "y", "x"]),
        (layers.Discretization(num_bins=3), np.arange(30.0)),
        (layers.TextVectorization(output_mode="tf_idf"), ["a b", "b c"]),
    ):
        layer.adapt(data)
        other = type(layer).from_config(layer.get_config())
        assert np.array_equal(other(data), layer(data))


def test_rows():
    encoding = layers.CategoryEncoding(num_tokens=3, output_mode="count")
    assert encoding([[0, 0, 2]]).tolist() == [[2, 0, 1]]
    assert encoding([[0, 2]], count_weights=[[0.5, 2.0]]).tolist() == [[0.5, 0, 2]]
    multi = layers.IntegerLookup(vocabulary=[5, 7], output_mode="multi_hot")
    assert multi([[7, 9], [5, 5]]).tolist() == [[1, 0, 1], [0, 1, 0]]
    padded = layers.StringLookup(
        vocabulary=["a"], max_tokens=4, pad_to_max_tokens=True, output_mode="one_hot"
    )
    assert padded(["a", "b"]).tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    masked = layers.StringLookup(
        vocabulary=["a", "b"], mask_token="", output_mode="count"
    )
    assert masked([["a", "", "", "b", "a"]]).tolist() == [[0, 2, 1]]


def test_a_file_of_tokens(tmp_path):
    path = tmp_path / "tokens.txt"
    path.write_text("5\n7\n")
    assert layers.IntegerLookup(vocabulary=path)([7]).tolist() == [2]
    assert layers.StringLookup(vocabulary=str(path))(["7"]).tolist() == [2]


@given(
    st.lists(st.floats(-9, 9, width=32), min_size=60, max_size=300, unique=True),
    st.integers(2, 6),
)
def test_bins_have_about_as_many_numbers(numbers, bins):
    layer = layers.Discretization(num_bins=bins, epsilon=0.01)
    layer.adapt(np.array(numbers, np.float32))
    counts = np.bincount(layer(np.array(numbers, np.float32)), minlength=bins)
    assert len(layer.bin_boundaries) == bins - 1
    assert counts.max() - counts.min() <= 0.12 * len(numbers) + 3


def test_a_hash_is_even_and_its_salt_matters():
    words = [f"word{n}" for n in range(4000)]
    counts = np.bincount(layers.Hashing(num_bins=8)(words))
    assert counts.min() > 400
    assert counts.max() < 600
    salted = [layers.Hashing(num_bins=1000, salt=salt)(words) for salt in (None, 1, 2)]
    assert all((a != b).mean() > 0.99 for a, b in pairwise(salted))


@pytest.mark.parametrize(
    ("call", "error", "told"),
    [
        (lambda: layers.StringLookup()(["a"]), ValueError, "call adapt, or give one"),
        (lambda: layers.StringLookup().adapt([]), ValueError, "got no tokens"),
        (
            lambda: layers.StringLookup(vocabulary=["a"]).adapt(["b"]),
            ValueError,
            "cannot be adapted",
        ),
        (lambda: layers.StringLookup(vocabulary=["a", "a"]), ValueError, "repeats"),
        (lambda: layers.StringLookup(vocabulary=[]), ValueError, "is empty"),
        (lambda: layers.StringLookup(max_tokens=1), ValueError, "greater than 1"),
        (
            lambda: layers.StringLookup(max_tokens=2, vocabulary=["a", "b"]),
            ValueError,
            "3 tokens, and max_tokens is 2",
        ),
        (
            lambda: layers.StringLookup(vocabulary=["a", "m"], mask_token="m"),
            ValueError,
            "special token",
        ),
        (
            lambda: layers.StringLookup(num_oov_indices=0, vocabulary=["a"])(["b"]),
            ValueError,
            r"\['b'\] are not in the vocabulary",
        ),
        (lambda: layers.StringLookup(output_mode="hot"), ValueError, "output_mode"),
        (
            lambda: layers.StringLookup(invert=True, output_mode="count"),
            ValueError,
            "invert needs",
        ),
        (
            lambda: layers.StringLookup(vocabulary=["a"], output_mode="tf_idf"),
            ValueError,
            "goes with idf_weights",
        ),
        (lambda: layers.StringLookup(pad_to_max_tokens=True), ValueError, "max_tokens"),
        (lambda: layers.StringLookup(sparse=True), TypeError, "arrays are dense"),
        (lambda: layers.StringLookup(vocabulary=["a"])([1]), TypeError, "takes text"),
        (lambda: layers.IntegerLookup(vocabulary=[1])([1.5]), TypeError, "integers"),
        (lambda: layers.IntegerLookup(salt=3), ValueError, "farmhash"),
        (
            lambda: layers.IntegerLookup(vocabulary_dtype="int32"),
            ValueError,
            "is int64",
        ),
        (lambda: layers.TextVectorization(ragged=True), TypeError, "arrays are dense"),
        (lambda: layers.TextVectorization(split="words"), ValueError, "unknown split"),
        (lambda: layers.TextVectorization(ngrams=0), ValueError, "ngrams"),
        (
            lambda: layers.TextVectorization(vocabulary=["a"])([["a", "b"]]),
            ValueError,
            r"shape \(\), \(n,\) or \(n, 1\)",
        ),
        (
            lambda: layers.TextVectorization(
                output_mode="count", output_sequence_length=3
            ),
            ValueError,
            "goes with output_mode='int'",
        ),
        (lambda: layers.Hashing(num_bins=0), ValueError, "must be positive"),
        (lambda: layers.Hashing(num_bins=3, salt=(1, 2, 3)), ValueError, "salt"),
        (lambda: layers.Hashing(num_bins=3)([True]), TypeError, "not bool"),
        (lambda: layers.HashedCrossing(3)(["a"]), ValueError, "at least two"),
        (lambda: layers.HashedCrossing(3)((["a"], [1, 2])), ValueError, "one shape"),
        (lambda: layers.HashedCrossing(3)(([1.5], [1])), TypeError, "text and integ"),
        (lambda: layers.CategoryEncoding(), ValueError, "needs num_tokens"),
        (lambda: layers.CategoryEncoding(3)([3]), ValueError, "in 0 to 2"),
        (lambda: layers.CategoryEncoding(3)(["a"]), TypeError, "takes integers"),
        (
            lambda: layers.CategoryEncoding(3)([1], count_weights=[1]),
            ValueError,
            "goes with output_mode='count'",
        ),
        (lambda: layers.Discretization(), ValueError, "bin_boundaries or num_bins"),
        (lambda: layers.Discretization([2, 1]), ValueError, "increasing"),
        (lambda: layers.Discretization([1]).adapt([1]), ValueError, "be adapted"),
        (lambda: layers.Discretization(num_bins=2)([1]), ValueError, "call adapt"),
        (lambda: layers.Discretization(num_bins=2, epsilon=2), ValueError, "epsilon"),
    ],
)
def test_wrong_use(call, error, told):
    with pytest.raises(error, match=told):
        call()


def test_a_model_discretizes_as_on_arrays_and_keeps_its_boundaries():
    layer = layers.Discretization(num_bins=4)
    layer.adapt(np.arange(100.0))
    x = mc.nn.Input((6,))
    model = mc.nn.Model(x, layer(x))
    data = np.array([[np.nan, np.inf, -np.inf, 25.0, 50.0, -0.0]], np.float32)
    np.testing.assert_array_equal(model.predict(data, verbose=0), layer(data))
    assert layer(data)[0, 0] == 3
    with pytest.raises(ValueError, match="in a model, whose boundaries would stay"):
        layer.adapt(np.arange(1000.0))
