"""Keras's utilities that make datasets: folders, series, parts, batches by number."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest

import memcfg as mc

utils, Dataset = mc.nn.utils, mc.data.Dataset

needs_pillow = pytest.mark.skipif(
    find_spec("PIL") is None, reason="the parity environment has Pillow, and runs it"
)


# Texts


@pytest.fixture
def texts(tmp_path):
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"{number}.txt").write_text(f"{name}{number}\n")
    (tmp_path / "a" / "inner").mkdir()
    (tmp_path / "a" / "inner" / "x.TXT").write_text("a-inner")
    (tmp_path / "a" / "other.md").write_text("not this")
    return tmp_path


def test_texts_of_folders(texts, capsys):
    data = utils.text_dataset_from_directory(texts, shuffle=False, batch_size=3)
    assert capsys.readouterr().out == "Found 7 files belonging to 2 classes.\n"
    assert data.class_names == ["a", "b"]
    assert [path.removeprefix(str(texts)) for path in data.file_paths] == [
        *(f"/a/{n}.txt" for n in range(3)),
        "/a/inner/x.TXT",
        *(f"/b/{n}.txt" for n in range(3)),
    ]
    (x, y), *_, (last, z) = data
    assert x.tolist() == [b"a0\n", b"a1\n", b"a2\n"]
    assert y.tolist() == [0, 0, 0]
    assert y.dtype == np.int32
    assert (last.tolist(), z.tolist()) == ([b"b2\n"], [1])
    with pytest.raises(AttributeError):
        _ = data.take(1).class_names


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({"label_mode": "binary"}, (b"a0\n", [0.0])),
        ({"label_mode": "categorical"}, (b"a0\n", [1.0, 0.0])),
        ({"class_names": ["b", "a"]}, (b"b0\n", 0)),
        ({"class_names": ["b"]}, (b"b0\n", 0)),
        ({"labels": [3, 1, 3, 1, 1, 1, 1]}, None),
        ({"max_length": 1}, (b"a", 0)),
        ({"labels": None}, b".hidden0\n"),
        ({"label_mode": None}, b".hidden0\n"),
    ],
)
def test_labels(texts, options, first):
    if "labels" in options:  # the folder as a whole: hidden ones, too
        options = options | {"labels": options["labels"] and [3, 1] * 5}
        first = first or (b".hidden0\n", 3)
    options = {"verbose": False, "shuffle": False, "batch_size": None} | options
    element = next(iter(utils.text_dataset_from_directory(texts, **options)))
    if isinstance(first, tuple):
        assert (bytes(element[0]), element[1].tolist()) == first
    else:
        assert bytes(element) == first


def test_subsets_and_orders(texts):
    options = {"seed": 3, "verbose": False, "validation_split": 0.3, "batch_size": None}
    make = utils.text_dataset_from_directory
    train, held = make(texts, subset="both", **options)
    assert not set(train.file_paths) & set(held.file_paths)
    assert (len(train.file_paths), len(held.file_paths)) == (5, 2)
    assert make(texts, subset="training", **options).file_paths == train.file_paths
    assert make(texts, subset="validation", **options).file_paths == held.file_paths
    for dataset in (train, held):
        for text, label in dataset:
            assert text.startswith(b"ab"[label : label + 1])
    assert [bytes(text) for text, _ in held] == [bytes(text) for text, _ in held]
    passes = {tuple(bytes(text) for text, _ in train) for _ in range(20)}
    assert len(passes) > 1
    assert {tuple(sorted(each)) for each in passes} == {tuple(sorted(min(passes)))}


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"label_mode": "one"}, ValueError, "unknown label_mode 'one'"),
        ({"labels": "given"}, TypeError, "'inferred', None or a list"),
        ({"labels": [1]}, ValueError, "1 labels, and 10 files"),
        ({"labels": [1.5] * 10}, TypeError, "a label must be an integer"),
        ({"labels": None, "class_names": ["a"]}, ValueError, "only with labels"),
        ({"class_names": ["a", "c"]}, ValueError, r"\['c'\], and the folders"),
        ({"class_names": ["a"], "label_mode": "binary"}, ValueError, "two classes"),
        ({"subset": "training"}, ValueError, "given together"),
        ({"validation_split": 0.1}, ValueError, "given together"),
        ({"validation_split": 1.5, "subset": "both"}, ValueError, "between 0 and 1"),
        ({"validation_split": 0.5, "subset": "all"}, ValueError, "unknown subset"),
        ({"validation_split": 0.5, "subset": "both"}, ValueError, "a seed is needed"),
        (
            {"validation_split": 0.01, "subset": "validation", "seed": 1},
            ValueError,
            "no text files for validation",
        ),
        ({"batch_size": 0}, ValueError, "batch_size is at least 1"),
        ({"max_length": 0}, ValueError, "max_length is at least 1"),
        ({"format": "grain"}, TypeError, "those of memcfg.data"),
        ({"batchsize": 1}, TypeError, "did you mean 'batch_size'"),
    ],
)
def test_wrong_arguments_of_folders(texts, options, error, told):
    with pytest.raises(error, match=told):
        utils.text_dataset_from_directory(texts, verbose=False, **options)


def test_folders_without_files(tmp_path):
    with pytest.raises(ValueError, match=r"no files of \.txt in .*folder for each"):
        utils.text_dataset_from_directory(tmp_path)
    with pytest.raises(FileNotFoundError):
        utils.text_dataset_from_directory(tmp_path / "none")


# Images


@pytest.fixture
def images(tmp_path):
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(4):
            pixels = generator.integers(0, 256, (6 + number, 8, 3), np.uint8)
            utils.save_img(tmp_path / name / f"{number}.png", pixels, scale=False)
    return tmp_path


@needs_pillow
def test_images_of_folders(images):
    data = utils.image_dataset_from_directory(
        images, image_size=(5, 4), batch_size=3, seed=1, verbose=False
    )
    assert data.class_names == ["cat", "dog"]
    shapes = [(x.shape, x.dtype.name, len(y)) for x, y in data]
    assert shapes == [((n, 5, 4, 3), "float32", n) for n in (3, 3, 2)]
    model = mc.nn.Sequential(
        [mc.nn.Rescaling(1 / 255), mc.nn.Flatten(), mc.nn.Dense(2)]
    )
    model.compile("sgd", mc.nn.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(data, verbose=0)
    assert model.predict(data.map(lambda x, y: x), verbose=0).shape == (8, 2)


@needs_pillow
def test_what_is_read_is_what_was_written(images):
    for path in sorted(images.rglob("*.png")):
        pixels = utils.img_to_array(utils.load_img(path))
        data = utils.image_dataset_from_directory(
            path.parent,
            labels=None,
            image_size=pixels.shape[:2],
            shuffle=False,
            batch_size=None,
            verbose=False,
        )
        [index] = [n for n, each in enumerate(data.file_paths) if each == str(path)]
        assert np.array_equal(list(data)[index], pixels)


@needs_pillow
def test_a_file_that_is_no_image(images):
    (images / "cat" / "0.png").write_bytes(b"no image")
    data = utils.image_dataset_from_directory(images, verbose=False)
    with pytest.raises(OSError, match="cannot identify image file"):
        list(data)


@needs_pillow
def test_images_and_arrays(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3)).astype(np.float32)
    utils.save_img(tmp_path / "x.png", pixels, scale=False)
    image = utils.load_img(tmp_path / "x.png")
    assert np.array_equal(utils.img_to_array(image), pixels)
    gray = utils.img_to_array(utils.load_img(tmp_path / "x.png", "grayscale"))
    assert gray.shape == (4, 5, 1)
    assert utils.img_to_array(image.resize((2, 3)), dtype="uint8").dtype == np.uint8
    small = utils.load_img(tmp_path / "x.png", "rgba", (2, 2), keep_aspect_ratio=True)
    assert (small.size, small.mode) == ((2, 2), "RGBA")
    scaled = utils.img_to_array(utils.array_to_img(pixels / 10 + 3))
    assert scaled.min() == 0
    assert scaled.max() == 255
    for call, told in (
        (lambda: utils.array_to_img(pixels[..., :2]), "1, 3 or 4 channels"),
        (lambda: utils.img_to_array(np.zeros(3)), "two or three axes"),
        (lambda: utils.load_img("x.png", "cmyk"), "unknown color_mode"),
        (lambda: utils.load_img("x.png", "rgb", (2, 2), "cubic"), "interpolation"),
    ):
        with pytest.raises(ValueError, match=told):
            call()


def test_without_pillow_the_error_says_what_to_install(tmp_path):
    program = (
        "import sys; sys.modules['PIL'] = None\n"
        "import memcfg as mc\n"
        "try:\n"
        f"    mc.nn.utils.image_dataset_from_directory({str(tmp_path)!r})\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == (
        "image files are read by Pillow, which is not installed: "
        'pip install "memcfg[images]"\n'
    )


# Series


def windows(data, targets, length, stride=1, rate=1, start=0, end=None):
    """The definition of the windows, one after the other."""
    used = data[start:end]
    values = None if targets is None else targets[start:end]
    for begin in range(0, len(used), stride):
        rows = [begin + rate * n for n in range(length)]
        if rows[-1] >= len(used) or (values is not None and begin >= len(values)):
            return
        window = [used[row].tolist() for row in rows]
        yield window if values is None else (window, values[begin].item())


@pytest.mark.parametrize("length", [1, 3, 5])
@pytest.mark.parametrize("stride", [1, 4])
@pytest.mark.parametrize("rate", [1, 2])
@pytest.mark.parametrize(("start", "end"), [(None, None), (2, 17)])
@pytest.mark.parametrize("targets", [None, 20, 9])
def test_series(length, stride, rate, start, end, targets):
    series = np.arange(40.0).reshape(20, 2)
    values = None if targets is None else np.arange(targets) * 10
    data = utils.timeseries_dataset_from_array(
        series, values, length, stride, rate, 4, start_index=start, end_index=end
    )
    found = []
    for batch in data:
        rows = batch if values is None else batch[0]
        labels = [None] * len(rows) if values is None else batch[1].tolist()
        for row, label in zip(rows.tolist(), labels, strict=True):
            found.append(row if values is None else (row, label))
    expected = list(windows(series, values, length, stride, rate, start or 0, end))
    assert found == expected


def test_a_shuffled_series():
    make = utils.timeseries_dataset_from_array
    data = make(np.arange(50), None, 3, batch_size=None, shuffle=True, seed=1)
    first, second = ([int(w[0]) for w in data] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(48))
    assert first not in (second, sorted(first))
    again = make(np.arange(50), None, 3, batch_size=None, shuffle=True, seed=1)
    assert [int(w[0]) for w in again] == first


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sequence_length": 0}, "sequence_length is at least 1"),
        ({"sequence_length": 11}, "a window takes 11 times, and there are 10"),
        ({"sampling_rate": 10}, "sampling_rate must be below"),
        ({"sequence_stride": 10}, "sequence_stride must be below"),
        ({"start_index": 10}, "start_index .10. must be below"),
        ({"start_index": 5, "end_index": 5}, "must be below end_index"),
        ({"end_index": 10}, "below the length of the data .10."),
    ],
)
def test_wrong_arguments_of_series(options, told):
    with pytest.raises(ValueError, match=told):
        utils.timeseries_dataset_from_array(
            np.arange(10), None, **{"sequence_length": 2} | options
        )


# Parts


@pytest.mark.parametrize(
    ("left", "right", "sizes"),
    [
        (0.8, None, (8, 2)),
        (None, 0.25, (8, 2)),
        (3, None, (3, 7)),
        (3, 4, (3, 4)),
        (0.5, 0.2, (5, 2)),
        (0.5, 3, (5, 3)),
    ],
)
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("kind", ["array", "arrays", "dataset", "unknown", "batched"])
def test_parts(left, right, sizes, shuffle, kind):
    numbers = np.arange(10)
    given = {
        "array": lambda: numbers,
        "arrays": lambda: (numbers, numbers * 2),
        "dataset": lambda: Dataset.range(10),
        "unknown": lambda: Dataset.range(20).filter(lambda n: n < 10),
        "batched": lambda: Dataset.range(10).batch(3),
    }[kind]()
    parts = utils.split_dataset(given, left, right, shuffle=shuffle, seed=5)
    found = []
    for part, size in zip(parts, sizes, strict=True):
        elements = list(part)
        if kind == "batched":
            assert [len(each) for each in elements[:-1]] == [3] * (len(elements) - 1)
            elements = np.concatenate(elements)
        if kind == "arrays":
            assert all(b == 2 * a for a, b in elements)
            elements = [a for a, _ in elements]
        assert len(elements) == size
        found += map(int, elements)
    assert len(set(found)) == len(found)
    in_order = [*range(sizes[0]), *range(10 - sizes[1], 10)]
    assert (found == in_order) is not shuffle


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ((np.arange(9),), ValueError, "must be given"),
        ((np.arange(9), 9), ValueError, "left_size must be below the 9 samples"),
        ((np.arange(9), 1.0), ValueError, "between 0 and 1"),
        ((np.arange(9), 0.6, 0.6), ValueError, "are 1.2 of the samples"),
        ((np.arange(9), 5, 5), ValueError, "parts of 5 and 5 samples"),
        ((np.arange(9), 0.01), ValueError, "parts of 0 and 9"),
        ((Dataset.range(3).repeat(), 1), ValueError, "infinite"),
        ((7, 1), TypeError, "a Dataset or arrays, not int"),
    ],
)
def test_wrong_parts(arguments, error, told):
    with pytest.raises(error, match=told):
        utils.split_dataset(*arguments)


# Batches by number


class Numbers(utils.PyDataset):
    def __init__(self, batches=6, **options):
        super().__init__(**options)
        self.batches, self.seen, self.calls = batches, [], []

    def __len__(self):
        return self.batches

    def __getitem__(self, index):
        self.seen.append(index)
        x = np.full((4, 3), index, np.float32)
        return x, x[:, :1]

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def compiled():
    model = mc.nn.Sequential([mc.nn.Input((3,)), mc.nn.Dense(1)])
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("workers", [1, 3])
def test_fit_takes_batches_by_number(workers):
    data, model = Numbers(workers=workers), compiled()
    history = model.fit(data, epochs=3, validation_data=Numbers(2), verbose=0)
    assert len(history.history["val_loss"]) == 3
    assert len(data.seen) == 18
    assert all(sorted(data.seen[n : n + 6]) == [*range(6)] for n in (0, 6, 12))
    assert data.calls == ["begin", "end"] * 3


def test_the_order_of_batches_by_number():
    mc.nn.set_random_seed(1)
    shuffled, kept, model = Numbers(), Numbers(), compiled()
    model.fit(shuffled, epochs=3, verbose=0)
    assert shuffled.seen != [*range(6)] * 3
    model.fit(kept, epochs=3, shuffle=False, verbose=0)
    assert kept.seen == [*range(6)] * 3
    predicted = Numbers()
    assert model.predict(predicted, verbose=0).shape == (24, 1)
    assert predicted.seen == [*range(6)]
    assert np.isfinite(model.evaluate(Numbers(), verbose=0))
    assert utils.Sequence is utils.PyDataset
    assert [int(x[0, 0]) for x, _ in Numbers()] == [*range(6)]


def test_an_endless_source_of_batches():
    class Endless(utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            return np.ones((2, 3), np.float32), np.ones((2, 1), np.float32)

    history = compiled().fit(Endless(), epochs=2, steps_per_epoch=3, verbose=0)
    assert len(history.history["loss"]) == 2


def test_wrong_batches_by_number():
    class Bare(utils.PyDataset):
        def __init__(self):
            pass

        def __len__(self):
            return 2

    with pytest.raises(NotImplementedError, match="Bare must have __getitem__"):
        compiled().fit(Bare(), verbose=0)
    with pytest.raises(NotImplementedError, match="must have __len__"):
        list(utils.PyDataset())
    with pytest.raises(TypeError, match="works in parallel"):
        utils.PyDataset(use_multiprocessing=True)
    with pytest.raises(ValueError, match="max_queue_size"):
        utils.PyDataset(max_queue_size=-1)


# Progress


def test_a_bar(capsys):
    bar = utils.Progbar(4, verbose=2, stateful_metrics=["accuracy"])
    for step in range(3):
        bar.update(step + 1, [("loss", 1 / 2**step), ("accuracy", step / 2)])
    assert bar.values == {"loss": pytest.approx(1.75 / 3), "accuracy": 1.0}
    assert capsys.readouterr().out == ""
    bar.add(1, [("loss", 0.25)])
    out = capsys.readouterr().out
    assert out.startswith("4/4 - ")
    assert out.endswith("ms/step - loss: 0.2500 - accuracy: 1.0000\n")


def test_a_bar_that_is_drawn(capsys):
    bar = utils.Progbar(None, width=7, interval=0, unit_name="file")
    bar.add(3, [("size", np.array([1.0, 3.0]))])
    bar.update(5, finalize=True)
    out = capsys.readouterr().out
    assert "5" in out
    assert "ms/file" in out
    assert "size: 2.0000" in out
    silent = utils.Progbar(2, verbose=0, stateless_metrics=["loss"])
    silent.add(1, [("loss", 1), ("rate", 5)])
    silent.update(2)
    assert silent.values == {"loss": 1.0, "rate": 5.0}
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"verbose": 3}, "verbose is 0, 1 or 2"),
        ({"width": 0}, "width is at least 1"),
        ({"interval": -1}, "interval must be zero or more"),
        ({"stateful_metrics": [], "stateless_metrics": []}, "not both"),
    ],
)
def test_wrong_arguments_of_a_bar(options, told):
    with pytest.raises(ValueError, match=told):
        utils.Progbar(3, **options)
