"""Vocabularies in files: what Keras has adapted gives its numbers here, and back."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from beside_keras import MARKS, keras

import memcfg as mc
from memcfg.errors import FormatError

pytestmark = MARKS
pytest.importorskip("h5py")
tf = pytest.importorskip("tensorflow")
nn = mc.nn
TEXTS = np.array(["The cat sat", "a cat, a hat", "sat on the hat", "zebra"])[:, None]
NUMBERS = np.array([[7, 7, 3], [3, 9, 4], [7, 12, -5], [1, 1, 1]], np.int64)


def text_layers(k, mode):
    length = {"output_sequence_length": 4} if mode == "int" else {}
    return [k.layers.TextVectorization(output_mode=mode, **length)], TEXTS


def word_layers(k, mode):
    return [k.layers.StringLookup(num_oov_indices=2, output_mode=mode)], np.array(
        [["a", "b"], ["b", "c"], ["b", "q"]]
    )


def number_layers(k, mode):
    return [k.layers.IntegerLookup(output_mode=mode, max_tokens=5)], NUMBERS


def padded_layers(k, mode):
    more = {} if mode == "int" else {"pad_to_max_tokens": True}
    return [k.layers.IntegerLookup(9, output_mode=mode, **more)], NUMBERS


KINDS = {
    "text": text_layers,
    "words": word_layers,
    "numbers": number_layers,
    "padded": padded_layers,
}


def model_of(k, kind, mode):
    """Return a model whose first layer has adapted, and its data."""
    (layer,), data = KINDS[kind](k, mode)
    layer.adapt(data)
    dtype = "int64" if data.dtype.kind == "i" else "string"
    rest = [k.layers.Dense(3)]
    if mode == "int":
        rest = [k.layers.Embedding(20, 3), k.layers.GlobalAveragePooling1D()]
    start = k.Input(data.shape[1:], dtype=dtype)
    return k.Sequential([start, layer, *rest]), data


def predicted(model, data):
    """Predict; on PyTorch, Keras computes text only layer by layer."""
    if data.dtype.kind != "U" or isinstance(model, nn.Model):
        return model.predict(data, verbose=0)
    tensor = tf.constant(data)
    for layer in model.layers:
        tensor = layer(tensor)
    return keras.ops.convert_to_numpy(tensor)


def agree(ours, theirs, data):
    found, wanted = predicted(ours, data), predicted(theirs, data)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode", ["int", "multi_hot", "count", "tf_idf"])
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_files_go_both_ways(kind, mode, tmp_path):
    theirs, data = model_of(keras, kind, mode)
    theirs.save(tmp_path / "theirs.keras")
    ours = nn.models.load_model(tmp_path / "theirs.keras")
    assert ours.layers[0].get_vocabulary() == theirs.layers[0].get_vocabulary()
    agree(ours, theirs, data)
    ours.save(tmp_path / "again.keras")
    agree(ours, keras.models.load_model(tmp_path / "again.keras"), data)
    mine, data = model_of(nn, kind, mode)
    mine.save(tmp_path / "mine.keras")
    agree(mine, keras.models.load_model(tmp_path / "mine.keras"), data)
    agree(nn.models.load_model(tmp_path / "mine.keras"), mine, data)


def test_an_attribute_of_a_model_of_ones_own(tmp_path):
    def made(k):
        @k.saving.register_keras_serializable("attributes")
        class Tagger(k.Model):
            def __init__(self, **options):
                super().__init__(**options)
                self.words = k.layers.StringLookup()
                self.table = k.layers.Embedding(9, 2)

            def call(self, x):
                return self.table(x)

        return Tagger

    theirs = made(keras)()
    theirs.words.adapt(np.array(["x", "y", "x"]))
    theirs(np.array([[1, 2]]))
    theirs.save(tmp_path / "t.keras")
    kind = made(nn)
    ours = nn.models.load_model(tmp_path / "t.keras", custom_objects={"Tagger": kind})
    assert ours.words.get_vocabulary() == ["[UNK]", "x", "y"]
    agree(ours, theirs, np.array([[1, 2], [0, 3]]))


def test_a_layer_read_from_a_file_may_adapt_again(tmp_path):
    theirs, _ = model_of(keras, "numbers", "int")
    theirs.save(tmp_path / "t.keras")
    layer = nn.models.load_model(tmp_path / "t.keras").layers[0]
    layer.adapt(np.array([4, 4, 8]))
    assert layer.get_vocabulary() == [-1, 4, 8]


@pytest.mark.parametrize("text", [b"-1\n7", b"-1\n7\nseven\n1\n9", b"-1\n7\n7\n3\n1"])
def test_words_that_do_not_fit_are_refused(text, tmp_path):
    theirs, _ = model_of(keras, "numbers", "int")
    theirs.save(tmp_path / "t.keras")
    with zipfile.ZipFile(tmp_path / "t.keras") as source:
        parts = {each: source.read(each) for each in source.namelist()}
    (name,) = (each for each in parts if each.startswith("assets/"))
    with zipfile.ZipFile(tmp_path / "d.keras", "w") as target:
        for each, content in parts.items():
            target.writestr(each, text if each == name else content)
    with pytest.raises(FormatError, match=r"layer 'integer_lookup"):
        nn.models.load_model(tmp_path / "d.keras")
