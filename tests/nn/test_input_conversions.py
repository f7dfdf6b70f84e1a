"""What is no float32 array: it is converted batch by batch, and the numbers are those
of an array that its caller converted."""

from __future__ import annotations

import os
import tracemalloc
import warnings

import numpy as np
import pytest

import memcfg as mc

nn = mc.nn
COUNT, WIDTH = 40, 6


class Arrayed:
    """What gives an array when asked, and no more."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.array(self._array, dtype=dtype)


class Exported:
    """A tensor of another library, with DLPack alone."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class Series:
    """A column of a frame, as pandas has it."""

    def __init__(self, values, name="c", dtype=None):
        self._values = values
        self.dtype = values.dtype if dtype is None else dtype
        self.name, self.shape = name, values.shape
        self.iloc = values

    def isna(self):
        return np.array([each is None for each in self._values])

    def __len__(self):
        return len(self._values)

    def __iter__(self):
        return iter(self._values)

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._values, dtype)


class Nullable:
    """A dtype of pandas that has a place for no number."""

    def __init__(self, kind):
        self.kind = kind


class Frame:
    """Columns side by side, as pandas has them."""

    def __init__(self, *columns):
        self._columns = columns
        self.dtypes = [column.dtype for column in columns]
        self.shape = (len(columns[0]), len(columns))

    def __len__(self):
        return self.shape[0]

    def __iter__(self):
        raise AssertionError("a frame iterates over its columns' names")

    @property
    def iloc(self):
        return self

    def __getitem__(self, key):
        rows, place = key
        assert rows == slice(None)
        return self._columns[place]

    def __array__(self, dtype=None, copy=None):
        assert len(set(self.dtypes)) == 1, "this would copy the frame"
        return np.stack([np.asarray(each, dtype) for each in self._columns], 1)


def framed(x):
    return Frame(*(Series(column) for column in x.T))


def mixed(x):
    """A frame of unequal dtypes that has the same numbers."""
    dtypes = ["f8", "f4", "i8", "i1", "f2", "f8"]
    return Frame(
        *(Series(c.astype(t)) for c, t in zip(x.T, dtypes, strict=True)),
    )


@pytest.fixture
def whole():
    """Samples that any dtype holds, and labels."""
    generator = np.random.default_rng(6)
    x = generator.integers(0, 2, (COUNT, WIDTH)).astype(np.float32)
    return x, generator.integers(0, 4, COUNT)


SAMPLES = {
    "float64": lambda x: x.astype("f8"),
    "float16": lambda x: x.astype("f2"),
    "int64": lambda x: x.astype("i8"),
    "uint8": lambda x: x.astype("u1"),
    "bool": lambda x: x.astype(bool),
    "big-endian": lambda x: x.astype(">f4"),
    "columns first": lambda x: np.asfortranarray(x, np.float64),
    "list": lambda x: x.tolist(),
    "__array__": Arrayed,
    "DLPack": lambda x: Exported(x.astype("f8")),
    "frame": framed,
    "mixed frame": mixed,
}


def all_of(model, x, y):
    """Everything that comes of reading samples in every way."""
    found = model.fit(x, y, 16, 2, 0, seed=1, validation_split=0.25).history
    found |= model.fit(x, y, 16, 1, 0, shuffle=False).history
    more = model.evaluate(x, y, verbose=0), model.train_on_batch(x, y)
    return found, more, model.test_on_batch(x, y), model.predict(x, verbose=0).tobytes()


@pytest.mark.strength(1)
@pytest.mark.parametrize("built", [True, False])
@pytest.mark.parametrize("kind", SAMPLES)
def test_samples_of_any_kind(loss, whole, kind, built):
    x, y = whole
    found = []
    for samples in (SAMPLES[kind](x), x):
        nn.set_random_seed(2)
        model = nn.Sequential([nn.Input((WIDTH,))] * built + [nn.Dense(4)])
        model.compile("sgd", loss)
        found.append(all_of(model, samples, y))
    assert found[0] == found[1]


LABELS = {
    "list": lambda y: y.tolist(),
    "list of scalars": list,
    "(n, 1)": lambda y: y[:, None],
    "(n, 1) list": lambda y: y[:, None].tolist(),
    "float64": lambda y: y.astype("f8"),
    "float16 of (n, 1)": lambda y: y[:, None].astype("f2"),
    "uint8": lambda y: y.astype("u1"),
    "__array__": Arrayed,
    "DLPack": Exported,
    "series": Series,
    "nullable series": lambda y: Series(y.astype(object), dtype=Nullable("i")),
    "frame of one": lambda y: Frame(Series(y)),
}


