"""Layers that join tensors and move elements, and operators, against NumPy."""

from __future__ import annotations

from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import memcfg as mc

nn = mc.nn


def samples(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def results(function, *arrays):
    """What a function of symbolic tensors gives for arrays of samples."""
    flat = np.concatenate([x.reshape(len(x), -1) for x in arrays], axis=1)
    h = nn.Input(flat.shape[1:])
    tensors, start = [], 0
    for x in arrays:
        size = prod(x.shape[1:])
        tensors.append(nn.Reshape(x.shape[1:])(h[:, start : start + size]))
        start += size
    output = function(*tensors)
    model = nn.Model(h, output)
    found = model.predict(flat, verbose=0)
    model.close()
    assert found.shape[1:] == output.shape[1:]
    return found


def check(function, wanted, *arrays):
    np.testing.assert_allclose(results(function, *arrays), wanted, rtol=1e-5, atol=1e-6)


def aligned(x, rank):
    """As Keras aligns samples of fewer axes: new ones come after the batch."""
    return x.reshape(len(x), *[1] * (rank - x.ndim), *x.shape[1:])


MERGES = {
    "Add": lambda *xs: sum(xs),
    "Multiply": lambda *xs: np.multiply.reduce(np.broadcast_arrays(*xs)),
    "Average": lambda *xs: sum(xs) / len(xs),
    "Maximum": lambda *xs: np.maximum.reduce(np.broadcast_arrays(*xs)),
    "Minimum": lambda *xs: np.minimum.reduce(np.broadcast_arrays(*xs)),
    "Subtract": lambda a, b: a - b,
}


@given(
    name=st.sampled_from(sorted(MERGES)),
    wide=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    data=st.data(),
)
@settings(max_examples=25, deadline=None)
def test_merges_are_numpys(name, wide, data):
    count = 2 if name == "Subtract" else data.draw(st.integers(2, 4))
    arrays = []
    for seed in range(count):
        sample = [data.draw(st.sampled_from([1, n])) for n in wide] if seed else wide
        drop = data.draw(st.integers(0, len(sample) - 1)) if seed else 0
        arrays.append(samples(3, *sample[drop:], seed=seed))
    wanted = MERGES[name](*[aligned(x, 1 + len(wide)) for x in arrays])
    check(lambda *tensors: getattr(nn, name)()(list(tensors)), wanted, *arrays)
    function = getattr(nn, name.lower())
    assert function([nn.Input((2,)), nn.Input((2,))], name="m").name == "m"


@given(
    rests=st.tuples(*[st.lists(st.integers(1, 3), max_size=2)] * 2),
    data=st.data(),
    normalize=st.booleans(),
)
@settings(max_examples=20, deadline=None)
def test_dot_is_numpys(rests, data, normalize):
    length, axes, arrays = data.draw(st.integers(1, 4)), [], []
    for seed, rest in enumerate(rests):
        place = data.draw(st.integers(0, len(rest)))
        arrays.append(samples(3, *rest[:place], length, *rest[place:], seed=seed))
        axes.append(place + 1 - (len(rest) + 2) * data.draw(st.booleans()))
    moved = [np.moveaxis(x, axis, -1) for x, axis in zip(arrays, axes, strict=True)]
    if normalize:
        moved = [x / np.linalg.norm(x, axis=-1, keepdims=True) for x in moved]
    wanted = np.stack(
        [np.tensordot(a, b, (-1, -1)) for a, b in zip(*moved, strict=True)]
    )
    if wanted.ndim == 1:
        wanted = wanted[:, None]
    check(lambda a, b: nn.Dot(axes, normalize=normalize)([a, b]), wanted, *arrays)


def test_dot_with_one_axis():
    x, y = nn.Input((4,)), nn.Input((4,))
    assert nn.dot([x, y]).shape == (None, 1)
    assert nn.dot([x, y], axes=1, normalize=True).shape == (None, 1)
    assert nn.concatenate([x, y], axis=1, name="both").shape == (None, 8)


IMAGES = samples(3, 4, 5, 2)
SEQUENCES = samples(3, 5, 2)
VECTORS = samples(3, 4)


def padded(x, *sides):
    return np.pad(x, [(0, 0), *sides, (0, 0)])


@pytest.mark.parametrize(
    ("make", "x", "wanted"),
    [
        (lambda: nn.Reshape((10, 4)), IMAGES, IMAGES.reshape(3, 10, 4)),
        (lambda: nn.Reshape((-1, 5)), IMAGES, IMAGES.reshape(3, 8, 5)),
        (lambda: nn.Reshape((-1,)), IMAGES, IMAGES.reshape(3, 40)),
        (lambda: nn.Permute((3, 1, 2)), IMAGES, IMAGES.transpose(0, 3, 1, 2)),
        (lambda: nn.Permute((2, 1)), SEQUENCES, SEQUENCES.transpose(0, 2, 1)),
        (lambda: nn.RepeatVector(3), VECTORS, VECTORS[:, None].repeat(3, axis=1)),
        (lambda: nn.ZeroPadding1D(), SEQUENCES, padded(SEQUENCES, (1, 1))),
        (lambda: nn.ZeroPadding1D((2, 0)), SEQUENCES, padded(SEQUENCES, (2, 0))),
        (lambda: nn.ZeroPadding2D(), IMAGES, padded(IMAGES, (1, 1), (1, 1))),
        (lambda: nn.ZeroPadding2D((0, 2)), IMAGES, padded(IMAGES, (0, 0), (2, 2))),
        (
            lambda: nn.ZeroPadding2D(((1, 0), (0, 3))),
            IMAGES,
            padded(IMAGES, (1, 0), (0, 3)),
        ),
        (lambda: nn.Cropping1D(), SEQUENCES, SEQUENCES[:, 1:-1]),
        (lambda: nn.Cropping1D((0, 2)), SEQUENCES, SEQUENCES[:, :-2]),
        (lambda: nn.Cropping2D(), IMAGES, IMAGES),
        (lambda: nn.Cropping2D(1), IMAGES, IMAGES[:, 1:-1, 1:-1]),
        (lambda: nn.Cropping2D(((1, 0), (2, 1))), IMAGES, IMAGES[:, 1:, 2:-1]),
        (lambda: nn.UpSampling1D(3), SEQUENCES, SEQUENCES.repeat(3, axis=1)),
        (
            lambda: nn.UpSampling2D((2, 3)),
            IMAGES,
            IMAGES.repeat(2, axis=1).repeat(3, axis=2),
        ),
        (lambda: nn.Rescaling(1 / 255, offset=-1), IMAGES, IMAGES / 255 - 1),
        (
            lambda: nn.Rescaling(0.5, np.arange(IMAGES.shape[-1])),
            IMAGES,
            IMAGES / 2 + np.arange(IMAGES.shape[-1]),
        ),
        (
            lambda: nn.Rescaling([[2], [3]], [1] * IMAGES.shape[-1]),
            IMAGES[:, :, :2],
            IMAGES[:, :, :2] * [[2], [3]] + 1,
        ),
    ],
)
def test_layers_that_move_elements(make, x, wanted):
    check(lambda tensor: make()(tensor), wanted, x)


def test_several_numbers_scale_data_of_their_shape():
    layer = nn.Rescaling([2.0, 3.0], -1)
    assert layer.get_config()["scale"] == [2.0, 3.0]
    found = layer(np.array([[1, 2]], np.uint8))
    np.testing.assert_array_equal(found, [[1, 5]])
    with pytest.raises(ValueError, match=r"scale of shape \(2,\) does not fit"):
        layer(nn.Input((3,)))
    with pytest.raises(TypeError, match="Rescaling: offset must be a number"):
        nn.Rescaling(1, ["a"])


def test_bilinear_is_a_line_between_centres():
    def enlarged(x, axis, factor):
        places = (np.arange(x.shape[axis] * factor) + 0.5) / factor - 0.5
        return np.apply_along_axis(
            lambda row: np.interp(places, np.arange(len(row)), row), axis, x
        )

    layer = nn.UpSampling2D((2, 3), interpolation="bilinear")
    check(layer, enlarged(enlarged(IMAGES, 1, 2), 2, 3), IMAGES)


POSITIVE = np.abs(IMAGES) + 0.5
OTHER = samples(3, 4, 1, 2, seed=1)


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a * b,
        lambda a, b: b / a,
        lambda a, b: a + 1,
        lambda a, b: 2 - a,
        lambda a, b: a - np.float32(0.5),
        lambda a, b: np.float64(3) * a,
        lambda a, b: np.array(3) * a,
        lambda a, b: a / 4,
        lambda a, b: 1 / a,
        lambda a, b: -a,
        lambda a, b: abs(b),
        lambda a, b: a**1,
        lambda a, b: b**2,
        lambda a, b: b**7,
        lambda a, b: a**-3,
        lambda a, b: a**0.5,
        lambda a, b: a**1.7,
        lambda a, b: (a + b) * (a - 2 * b) / (a * a),
        lambda a, b: a[:, 0],
        lambda a, b: a[:, -1, 2],
        lambda a, b: a[:, 1:3],
        lambda a, b: a[:, ::2, 1::3],
        lambda a, b: a[:, ::-1, 4:0:-2],
        lambda a, b: a[..., None],
        lambda a, b: a[..., 0],
        lambda a, b: a[:, None, ..., 1:],
        lambda a, b: a[:, 1, 1, 1],
        lambda a, b: a[:],
    ],
)
def test_operators_are_numpys(function):
    with np.errstate(all="ignore"):
        check(function, function(POSITIVE, OTHER), POSITIVE, OTHER)


