"""Training on datasets, iterators and whatever else gives batches."""

from __future__ import annotations

import threading
import warnings
from typing import NamedTuple

import numpy as np
import pytest
from calls import Call

import memcfg as mc
from memcfg.data import (
    AsyncDataSetIterator,
    AsyncShieldDataSetIterator,
    DataSet,
    Dataset,
    DataSetIterator,
    ExistingDataSetIterator,
    ListDataSetIterator,
    MultiDataSet,
)
from memcfg.errors import NonFiniteLossError

nn = mc.nn
pytestmark = pytest.mark.usefixtures("no_threads")

SAMPLES, SIZE = 22, 8  # two batches of 8 and one of 6
MODES = ["enabled", "none", "single", "separate"]


@pytest.fixture
def rows():
    generator = np.random.default_rng(6)
    x = generator.standard_normal((SAMPLES, 6)).astype(np.float32)
    return x, generator.integers(0, 4, SAMPLES)


def make(mode="enabled", *, built=True, optimizer="adam"):
    nn.set_random_seed(1)
    layers = [nn.Input((6,))] if built else []
    model = nn.Sequential(
        [*layers, nn.Dense(7, activation="relu"), nn.Dropout(0.2), nn.Dense(4)]
    )
    model.compile(
        optimizer,
        nn.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        training_workspace_mode=mode,
        inference_workspace_mode=mode,
    )
    return model


def parts(x, y, size=SIZE):
    return [(x[i : i + size], y[i : i + size]) for i in range(0, len(x), size)]


class BrokenError(Exception):
    """Of a test's data."""


class Pair(NamedTuple):
    x: np.ndarray
    y: np.ndarray


class Restarted:
    """An iterable that makes its batches anew each time."""

    def __init__(self, x, y):
        self.begun = 0
        self._data = x, y

    def __iter__(self):
        self.begun += 1
        for x, y in parts(*self._data):
            yield x.copy(), y.copy()


class Walked(DataSetIterator):
    """A user's iterator."""

    def __init__(self, x, y):
        self.parts = parts(x, y)
        self.place = 0

    def has_next(self):
        return self.place < len(self.parts)

    def next(self):
        self.place += 1
        return DataSet(*self.parts[self.place - 1])

    def reset(self):
        self.place = 0


SOURCES = {
    "batch": lambda x, y: Dataset.from_tensor_slices((x, y)).batch(SIZE),
    "prefetch": lambda x, y: Dataset.from_tensor_slices((x, y)).batch(SIZE).prefetch(3),
    "autotune": lambda x, y: (
        Dataset.from_tensor_slices((x, y)).batch(SIZE).prefetch(mc.data.AUTOTUNE)
    ),
    "no buffer": lambda x, y: (
        Dataset.from_tensor_slices((x, y)).batch(SIZE).prefetch(0)
    ),
    "map of batches": lambda x, y: (
        Dataset.from_tensor_slices((x, y)).batch(SIZE).map(lambda x, y: (x + 0, y))
    ),
    "map": lambda x, y: (
        Dataset.from_tensor_slices((x, y)).map(lambda x, y: (x + 0, y)).batch(SIZE)
    ),
    "generator": lambda x, y: Dataset.from_generator(
        lambda: iter(parts(x, y)),
        output_signature=(
            mc.data.TensorSpec((None, 6), "float32"),
            mc.data.TensorSpec((None,), "int64"),
        ),
    ),
    "list": parts,
    "lists in a list": lambda x, y: [list(part) for part in parts(x, y)],
    "named tuples": lambda x, y: [Pair(*part) for part in parts(x, y)],
    "data sets": lambda x, y: [DataSet(*part) for part in parts(x, y)],
    "multi data sets": lambda x, y: [MultiDataSet(*part) for part in parts(x, y)],
    "iterable": Restarted,
    "user's iterator": Walked,
    "list iterator": lambda x, y: ListDataSetIterator(
        [DataSet(*part) for part in parts(x, y)]
    ),
    "existing": lambda x, y: ExistingDataSetIterator(Restarted(x, y)),
    "shield": lambda x, y: AsyncShieldDataSetIterator(Walked(x, y)),
}


def weights(model):
    return [weight.tobytes() for weight in model.get_weights()]