@pytest.mark.parametrize("kind", LABELS)
def test_labels_of_any_kind(dense, whole, kind):
    x, y = whole
    model = dense()
    assert model.evaluate(x, LABELS[kind](y)) == model.evaluate(x, y)
    weights = np.linspace(0, 2, COUNT)
    expected = model.evaluate(x, y, verbose=0, sample_weight=weights)
    for of in (np.ndarray.tolist, Series, Exported, lambda w: w[:, None]):
        given = of(weights)
        assert model.evaluate(x, y, verbose=0, sample_weight=given) == expected
    held = (x.tolist(), LABELS[kind](y), weights.tolist())
    assert model.fit(x, y, verbose=0, validation_data=held)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64", "uint8"])
@pytest.mark.parametrize("shape", [(-1,), (-1, 1)])
def test_labels_of_a_binary_loss(whole, dtype, shape):
    x, y = whole
    y = (y > 1).reshape(shape)
    model = nn.Sequential([nn.Input((WIDTH,)), nn.Dense(1, activation="sigmoid")])
    model.compile("sgd", "binary_crossentropy", metrics=["accuracy"])
    expected = model.evaluate(x, y.reshape(-1, 1).astype("f4"), verbose=0)
    assert model.evaluate(x, y.astype(dtype), verbose=0) == expected
    assert model.evaluate(x, y.astype(dtype).tolist(), verbose=0) == expected


@pytest.mark.parametrize("dtype", ["bool", "int64", "float64"])
def test_one_hot_labels_of_a_categorical_loss(whole, dtype):
    x, y = whole
    model = nn.Sequential([nn.Input((WIDTH,)), nn.Dense(4, activation="softmax")])
    model.compile("sgd", "categorical_crossentropy")
    one_hot = np.eye(4, dtype=dtype)[y]
    found = model.evaluate(x, one_hot, verbose=0)
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert found == pytest.approx(model.evaluate(x, y, verbose=0), rel=1e-6)


def test_bool_labels_of_a_sparse_loss(dense, whole):
    x, y = whole
    model = dense()
    assert model.evaluate(x, y > 1, verbose=0) == model.evaluate(
        x, (y > 1).astype(int), verbose=0
    )


class Loader:
    """What begins anew with each iteration, as PyTorch's DataLoader does."""

    def __init__(self, batches):
        self._batches = batches

    def __len__(self):
        return len(self._batches)

    def __iter__(self):
        return iter(self._batches)


@pytest.mark.parametrize("container", [tuple, list])
@pytest.mark.parametrize(
    "kind", ["float64", "uint8", "__array__", "DLPack", "mixed frame"]
)
def test_batches_of_any_kind(dense, whole, kind, container):
    x, y = whole
    ranges = [slice(0, 16), slice(16, None)]
    wrapped = LABELS.get(kind, lambda y: y)
    given = [container([SAMPLES[kind](x[r]), wrapped(y[r])]) for r in ranges]
    plain = [(x[r], y[r]) for r in ranges]
    found = []
    for batches in (given, plain):
        nn.set_random_seed(2)
        model = dense()
        history = model.fit(Loader(batches), epochs=2, verbose=0).history
        found.append((history, model.predict(Loader(batches), verbose=0).tobytes()))
    assert found[0] == found[1]


def test_batches_of_lists(dense, whole):
    x, y = whole
    model = dense()
    batches = [(x[:16].tolist(), y[:16].tolist()), (x[16:].tolist(), y[16:].tolist())]
    assert model.evaluate(Loader(batches), verbose=0) == pytest.approx(
        model.evaluate(x, y, verbose=0)
    )


@pytest.mark.parametrize("dtype", ["f8", "f2", "u1", "i8"])
def test_datasets_of_any_dtype(dense, whole, dtype):
    x, y = whole
    data = mc.data.Dataset.from_tensor_slices((x.astype(dtype), y.astype("f8")))
    plain = mc.data.Dataset.from_tensor_slices((x, y))
    model = dense()
    found, expected = (model.evaluate(d.batch(16), verbose=0) for d in (data, plain))
    assert found == expected