def test_products_of_matrices():
    a, b = samples(3, 2, 4, 5), samples(3, 2, 5, 3, seed=1)
    check(lambda x, y: x @ y, a @ b, a, b)


def test_operators_name_layers_as_keras_does():
    x = nn.Input((4,))
    names = [h.node.layer.name.split("_")[0] for h in (x + x, x - x, x * x, x / x)]
    assert names == ["add", "subtract", "multiply", "divide"]
    assert (x[:, 0:2]).name.startswith("get_item")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x + np.ones(3), ValueError, "broadcast"),
        (lambda x: x + "1", TypeError, "unsupported operand"),
        (lambda x: x + True, TypeError, "unsupported operand"),
        (lambda x: x + nn.Input((2, 4)), ValueError, "the same rank"),
        (lambda x: x + nn.Input((3,)), ValueError, "can be broadcast"),
        (lambda x: x @ x, ValueError, "cannot multiply"),
        (lambda x: x[0], ValueError, "is the batch"),
        (lambda x: x[1:, 0], ValueError, "is the batch"),
        (lambda x: x[None], ValueError, "is the batch"),
        (lambda x: x[:, 4], IndexError, "out of range for axis 1"),
        (lambda x: x[:, 2:2], ValueError, "selects nothing"),
        (lambda x: x[:, 0, 0], IndexError, "too many indices"),
        (lambda x: x[..., ...], IndexError, "too many indices"),
        (lambda x: x[:, True], TypeError, "got True"),
        (lambda x: x[:, [0, 1]], TypeError, "integers, slices"),
        (iter, TypeError, "has no elements"),
    ],
)
def test_operators_that_mean_nothing(call, error, message):
    with pytest.raises(error, match=message):
        call(nn.Input((4,)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Reshape((5,))(nn.Input((4,))), "numbers of elements differ"),
        (lambda: nn.Reshape((3, -1))(nn.Input((4,))), "numbers of elements differ"),
        (lambda: nn.Reshape((-1, -1)), "one that may be -1"),
        (lambda: nn.Permute((0, 1)), "from 1"),
        (lambda: nn.Permute((2, 1))(nn.Input((4,))), "2 axes besides the batch"),
        (lambda: nn.RepeatVector(0), "n must be positive"),
        (lambda: nn.RepeatVector(2)(nn.Input((4, 4))), "vectors"),
        (lambda: nn.ZeroPadding2D((1, 2, 3)), "must have 2 entries"),
        (lambda: nn.ZeroPadding2D(((1, 2, 3), 1)), "one number or two"),
        (lambda: nn.ZeroPadding1D(-1), "zero or more"),
        (lambda: nn.ZeroPadding2D(1)(nn.Input((4, 4))), "images"),
        (lambda: nn.ZeroPadding1D(1)(nn.Input((4,))), "sequences"),
        (lambda: nn.Cropping1D(2)(nn.Input((4, 1))), "removes all"),
        (lambda: nn.Cropping2D(2)(nn.Input((4, 9, 1))), "removes all"),
        (lambda: nn.UpSampling2D(0), "must be positive"),
        (lambda: nn.UpSampling2D(interpolation="area"), "interpolation 'area'"),
        (lambda: nn.Dot((1, 2, 3)), "one integer or two"),
        (
            lambda: nn.dot([nn.Input((3,)), nn.Input((4,))]),
            "axes must have the same length",
        ),
        (lambda: nn.dot([nn.Input((3,))] * 2, axes=0), "axes of a sample"),
        (lambda: nn.add([nn.Input((3,)), nn.Input((4,))]), "can be broadcast"),
        (lambda: nn.subtract([nn.Input((3,))] * 3), "expects 2 inputs, got 3"),
    ],
)
def test_what_cannot_be_honoured(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_an_embedding_looks_rows_up_and_learns_them():
    indices = np.random.default_rng(0).integers(0, 7, (6, 5)).astype(np.float32)
    layer = nn.Embedding(7, 4, name="table")
    x = nn.Input((5,))
    model = nn.Model(x, nn.Flatten()(layer(x)))
    (table,) = model.get_weights()
    assert table.shape == (7, 4)
    assert (abs(table) <= 0.05).all()
    rows = table[indices.astype(int)]
    found = model.predict(indices, verbose=0)
    np.testing.assert_array_equal(found, rows.reshape(6, 20))
    model.compile(nn.SGD(1.0), nn.SparseCategoricalCrossentropy(from_logits=True))
    labels = np.arange(6)
    model.train_on_batch(indices, labels)
    odds = np.exp(rows.reshape(6, 20).astype(np.float64))
    slope = (odds / odds.sum(axis=1, keepdims=True) - np.eye(20)[labels]) / 6
    wanted = table.astype(np.float64)
    for place in np.ndindex(6, 5):
        wanted[int(indices[place])] -= slope.reshape(6, 5, 4)[place]
    np.testing.assert_allclose(model.get_weights()[0], wanted, rtol=1e-5, atol=1e-7)
    model.close()


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input_dim": 0}, ValueError, "input_dim must be positive"),
        ({"weights": [np.ones((4, 2))]}, ValueError, "set_weights"),
        ({"embeddings_constraint": "tight"}, ValueError, "unknown constraint"),
        ({"lora_alpha": 2}, ValueError, "pass lora_rank, too"),
        ({"output": 2}, TypeError, "unexpected arguments: output"),
    ],
)
def test_what_embeddings_cannot_do(arguments, error, message):
    with pytest.raises(error, match=message):
        nn.Embedding(**{"input_dim": 4, "output_dim": 2, **arguments})