def in_order(x, y, **options):
    """Train on arrays in their order: what every source is compared with."""
    model = make()
    history = model.fit(x, y, SIZE, verbose=0, shuffle=False, **options)
    return history.history, weights(model)


@pytest.mark.parametrize("source", SOURCES)
def test_every_source_gives_the_bits_of_arrays(source, rows):
    model = make()
    history = model.fit(SOURCES[source](*rows), epochs=3, verbose=0)
    assert (history.history, weights(model)) == in_order(*rows, epochs=3)
    assert history.epoch == [0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("source", ["batch", "map of batches", "list", "shield"])
def test_in_every_mode(source, mode, rows):
    data = SOURCES[source](*rows)
    model = make(mode)
    history = model.fit(data, epochs=2, verbose=0, validation_data=data)
    expected, bits = in_order(*rows, epochs=2, validation_data=rows)
    assert history.history == expected
    assert weights(model) == bits


def test_an_asynchronous_iterator_is_read_as_it_is_and_left_open(rows):
    model = make()
    with AsyncDataSetIterator(Walked(*rows)) as iterator:
        history = model.fit(iterator, epochs=3, verbose=0)
        assert (history.history, weights(model)) == in_order(*rows, epochs=3)
        iterator.reset()
        assert iterator.has_next()


def test_a_users_iterator_can_be_given_again(rows):
    model, walked = make(), Walked(*rows)
    history = model.fit(walked, epochs=2, verbose=0).history
    model.fit(walked, verbose=0)  # it had come to its end
    assert model.optimizer.iterations == 9
    assert history == in_order(*rows, epochs=2)[0]


def test_a_generator_is_one_epoch(rows):
    model = make()
    history = model.fit(iter(parts(*rows)), verbose=0)
    assert (history.history, weights(model)) == in_order(*rows)


def test_a_generator_is_not_enough_for_two_epochs(rows):
    model, begun = make(), []

    def generate():
        begun.append(1)
        yield from parts(*rows)

    before = weights(model)
    with pytest.raises(ValueError, match="read only once, for 2 epochs"):
        model.fit(generate(), epochs=2, verbose=0)
    assert begun == []
    assert weights(model) == before
    # Epochs that are left out are not asked for.
    model.fit(generate(), epochs=2, initial_epoch=1, verbose=0)


class TestSteps:
    """What an epoch is, with steps_per_epoch and without."""

    def fit(self, data, **options):
        model = make()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            history = model.fit(data, verbose=0, **options)
        told = [str(one.message) for one in caught]
        assert all(one.filename == __file__ for one in caught)
        return history.epoch, model.optimizer.iterations, told

    def numbered(self, count):
        x = np.ones((4 * count, 6), np.float32)
        y = np.zeros(4 * count, np.int64)
        return Dataset.from_tensor_slices((x, y)).batch(4)

    def test_all_batches_of_a_pass(self):
        assert self.fit(self.numbered(10)) == ([0], 10, [])
        assert self.fit(self.numbered(10), epochs=3) == ([0, 1, 2], 30, [])

    @pytest.mark.parametrize("steps", [1, 2, 5, 10])
    def test_a_pass_goes_on_and_another_begins_behind_its_end(self, steps):
        epochs = 30 // steps
        found = self.fit(self.numbered(10), steps_per_epoch=steps, epochs=epochs)
        assert found == (list(range(epochs)), 30, [])

    def test_an_endless_dataset(self):
        begun = []

        def generate():
            begun.append(1)
            for _ in range(10):
                yield np.ones(6, np.float32), 1

        spec = (
            mc.data.TensorSpec((6,), "float32"),
            mc.data.TensorSpec((), "int32"),
        )
        data = Dataset.from_generator(generate, output_signature=spec).repeat()
        found = self.fit(data.batch(4), steps_per_epoch=7, epochs=2)
        assert found == ([0, 1], 14, [])
        assert 6 <= len(begun) <= 9  # one pass over 56 elements, and what is ahead

    def test_an_endless_dataset_needs_a_number(self):
        for name in ("steps_per_epoch", "validation_steps"):
            endless = self.numbered(2).repeat()
            given = {"x": endless}
            if name == "validation_steps":
                given = {"x": self.numbered(2), "validation_data": endless}
            model = make()
            with pytest.raises(ValueError, match=f"no end: say {name}"):
                model.fit(verbose=0, **given)
            assert model.optimizer.iterations == 0

    @pytest.mark.parametrize("source", ["dataset", "list", "generator", "unknown"])
    def test_too_few_batches_end_training_with_one_warning(self, source):
        data = self.numbered(10)
        if source == "list":
            data = list(data)
        if source == "generator":
            data = iter(list(data))
        if source == "unknown":
            data = data.filter(lambda x, y: True)
        epochs, steps, told = self.fit(data, steps_per_epoch=4, epochs=5)
        assert (epochs, steps) == ([0, 1, 2], 10)
        (text,) = told
        assert "ended after 10 of 20 batches" in text
        assert "Lower steps_per_epoch" in text
        assert "dataset.repeat()" in text

    def test_a_generator_that_ends_with_an_epoch(self):
        data = iter(list(self.numbered(10)))
        epochs, steps, told = self.fit(data, steps_per_epoch=5, epochs=3)
        assert (epochs, steps) == ([0, 1], 10)
        assert len(told) == 1

    def test_a_dataset_of_unknown_length_that_ends_with_an_epoch(self):
        data = self.numbered(10).filter(lambda x, y: True)
        assert self.fit(data, steps_per_epoch=5, epochs=3) == ([0, 1, 2], 15, [])

    def test_arrays_have_epochs_of_any_length_too(self, rows):
        x, y = rows
        model = make()
        model.fit(x, y, SIZE, 3, 0, steps_per_epoch=3, seed=5)
        expected = make()
        expected.fit(x, y, SIZE, 3, 0, seed=5)
        assert weights(model) == weights(expected)
        model = make()
        model.fit(x, y, SIZE, 6, 0, steps_per_epoch=1, seed=5)
        again = make()
        again.fit(x, y, SIZE, 4, 0, steps_per_epoch=1, seed=5)
        again.fit(x, y, SIZE, 6, 0, steps_per_epoch=1, seed=5, initial_epoch=4)
        assert weights(model) == weights(again)

    def test_a_new_pass_begins_with_each_epoch(self, rows):
        data = Restarted(*rows)
        make().fit(data, epochs=3, verbose=0)
        assert data.begun == 3

    def test_orders_differ_from_pass_to_pass(self, rows):
        seen = []

        def note(x, y):
            seen.append(int(y))
            return x, y

        data = Dataset.from_tensor_slices((rows[0], np.arange(SAMPLES) % 4))
        data = data.shuffle(SAMPLES, seed=3).map(note).batch(SIZE)
        make().fit(data, epochs=2, verbose=0)
        assert seen[:SAMPLES] != seen[SAMPLES:]
        assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:])

    @pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
    def test_wrong_numbers(self, steps, rows):
        for name in ("steps_per_epoch", "validation_steps"):
            with pytest.raises((TypeError, ValueError), match=name):
                make().fit(SOURCES["batch"](*rows), verbose=0, **{name: steps})

    @pytest.mark.parametrize(
        "data",
        [[], iter(()), Dataset.from_tensors((np.ones((2, 6), "f4"), [1, 2])).take(0)],
    )
    def test_no_batch_at_all(self, data):
        model = make()
        for options in ({}, {"steps_per_epoch": 2}):
            with pytest.raises(ValueError, match="empty"):
                model.fit(data, verbose=0, **options)
        assert model.optimizer.iterations == 0