def test_digits_as_they_are_loaded(loss):
    datasets = pytest.importorskip("sklearn.datasets")
    x, y = datasets.load_digits(return_X_y=True)
    model = nn.Sequential([nn.Dense(32, activation="relu"), nn.Dense(10)])
    model.compile("adam", loss, metrics=["accuracy"])
    assert model.fit(x, y, epochs=6, verbose=0).history["accuracy"][-1] > 0.8


def test_several_inputs(whole):
    x, _ = whole
    inputs = [nn.Input((WIDTH,), name="a"), nn.Input((1,), name="b")]
    joined = nn.Concatenate()(inputs)
    model = nn.Model(inputs, nn.Dense(1)(joined))
    model.compile("sgd", "mse")
    expected = model.predict([x, x[:, :1]], verbose=0)
    for given in (
        [x.tolist(), x[:, 0].tolist()],  # an axis of one is added, as in Keras
        (mixed(x), Series(x[:, 0])),
        {"a": x.astype("f8"), "b": x[:, :1].astype(bool)},
        [Exported(x), Arrayed(x[:, 0])],
    ):
        assert np.array_equal(model.predict(given, verbose=0), expected)


def test_an_axis_of_one_is_taken_away_or_added(dense, whole):
    x, _ = whole
    assert dense().predict(x[:, :, None], verbose=0).shape == (COUNT, 4)
    model = nn.Sequential([nn.Input((WIDTH, 1)), nn.Conv1D(2, 3)])
    assert np.array_equal(
        model.predict(x, verbose=0), model.predict(x[:, :, None], verbose=0)
    )


class TestIntegerInputs:
    def made(self):
        inputs = nn.Input((3,), dtype="int32")
        model = nn.Model(inputs, nn.Flatten()(nn.Embedding(5, 2)(inputs)))
        model.compile("sgd", "mse")
        return model

    X = np.arange(15).reshape(5, 3) % 5

    @pytest.mark.parametrize("dtype", ["i8", "u1", "f4", "f8", "u8", "f2"])
    def test_whole_numbers(self, dtype):
        model = self.made()
        expected = model.predict(self.X.astype("i4"), verbose=0)
        assert np.array_equal(model.predict(self.X.astype(dtype), verbose=0), expected)
        assert np.array_equal(model.predict(self.X.tolist(), verbose=0), expected)

    @pytest.mark.parametrize("wrong", [0.5, np.nan, 2.0**40, 2**40, -np.inf])
    def test_others_are_told_and_change_nothing(self, wrong):
        model = self.made()
        x = self.X.astype(type(wrong))
        x[4, 1] = wrong
        before = [w.tobytes() for w in model.get_weights()]
        with pytest.raises(ValueError, match=r"x holds .*, but whole numbers are read"):
            model.fit(x, np.zeros((5, 6)), verbose=0)
        assert [w.tobytes() for w in model.get_weights()] == before
        model.fit(self.X, np.zeros((5, 6)), verbose=0)


class TestAdvice:
    """A label's advice is of its shape, and only where following it helps."""

    def test_labels_for_a_categorical_loss(self, whole):
        x, y = whole
        model = nn.Sequential([nn.Input((WIDTH,)), nn.Dense(4, activation="softmax")])
        model.compile("sgd", "categorical_crossentropy")
        for labels in (y, y[:, None], y.astype(float)):
            with pytest.raises(ValueError, match="use a sparse categorical loss"):
                model.fit(x, labels, verbose=0)
        for wrong in (y + 1.5, y + 4, np.zeros((COUNT, 3))):
            with pytest.raises(ValueError, match=r"the loss reads \(None, 4\)$"):
                model.fit(x, wrong, verbose=0)

    def test_numbers_for_a_sparse_loss(self, dense, whole):
        x, y = whole
        with pytest.raises(ValueError, match=r"pass y\.argmax\(1\)$"):
            dense().fit(x, np.eye(4)[y], verbose=0)
        for wrong in (np.eye(5)[y], np.full((COUNT, 4), 0.25), np.ones((COUNT, 4))):
            with pytest.raises(ValueError, match=r"one integer a sample$"):
                dense().fit(x, wrong, verbose=0)

    def test_a_column_that_holds_no_numbers_is_named(self, dense, whole):
        x, y = whole
        columns = [Series(c) for c in x.T[1:]]
        text = Series(np.array(["a"] * COUNT, object), "town")
        with pytest.raises(TypeError, match="column 'town' holds object, no numbers"):
            dense().fit(Frame(text, *columns), y, verbose=0)
        missing = Series(np.array([None] * COUNT, object), dtype=Nullable("i"))
        with pytest.raises(TypeError, match="'c' has places for no number: fill them"):
            dense().fit(Frame(missing, *columns), y, verbose=0)

    def test_what_another_library_says_is_told(self, dense, whole):
        class Guarded(Arrayed):
            def __array__(self, dtype=None, copy=None):
                raise RuntimeError("detach() it first")

        with pytest.raises(TypeError, match=r"x, of Guarded, .*detach\(\) it first"):
            dense().fit(Guarded(whole[0]), whole[1], verbose=0)