@pytest.mark.parametrize("by_name", [True, False])
def test_an_embedding_is_regularized(by_name):
    nn.set_random_seed(0)
    penalty = nn.regularizers.L2(0.5)
    options = {"embeddings_regularizer": penalty} if by_name else {}
    layer = nn.Embedding(4, 3, *([] if by_name else ["uniform", penalty]), **options)
    x = nn.Input((2,), dtype="int32")
    model = nn.Model(x, nn.Flatten()(layer(x)))
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    (table,) = model.get_weights()
    indices, labels = np.array([[0, 1], [2, 2]], np.int32), np.array([0, 4])
    rows = table[indices].reshape(2, 6).astype(np.float64)
    plain = np.log(np.exp(rows).sum(axis=1)) - rows[[0, 1], labels]
    wanted = plain.mean() + 0.5 * (table.astype(np.float64) ** 2).sum()
    assert model.train_on_batch(indices, labels) == pytest.approx(wanted, rel=1e-5)
    (after,) = model.get_weights()  # row 3 is penalised alone
    np.testing.assert_allclose(after[3], table[3] * (1 - 0.01), rtol=1e-5)
    model.close()


def test_an_index_out_of_range_stops_before_a_weight_changes():
    x = nn.Input((2,), dtype="int32")
    model = nn.Model(x, nn.Flatten()(nn.Embedding(4, 3)(x)))
    model.compile("adam", nn.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    indices = np.array([[0, 1], [2, 4]], np.int32)
    with pytest.raises(ValueError, match="x has the index 4, which is out of range"):
        model.fit(indices, np.array([0, 1]), verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    model.close()


def tied(x):
    return nn.ReversibleEmbedding(4, 3, name="words")(x)


def reshaped(x):
    return nn.Embedding(4, 3, name="words")(nn.Reshape((2, 1))(x))


def nested(x):
    words = [nn.Input((2,), dtype="int32"), nn.Embedding(4, 3, name="words")]
    return nn.Sequential(words)(x)


def joined(x):
    both = nn.Concatenate()([nn.Permute((1,))(x), x])
    larger = nn.Flatten()(nn.Embedding(5, 3)(x))
    words = nn.Flatten()(nn.Embedding(4, 3, name="words")(both))
    return nn.Concatenate()([larger, words])


@pytest.mark.parametrize("layers", [tied, reshaped, nested, joined])
def test_an_index_out_of_range_is_named_wherever_it_is_looked_up(layers):
    x = nn.Input((2,), dtype="int32")
    model = nn.Model(x, layers(x))
    indices = np.array([[0, 1], [2, 4]], np.int32)
    words = r"index 4, which is out of range: .*words/embeddings', which has 4"
    whole = mc.data.Dataset.from_tensor_slices(indices).batch(2)
    for x in (indices, whole):
        with pytest.raises(ValueError, match=words):
            model.predict(x, verbose=0)
    for call in (model, model.predict_on_batch):
        with pytest.raises(ValueError, match="has the index -1"):
            call(indices - 1)
    assert np.isfinite(model.predict(indices % 4, verbose=0)).all()
    model.close()


def test_columns_that_index_tables_of_their_own_are_not_mixed_up():
    x = nn.Input((2,), dtype="int32")
    pair = [nn.Embedding(rows, 3)(x[:, i]) for i, rows in enumerate((4, 90))]
    model = nn.Model(x, nn.Concatenate()(pair))
    assert np.isfinite(model.predict(np.array([[3, 89]], np.int32), verbose=0)).all()
    model.close()


def test_index_0_is_no_step_where_it_is_masked():
    x = nn.Input((4,))
    h = nn.SimpleRNN(3, activation="linear")(nn.Embedding(5, 2, mask_zero=True)(x))
    model = nn.Model(x, h)
    found = model.predict(np.array([[0, 2, 3, 0], [2, 0, 0, 3]], np.float32), verbose=0)
    np.testing.assert_array_equal(found[0], found[1])
    table, kernel, recurrent, bias = model.get_weights()
    first = table[2] @ kernel + bias
    wanted = table[3] @ kernel + first @ recurrent + bias
    np.testing.assert_allclose(found[0], wanted, rtol=1e-5, atol=1e-7)
    model.close()


def test_the_length_of_inputs_is_ignored_as_in_keras():
    with pytest.warns(DeprecationWarning, match="input_length is ignored"):
        nn.Embedding(4, 2, input_length=3)


def mixed():
    """A model with every layer of this file, and operators."""
    x = nn.Input((8, 8, 3))
    h = nn.Conv2D(4, 3, activation="relu")(
        nn.ZeroPadding2D()(nn.Rescaling(0.5, 0.1)(x))
    )
    small = nn.Cropping2D(((1, 1), (0, 2)))(nn.MaxPool2D()(h))  # 2 x 2
    g = nn.UpSampling2D((4, 4), interpolation="bilinear")(small)
    g = nn.average([h, nn.maximum([g, nn.UpSampling2D((4, 4))(small)])])
    g = nn.multiply([g, nn.Reshape((1, 1, 4))(nn.Dense(4)(h[:, 0, 0]))])
    rows = nn.Reshape((-1, 4))(g[:, ::-1, 1::2] - 0.5 * h[:, :, :4])
    square = nn.dot([rows, nn.subtract([rows, rows * rows])], axes=1, normalize=True)
    table = nn.Embedding(9, 4)(abs(x[:, 0, :, 0]))  # indices of 0 and above
    table = nn.Cropping1D(2)(nn.ZeroPadding1D(1)(nn.UpSampling1D(2)(table)))
    steps = nn.RepeatVector(14)(nn.minimum([rows[:, 1], rows[:, 2]]))
    steps = nn.concatenate([table / (steps**2 + 1), nn.Permute((2, 1))(square)], axis=1)
    return nn.Model(x, nn.Dense(5)(nn.Flatten()(steps @ square)))


def trained(images, **options):
    nn.set_random_seed(3)
    model = mixed()
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.Adam(0.01), loss, **options)
    history = model.fit(*images, batch_size=20, epochs=2, verbose=0, seed=1).history
    return model, [*history["loss"], *[x.tobytes() for x in model.get_weights()]]


def test_policies_and_workspaces_change_no_bit(images):
    _, expected = trained(images, memory="keep_all")
    assert np.isfinite(expected[:2]).all()
    for policy in ("share", "sqrt_checkpoint", "auto"):
        model, found = trained(images, memory=policy)
        assert found == expected
        report = model.memory_report(verify=True)
        assert report.measured_peak_bytes == model.memory_plan.peak_bytes
        model.close()
    for mode in mc.WorkspaceMode:
        _, found = trained(images, training_workspace_mode=mode)
        assert found == expected
    mc.destroy_all_workspaces(thread="all")


@pytest.mark.parametrize("axis", [-1, (1, 3), None, (1, 2, 3)])
@pytest.mark.parametrize("invert", [False, True])
def test_normalization_by_statistics_of_the_data(axis, invert):
    data = samples(2500, 4, 3, 2) * 3 + 1
    kept = () if axis is None else np.atleast_1d(axis) % 4
    others = tuple(i for i in range(4) if i not in kept)
    mean, variance = (
        f(data, axis=others, keepdims=True, dtype=np.float64) for f in (np.mean, np.var)
    )
    layer = nn.Normalization(axis, invert=invert)
    layer.adapt(data)
    root = np.sqrt(variance)
    wanted = data[:5] * root + mean if invert else (data[:5] - mean) / root
    model = nn.Sequential([nn.Input((4, 3, 2)), layer])
    np.testing.assert_allclose(
        model.predict(data[:5], verbose=0), wanted, rtol=1e-4, atol=1e-5
    )
    found = model.get_weights()
    assert [w.shape for w in found] == [np.squeeze(mean).shape] * 2 + [()]
    model.set_weights([found[0] + 1, found[1], found[2]])
    model.close()
    squeezed = [np.squeeze(each, axis=others) for each in (mean, variance)]
    given = nn.Normalization(axis, *squeezed, invert)
    model = nn.Sequential([nn.Input((4, 3, 2)), given])
    assert model.get_weights() == []
    np.testing.assert_allclose(
        model.predict(data[:5], verbose=0), wanted, rtol=1e-4, atol=1e-5
    )
    model.close()


def test_normalization_adapts_to_batches_and_trains():
    data, labels = samples(96, 3) * 5 + 2, np.arange(96) % 3
    one, other = nn.Normalization(), nn.Normalization()
    one.adapt(data)
    other.adapt((data[i : i + 7], labels[i : i + 7]) for i in range(0, 96, 7))
    nested, several = nn.Normalization(), nn.Normalization()
    nested.adapt(data.tolist())
    several.adapt([data[:40], data[40:]])
    for each in (other, nested, several):
        for a, b in zip(one._statistics, each._statistics, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    model = nn.Sequential([nn.Input((3,)), one, nn.Dense(3)])
    model.compile("sgd", nn.SparseCategoricalCrossentropy(from_logits=True))
    before = model.get_weights()
    model.fit(data, labels, verbose=0)
    after = model.get_weights()
    for a, b in zip(before[:3], after[:3], strict=True):
        np.testing.assert_array_equal(a, b)
    assert (before[3] != after[3]).all()
    one.adapt(data + 1)
    mean, variance, count = one.get_weights()
    np.testing.assert_allclose(mean, before[0] + 1, rtol=1e-5)
    np.testing.assert_allclose(variance, before[1], rtol=1e-4)
    assert count == 0
    with pytest.raises(ValueError, match="statistics of shape"):
        one.adapt(data[:, :2])
    model.close()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nn.Normalization(axis=0), "the batch"),
        (lambda: nn.Normalization(mean=1), "both mean and variance"),
        (lambda: nn.Normalization(mean=1, variance=-1), "zero or more"),
        (lambda: nn.Normalization(axis=2)(nn.Input((3,))), r"axis=.* is out of range"),
        (lambda: nn.Normalization(-1, [1, 2], [1, 2])(nn.Input((3,))), "does not fit"),
        (
            lambda: nn.Normalization(mean=0, variance=1).adapt(VECTORS),
            "constructed with mean",
        ),
        (lambda: nn.Normalization().adapt([]), "no samples"),
    ],
)
def test_normalization_that_cannot_be(call, message):
    with pytest.raises(ValueError, match=message):
        call()