class TestValidation:
    def test_data_of_any_kind(self, rows):
        x, y = rows
        expected, _ = in_order(
            x, y, epochs=2, validation_data=rows, validation_batch_size=SIZE
        )
        for source in SOURCES.values():
            found = make().fit(
                x, y, SIZE, 2, 0, shuffle=False, validation_data=source(x, y)
            )
            assert found.history == expected

    def test_arrays_beside_a_dataset(self, rows):
        data = SOURCES["batch"](*rows)
        found = make().fit(data, epochs=2, verbose=0, validation_data=rows).history
        assert list(found) == ["loss", "accuracy", "val_loss", "val_accuracy"]
        sized = make().fit(
            data, epochs=2, verbose=0, validation_data=rows, validation_batch_size=SIZE
        )
        assert sized.history == in_order(*rows, epochs=2, validation_data=rows)[0]

    def test_steps_begin_anew_with_each_epoch(self, rows):
        data, held = SOURCES["batch"](*rows), Restarted(*rows)
        model = make(optimizer=nn.SGD(0.0))
        found = model.fit(
            data, epochs=3, verbose=0, validation_data=held, validation_steps=2
        ).history
        first = rows[0][: 2 * SIZE], rows[1][: 2 * SIZE]
        loss, accuracy = model.evaluate(*first, SIZE, 0)
        assert found["val_loss"] == [loss] * 3
        assert found["val_accuracy"] == [accuracy] * 3
        assert held.begun == 3

    def test_too_few_batches_are_told_once(self, rows):
        data = SOURCES["batch"](*rows)
        model = make()
        with pytest.warns(
            RuntimeWarning, match="3 of 9 batches.*validation_steps"
        ) as told:
            found = model.fit(
                data, epochs=3, verbose=0, validation_data=data, validation_steps=9
            )
        assert len(told) == 1
        assert len(found.history["val_loss"]) == 3

    def test_a_generator_lasts_for_one_validation(self, rows):
        data = SOURCES["batch"](*rows)
        model = make()
        with pytest.raises(ValueError, match=r"read only once.*pass validation_steps"):
            model.fit(data, epochs=2, verbose=0, validation_data=iter(parts(*rows)))
        assert model.optimizer.iterations == 0
        found = model.fit(data, verbose=0, validation_data=iter(parts(*rows)))
        assert len(found.history["val_loss"]) == 1
        found = model.fit(
            data,
            epochs=3,
            verbose=0,
            validation_data=iter(parts(*rows)),
            validation_steps=1,
        )
        assert len(found.history["val_loss"]) == 3

    @pytest.mark.parametrize("wrong", [(1, 2, 3, 4), np.ones((3, 6), "f4"), 5, (1,)])
    def test_what_it_cannot_be(self, wrong, rows):
        with pytest.raises(ValueError, match="validation_data is"):
            make().fit(*rows, verbose=0, validation_data=wrong)

    def test_its_batch_size_is_of_arrays(self, rows):
        data = SOURCES["batch"](*rows)
        with pytest.raises(ValueError, match="validation_batch_size goes with arrays"):
            make().fit(data, validation_data=data, validation_batch_size=3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"y": np.zeros(SAMPLES, int)},
        {"batch_size": 8},
        {"shuffle": True},
        {"seed": 0},
        {"validation_split": 0.5},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