def test_a_number_too_large_is_not_silent(dense, whole):
    x, _ = whole
    with pytest.warns(RuntimeWarning, match="overflow"):
        dense().predict(np.full_like(x, 1e300, np.float64), verbose=0)


@pytest.mark.parametrize("kind", ["float64", "mixed frame"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_no_converted_copy_of_all_samples_is_made(loss, kind, shuffle):
    x = np.ones((20_000, WIDTH * 20), np.float32)
    columns = [c.astype("f8" if i else "i8") for i, c in enumerate(x.T)]
    given = x.astype("f8") if kind == "float64" else Frame(*map(Series, columns))
    y = np.zeros(len(x), np.int64)
    model = nn.Sequential([nn.Input(x.shape[1:]), nn.Dense(4)])
    model.compile("sgd", loss)
    model.fit(x[:512], y[:512], 256, verbose=0)
    model.predict(x[:512], 256, verbose=0)
    pool = mc.config.logical_device().pool
    before = pool.stats().peak_bytes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tracemalloc.start()
    try:
        model.fit(given, y, 256, 1, 0, shuffle=shuffle, validation_split=0.1)
        model.predict(given, 256, 0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < x.nbytes / 4  # a float32 copy would be x.nbytes
    assert pool.stats().peak_bytes <= max(before, 2 * pool.stats().current_bytes)


PART = 1 << 18  # bytes that conversions may take, whatever the number of samples
SHUFFLED = 4  # bytes a sample that an order takes


def heap_of(use):
    """The most bytes of the heap that a call takes beside what there is."""
    tracemalloc.start()
    try:
        use()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def read(model, x, y, batch_size, **options):
    """Fit two batches of what is given, in order unless that is an option."""
    options = {"shuffle": False, "steps_per_epoch": 2, "verbose": 0} | options
    model.fit(x[: 2 * batch_size], y[: 2 * batch_size], batch_size, verbose=0)
    return heap_of(lambda: model.fit(x, y, batch_size, **options))


@pytest.mark.skipif(
    os.environ.get("MEMCFG_KERNELS") == "reference",
    reason="kernels of NumPy take memory of the heap",
)
class TestTheHeap:
    """What `fit` takes of it does not grow with the number of samples."""

    COUNT = 300_000

    @pytest.mark.parametrize("dtype", ["i4", "i8", "u1", "f4", "f8", "f2", "?"])
    def test_of_labels(self, dense, dtype):
        x, y = np.zeros((self.COUNT, WIDTH), "f4"), np.ones(self.COUNT, dtype)
        assert read(dense(), x, y, 1024) < PART

    def test_of_a_label_for_each_pixel(self, loss):
        model = nn.Sequential([nn.Input((32, 32, 1)), nn.Conv2D(2, 1)])
        model.compile("sgd", loss)
        x, y = (np.zeros((1024, 32, 32, *last), "u1") for last in ((1,), ()))
        assert read(model, x, y, 8) < PART
        assert read(model, x, y.astype("f4"), 8) < PART
        y[1000, 31, 2] = 2
        with pytest.raises(ValueError, match=r"label 2 at y\[1000, 31, 2\]"):
            model.fit(x, y, verbose=0)

    @pytest.mark.parametrize("own", [False, True])
    @pytest.mark.parametrize("one_hot", [False, True])
    def test_of_weights_of_classes(self, one_hot, own):
        kind = "categorical" if one_hot else "sparse_categorical"
        model = nn.Sequential([nn.Input((2,)), nn.Dense(4, activation="softmax")])
        model.compile("sgd", f"{kind}_crossentropy")
        x, y = np.zeros((self.COUNT, 2), "f4"), np.arange(self.COUNT) % 4
        y = np.eye(4, dtype="u1")[y] if one_hot else y
        options = {"sample_weight": np.ones(self.COUNT)} if own else {}
        options["class_weight"] = {0: 2.0, 3: 0.5}
        assert read(model, x, y, 1024, **options) < PART

    def test_of_an_order(self, dense):
        x, y = np.zeros((self.COUNT, WIDTH), "f4"), np.zeros(self.COUNT, "i8")
        found = read(dense(), x, y, 1024, shuffle=True)
        assert found < SHUFFLED * self.COUNT + PART

    @pytest.mark.parametrize("shuffle", [False, True])
    @pytest.mark.parametrize("kind", ["f8", "u1", "i8", "columns first", "frame"])
    def test_of_a_batch_that_is_converted(self, loss, kind, shuffle):
        model = nn.Sequential([nn.Input((600,)), nn.Dense(4)])
        model.compile("sgd", loss)
        x = np.zeros((1024, 600), "f4")
        x = {
            "columns first": lambda: np.asfortranarray(x, "f8"),
            "frame": lambda: Frame(*map(Series, [*x.T[:-1], x.T[-1].astype("i8")])),
        }.get(kind, lambda: x.astype(kind))()
        y = np.zeros(1024, "i8")
        model.fit(np.zeros((1024, 600)), y, 512, verbose=0)  # 1.2 MiB of float32
        assert heap_of(lambda: model.fit(x, y, 512, 1, 0, shuffle=shuffle)) < PART

    @pytest.mark.parametrize("dtype", ["f4", "f8", "i8", "f2"])
    def test_of_whole_numbers(self, dtype):
        inputs = nn.Input((64,), dtype="int32")
        model = nn.Model(inputs, nn.Flatten()(nn.Embedding(3, 2)(inputs)))
        model.compile("sgd", "mse")
        x, y = np.ones((8192, 64), dtype), np.zeros((8192, 128), "f4")
        for shuffle in (False, True):
            order = SHUFFLED * len(x) * shuffle
            assert read(model, x, y, 2048, shuffle=shuffle) < order + PART


def test_weights_of_classes_are_those_that_samples_would_have(whole):
    """Of labels of any dtype, of ones beside zeros, and of numbers that are none."""
    x, y = whole
    table, own = {3: 0.25, 0: 2.0}, np.linspace(0, 2, COUNT)
    by_class = np.array([2.0, 1.0, 1.0, 0.25])[y]

    def fitted(labels, loss, weights=None, **options):
        nn.set_random_seed(2)
        model = nn.Sequential([nn.Input((WIDTH,)), nn.Dense(4, activation="softmax")])
        model.compile("sgd", loss)
        options |= {"verbose": 0, "seed": 1, "sample_weight": weights}
        model.fit(x, labels, 16, **options)
        model.train_on_batch(x, labels)
        return [each.tobytes() for each in model.get_weights()]

    for weights, product in ((None, by_class), (own, by_class * own.astype("f4"))):
        sparse = fitted(y, "sparse_categorical_crossentropy", product)
        for dtype in ("i8", "u1", "f8", "f2"):
            assert sparse == fitted(
                y.astype(dtype),
                "sparse_categorical_crossentropy",
                weights,
                class_weight=table,
            )
        one_hot = np.eye(4)[y]
        assert fitted(one_hot, "categorical_crossentropy", product) == fitted(
            one_hot, "categorical_crossentropy", weights, class_weight=table
        )
    model = nn.Sequential([nn.Input((WIDTH,)), nn.Dense(1)])
    model.compile("sgd", "mse")
    start, losses = model.get_weights(), []
    product = np.where(y == 2, 3.0, np.where(y == 0, 2.0, 1))
    for weights in ({"sample_weight": product}, {"class_weight": {1: 3, 0: 2.0}}):
        model.set_weights(start)
        fitted_to = model.fit(x, y / 2, shuffle=False, verbose=0, **weights)
        losses.append(fitted_to.history["loss"])
    assert losses[0] == losses[1]  # 0.5 is no class


@pytest.mark.parametrize("dtype", ["i8", "f8", ">i4", "u1"])
def test_labels_and_weights_of_classes_of_a_file(dense, whole, tmp_path, dtype):
    x, y = whole
    np.save(tmp_path / "y.npy", y.astype(dtype))
    mapped = np.load(tmp_path / "y.npy", mmap_mode="r")
    found = []
    for labels in (y, mapped):
        nn.set_random_seed(2)
        model = dense()
        for table in (None, {1: 3.0}):
            history = model.fit(x, labels, 16, 2, 0, class_weight=table, seed=3)
            found.append(history.history)
    assert found[:2] == found[2:]