@pytest.mark.parametrize("source", ["batch", "user's iterator", "iterable"])
def test_arguments_of_arrays(source, wrong, rows):
    data, model = SOURCES[source](*rows), make()
    name = next(iter(wrong))
    kinds = (ValueError, TypeError) if name == "y" else ValueError
    with pytest.raises(kinds, match=f"{name} goes with arrays|do not pass y, too"):
        model.fit(data, verbose=0, **wrong)
    assert model.optimizer.iterations == 0
    model.fit(data, verbose=0, shuffle=False)


@pytest.mark.parametrize("built", [False, True])
def test_samples_without_batches_are_told(built, rows):
    data = Dataset.from_tensor_slices(rows)
    for samples in (data, list(data), [(x, int(y)) for x, y in data]):
        with pytest.raises(ValueError, match=r"y is one label, .*make batches first"):
            make(built=built).fit(samples, verbose=0)


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        (lambda x, y: DataSet(x, y), r"\[data_set\]"),
        (lambda x, y: MultiDataSet(x, y), r"\[data_set\]"),
        (lambda x, y: lambda: parts(x, y), "call it"),
        (lambda x, y: Dataset, "type$"),
    ],
    ids=["data set", "multi data set", "function", "class"],
)
def test_what_to_do_instead_is_told(kind, hint, rows):
    with pytest.raises(TypeError, match=f"x is an array, or .*, not.*{hint}"):
        make().fit(kind(*rows), verbose=0)


def test_an_iterator_at_its_end_is_told(rows):
    used = iter(Dataset.from_tensor_slices(rows).batch(SIZE))
    list(used)
    with pytest.raises(ValueError, match="it has no batch left, or never had one"):
        make().fit(used, verbose=0)
    with pytest.raises(ValueError, match=r"it has no batch$"):
        make().fit([], verbose=0)


@pytest.mark.parametrize("x", [None, 5, [["a", "b"]], "text", object()])
def test_what_cannot_be_read(x, rows):
    for y in (rows[1], None):
        with pytest.raises(
            (TypeError, ValueError), match=r"x is|batch is|an iterable of batches"
        ):
            make().fit(x, y, verbose=0)


class TestWrongBatches:
    """A wrong batch is told before its step, with its number."""

    def wrong(self, x, y):
        good = parts(x, y)
        return {
            "complex": (TypeError, "got complex128", (x.astype(complex), y)),
            "shape": (ValueError, "the model reads", (x[:, :5].copy(), y)),
            "flat": (ValueError, "axis of samples", (x[:, 0].copy(), y)),
            "no rows": (ValueError, "empty", (x[:0], y[:0])),
            "label": (
                ValueError,
                "label 4 at y.3. is out of range",
                self.labelled(x, 4),
            ),
            "negative": (ValueError, "label -1", self.labelled(x, -1)),
            "float labels": (ValueError, "y holds 0.5", (x, y * 0 + 0.5)),
            "fewer labels": (ValueError, "differ in number", (x, y[:-1])),
            "wide labels": (ValueError, "labels have shape", (x, np.stack([y, y], 1))),
            "no array": (TypeError, "x is an array, or", ([["a"] * 6], y[:1])),
            "masked": (TypeError, "masked places", (np.ma.masked_array(x), y)),
            "x alone": (ValueError, r"\(x, y\), samples and labels.* has 1 part", x),
            "three": (ValueError, "sample_weight has shape", (x, y, x)),
            "four": (ValueError, "this one has 4 parts", (x, y, x, y)),
            "dict": (TypeError, "not a dict with x, y", {"x": x, "y": y}),
            "no labels": (ValueError, "this one has 1 part", DataSet(x)),
            "features mask": (ValueError, "masks", DataSet(x, y, np.ones_like(x))),
            "labels mask": (ValueError, "masks", DataSet(x, y, None, np.ones(len(x)))),
            "two inputs": (
                ValueError,
                "the model has 1 input, .*x has 2 arrays",
                MultiDataSet([x, x], [y]),
            ),
            "two outputs": (
                ValueError,
                "the model has 1 output.*y has 2 arrays",
                MultiDataSet([x], [y, y]),
            ),
            "multi mask": (
                ValueError,
                "masks",
                MultiDataSet([x], [y], None, [np.ones(len(x))]),
            ),
            "text": (ValueError, "this one has 1 part", "text"),
            "number": (ValueError, "this one has 1 part", 3),
        }, good

    def labelled(self, x, label):
        y = np.zeros(len(x), int)
        y[3] = label
        return x, y

    KINDS = tuple(f"{i}" for i in range(23))

    @pytest.mark.strength(1)
    @pytest.mark.parametrize("place", [0, 2])
    @pytest.mark.parametrize("number", range(23))
    def test_it_is_told_and_no_step_is_made(self, number, place, rows):
        x, y = rows
        cases, good = self.wrong(x, y)
        assert len(cases) == 23
        kind, text, bad = list(cases.values())[number]
        data = [*good[:place], bad, *good]
        model, expected = make(), make()
        for part in good[:place]:
            expected.train_on_batch(*part)
        with pytest.raises(kind, match=f"^batch {place + 1}: .*{text}"):
            model.fit(data, verbose=0)
        assert weights(model) == weights(expected)
        assert model.optimizer.iterations == place

    def test_what_the_description_tells_is_told_before_anything_runs(self, rows):
        x, y = rows
        begun = []

        def generate():
            begun.append(1)
            yield from zip(x, y, strict=True)

        def dataset(*specs):
            made = [mc.data.TensorSpec(*spec) for spec in specs]
            spec = tuple(made) if len(made) > 1 else made[0]
            data = Dataset.from_generator(generate, output_signature=spec)
            return data.batch(SIZE)

        wrong = {
            "x holds numbers, and the dataset's is complex128": (
                ((6,), "c16"),
                ((), "i8"),
            ),
            r"has shape \(None, 5\), but the model reads \(None, 6\)": (
                ((5,), "f4"),
                ((), "i8"),
            ),
            r"has shape \(None,\), but": (((), "f4"), ((), "i8")),
            "the dataset's are complex64": (((6,), "f4"), ((), "c8")),
            "has 1 part": (((6,), "f4"),),
            "has 4 parts": (((6,), "f4"), ((), "i8"), ((), "f4"), ((), "f4")),
        }
        for text, specs in wrong.items():
            for built in (True,) if "has shape" in text else (True, False):
                model = make(built=built)
                with pytest.raises((TypeError, ValueError), match=text):
                    model.fit(dataset(*specs), verbose=0)
                assert model.built is built
        assert begun == []
        # Unknown sizes fit.
        model = make()
        model.fit(dataset(((None,), "f4"), ((), "i8")), verbose=0)
        assert model.optimizer.iterations == 3


class TestBuilding:
    """An unbuilt Sequential learns its shapes from what there is."""

    @pytest.mark.parametrize("source", SOURCES)
    def test_it_is_built(self, source, rows):
        model = make(built=False)
        history = model.fit(SOURCES[source](*rows), epochs=2, verbose=0)
        expected = make(built=False)
        alike = expected.fit(*rows, SIZE, 2, 0, shuffle=False)
        assert history.history == alike.history
        assert weights(model) == weights(expected)

    @pytest.mark.parametrize("source", ["list", "map of batches", "map"])
    def test_a_first_batch_that_is_wrong_leaves_it_unbuilt(self, source, rows):
        x, y = rows
        model = make(built=False)
        with pytest.raises(ValueError, match=r"label 9|out of range"):
            model.fit(SOURCES[source](x, np.full_like(y, 9)), verbose=0)
        with pytest.raises(TypeError, match="complex128"):
            model.fit(SOURCES[source](x.astype(complex), y), verbose=0)
        model.fit(SOURCES[source](x, y), verbose=0)

    def test_no_pass_is_begun_where_the_description_is_enough(self, rows, runs):
        begun, loads = [], []
        runs.loading = lambda: loads.append(len(begun))

        def generate():
            begun.append(1)
            yield from zip(*rows, strict=True)

        spec = (mc.data.TensorSpec((6,), "f4"), mc.data.TensorSpec((), "i8"))
        data = Dataset.from_generator(generate, output_signature=spec).batch(SIZE)
        make(built=False).fit(data, epochs=2, verbose=0)
        assert loads[0] == 0
        assert len(begun) == 2


class TestPrograms:
    """Which are loaded before the first step."""

    STEPS = ("train, batch 8", "train, batch 8", "train, batch 6")

    @pytest.mark.parametrize("source", ["batch", "prefetch", "autotune", "map"])
    def test_all_that_are_known(self, source, rows, runs):
        data = SOURCES[source](*rows)
        make().fit(data, verbose=0, validation_data=data.take(2))
        first, *steps = runs.order
        assert first == [
            "evaluate, batch 6",
            "evaluate, batch 8",
            "train, batch 6",
            "train, batch 8",
        ]
        assert steps == [*self.STEPS, "evaluate, batch 8", "evaluate, batch 8"]

    @pytest.mark.parametrize("source", ["map of batches", "generator", "list"])
    def test_that_of_the_first_batch_and_others_when_they_come(
        self, source, rows, runs
    ):
        make().fit(SOURCES[source](*rows), epochs=2, verbose=0)
        assert runs.order == [
            ["train, batch 8"],
            "train, batch 8",
            "train, batch 8",
            ["train, batch 6", "train, batch 8"],
            "train, batch 6",
            *self.STEPS,
        ]

    def test_batches_of_a_size_that_is_told(self, rows, runs):
        data = Dataset.from_tensor_slices(rows).batch(SIZE, drop_remainder=True)
        make().fit(data, verbose=0)
        assert runs.order == [["train, batch 8"], "train, batch 8", "train, batch 8"]

    def test_reports_speak_of_the_full_batch(self, rows):
        model = make()
        model.fit(SOURCES["list"](*rows), verbose=0)
        assert model.memory_report().program == "train, batch 8"


def test_threads_may_use_the_model_while_their_batch_is_waited_for(rows):
    """A generator that asks the model for predictions gets them."""
    x, y = rows
    for built in (True, False):
        model = make(built=True)

        def generate(model=model):
            for part in parts(x, y):
                model.predict(part[0], verbose=0)
                yield part

        Call(model.fit, generate(), verbose=0).result()
        assert model.optimizer.iterations == 3
        del built


def test_two_models_read_one_dataset_at_the_same_time(rows):
    data = SOURCES["batch"](*rows)
    models = [make(), make()]
    calls = [Call(model.fit, data, epochs=5, verbose=0) for model in models]
    histories = [call.result().history for call in calls]
    expected = in_order(*rows, epochs=5)
    assert histories == [expected[0]] * 2
    assert [weights(model) for model in models] == [expected[1]] * 2


def test_progress_of_unknown_length(rows, capsys):
    data = SOURCES["map of batches"](*rows).filter(lambda x, y: True)
    make().fit(data, epochs=2, verbose=2)
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Epoch 1/2 - 3/3 - ")
    assert second.startswith("Epoch 2/2 - 3/3 - ")
    make().fit(data, epochs=2, verbose=1)
    assert "3/3" in capsys.readouterr().out


class TestEnds:
    """However it ends: the threads end, the ring goes, and the error is the data's."""

    def held(self):
        return mc.config.logical_device().pool.owners()

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    @pytest.mark.parametrize("kind", ["generator", "dataset", "sync"])
    def test_an_error_of_the_data_comes_behind_its_good_batches(
        self, kind, place, rows
    ):
        model, expected = make(), make()
        for part in parts(*rows)[:place]:
            expected.train_on_batch(*part)
        failure = BrokenError("no more")

        def generate():
            yield from parts(*rows)[:place]
            raise failure

        data = generate()
        if kind == "dataset":
            spec = (
                mc.data.TensorSpec((None, 6), "f4"),
                mc.data.TensorSpec((None,), "i8"),
            )
            data = Dataset.from_generator(generate, output_signature=spec)
        if kind == "sync":
            data = AsyncShieldDataSetIterator(generate())
        with pytest.raises(BrokenError) as caught:
            model.fit(data, verbose=0)
        assert caught.value is failure
        assert weights(model) == weights(expected)
        assert set(self.held()) in (
            {f"model {model.name}", f"model {expected.name}"},
            set(),
        )

    @pytest.mark.parametrize("source", ["batch", "list", "map of batches", "iterable"])
    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, MemoryError])
    def test_an_error_in_a_step(self, source, error, rows, runs):
        model = make()
        data = SOURCES[source](*(np.repeat(part, 9, axis=0) for part in rows))
        steps = []

        def fail(name):
            steps.append(name)
            if len(steps) == 3:
                raise error

        runs.begun = fail
        with pytest.raises(error) as caught:
            model.fit(data, verbose=0)
        assert model.optimizer.iterations == 2
        # Also while somebody keeps the error, whose frames keep arrays.
        assert list(self.held()) == [f"model {model.name}"]
        assert caught.value is not None

    def test_a_loss_that_is_not_finite(self, rows):
        x, y = rows[0].copy(), rows[1]
        x[SIZE + 2] = np.nan
        for source in ("batch", "list", "generator"):
            model = make()
            with pytest.raises(NonFiniteLossError, match="epoch 1/2, step 2") as caught:
                model.fit(SOURCES[source](x, y), epochs=2, verbose=0)
            assert model.optimizer.iterations == 1
            assert list(self.held()) == [f"model {model.name}"]
            assert caught.value is not None
            model.fit(SOURCES[source](x, y), verbose=0, on_nan="ignore")
            model.close()

    def test_a_wrong_batch_while_the_error_is_kept(self, rows):
        x, y = rows

        def shift(x, y):
            return x, y + (4 if y[0] == rows[1][SIZE] else 0)

        data = Dataset.from_tensor_slices((x, y)).batch(SIZE).map(shift)
        model = make()
        with pytest.raises(ValueError, match=r"^batch [12]: label") as caught:
            model.fit(data.prefetch(2), verbose=0)
        assert set(self.held()) <= {f"model {model.name}"}
        assert caught.value is not None

    def test_an_endless_dataset_is_left(self, rows):
        model = make()
        data = SOURCES["batch"](*rows).repeat()
        model.fit(data, steps_per_epoch=2, epochs=2, verbose=0, validation_data=rows)
        assert list(self.held()) == [f"model {model.name}"]
        assert not [t for t in threading.enumerate() if "memcfg-data" in t.name]

    def test_a_generator_that_was_given_is_not_closed(self, rows):
        given = iter(parts(*(np.repeat(part, 9, axis=0) for part in rows)))
        make().fit(given, steps_per_epoch=3, verbose=0)
        assert len(list(given)) > 10  # what was read ahead is lost

    def test_the_validation_fails(self, rows):
        model = make()
        data = SOURCES["batch"](*rows).repeat()
        held = [*parts(*rows), (rows[0], rows[1] + 4)]
        with pytest.raises(ValueError, match=r"^batch 4: label"):
            model.fit(
                data, steps_per_epoch=2, epochs=2, verbose=0, validation_data=held
            )
        assert list(self.held()) == [f"model {model.name}"]
        assert model.optimizer.iterations == 2

    def test_an_interrupt_while_a_batch_is_waited_for(self, rows):
        waiting, go = threading.Event(), threading.Event()

        def generate():
            yield from parts(*rows)
            waiting.set()
            go.wait(60)
            raise BrokenError

        model = make()
        call = Call(model.fit, generate(), verbose=0)
        assert waiting.wait(60)
        assert call.waits
        go.set()
        with pytest.raises(BrokenError):
            call.result()
        assert model.optimizer.iterations == 3

    def test_no_thread_is_begun_for_what_must_not_be_read_ahead(self, rows):
        names = set()

        class Same(Walked):
            async_supported = False

            def next(self):
                names.add(threading.current_thread().name)
                return super().next()

        make().fit(Same(*rows), epochs=2, verbose=0)
        make().fit(AsyncShieldDataSetIterator(Walked(*rows)), verbose=0)
        assert names == {threading.current_thread().name}


def test_the_history_tells_of_the_pipeline(rows):
    dataset = Dataset.from_tensor_slices(rows).batch(SIZE).prefetch(mc.data.AUTOTUNE)
    history = make().fit(dataset, epochs=2, verbose=0)
    (stage,) = history.pipeline.stages
    assert (stage.name, stage.autotuned, stage.items) == ("prefetch", True, 3)
    history = make().fit(dataset, steps_per_epoch=2, verbose=0)
    assert history.pipeline.stages[0].items == 2
    assert make().fit(*rows, verbose=0).pipeline is None
    assert make().fit(parts(*rows), verbose=0).pipeline is None


def test_the_history_of_a_training_that_failed_tells_of_the_pipeline(rows):
    def failing(x, y):
        raise BrokenError

    model = make()
    dataset = Dataset.from_tensor_slices(rows).map(failing).batch(SIZE).prefetch(2)
    with pytest.raises(BrokenError):
        model.fit(dataset, verbose=0)
    assert model.history.pipeline.stages[0].items == 0


def test_validation_steps_without_validation_data_are_refused(rows):
    with pytest.raises(ValueError, match="validation_steps is for validation_data"):
        make().fit(Dataset.from_tensor_slices(rows).batch(SIZE), validation_steps=1)


@pytest.mark.parametrize("last", [(), (1,)])
@pytest.mark.parametrize("named", [False, True])
def test_a_last_axis_of_one_is_added_to_batches_or_removed(last, named):
    """As of columns of a table, each of which is an input."""
    start = nn.Input((3, *last), name="column")
    x, y = np.random.default_rng(0).random((8, 3)), np.ones((8, 1))
    flat = nn.layers.Reshape((3,))(start)
    model = nn.Model({"column": start} if named else start, nn.Dense(1)(flat))
    model.compile("sgd", "mse")
    given = x if last else x[..., None]
    data = Dataset.from_tensor_slices(({"column": given} if named else given, y))
    weights = model.get_weights()
    model.fit(data.batch(4), verbose=0)
    found = model.get_weights()
    model.set_weights(weights)
    of = x.reshape(8, 3, *last)
    model.fit({"column": of} if named else of, y, 4, shuffle=False, verbose=0)
    for one, other in zip(found, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    given = given[:, :2]
    data = Dataset.from_tensor_slices(({"column": given} if named else given, y))
    with pytest.raises(ValueError, match="but the model reads"):
        model.fit(data.batch(4), verbose=0)
