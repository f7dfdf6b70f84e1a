"""Predictions and compression from the command line."""

from __future__ import annotations

import re

import numpy as np
import pytest

from memcfg import compression, config, nn
from memcfg.cli import main


@pytest.fixture
def files(tmp_path):
    """A compressed model, the same as it is, and samples."""
    random = np.random.default_rng(0)
    layers = [nn.Dense(256, activation="relu", name=f"dense{i}") for i in range(4)]
    model = nn.Sequential([nn.Input((256,)), *layers, nn.Dense(3, name="out")])
    values = [
        np.where(random.random(w.shape) < 0.1, np.float32(0.125), np.float32(0))
        for w in model.get_weights()
    ]
    model.set_weights(values)
    compression.CompressedModel(model).save(tmp_path / "a.mcz")
    model.save(tmp_path / "a.memcfg")
    x = random.normal(size=(4, 256)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    return tmp_path, model.predict(x, 1, verbose=0)


def numbers(text):
    return np.array([line.split() for line in text.splitlines()], np.float32)


@pytest.mark.parametrize("name", ["a.mcz", "a.memcfg"])
def test_outputs_are_printed_a_line_a_sample(files, capsys, name):
    folder, expected = files
    assert main(["predict", str(folder / name), str(folder / "x.npy")]) == 0
    out, notes = capsys.readouterr()
    np.testing.assert_allclose(numbers(out), expected, rtol=1e-6)
    assert notes.startswith("memcfg: 4 samples, at a peak of ")


def test_a_network_larger_than_its_limit_predicts(files, capsys):
    """The dense weights take 1 MiB; two of the five fit at a time."""
    folder, expected = files
    arguments = [str(folder / "a.mcz"), str(folder / "x.npy"), "--limit", "640KiB"]
    output = folder / "y.npy"
    assert main(["predict", *arguments, "--output", str(output)]) == 0
    np.testing.assert_array_equal(np.load(output), expected)
    out, notes = capsys.readouterr()
    assert out == ""
    assert "of 655360 B (640.00 KiB)" in notes
    arguments[0] = str(folder / "a.memcfg")
    assert main(["predict", *arguments]) != 0
    assert "The smallest limit that would do is" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a.mcz", "a.memcfg"])
def test_the_limit_that_is_named_is_enough(files, capsys, name):
    folder, expected = files
    output = folder / "y.npy"
    arguments = ["predict", str(folder / name), str(folder / "x.npy")]
    arguments += ["--output", str(output)]
    assert main(arguments) == 0
    notes = capsys.readouterr().err
    enough = re.search(r"; (\d+KiB) is enough as --limit", notes)[1]
    output.unlink()
    assert main([*arguments, "--limit", enough]) == 0
    np.testing.assert_array_equal(np.load(output), expected)


def test_the_smallest_limit_of_a_refusal_does_and_less_does_not(files, capsys):
    folder, expected = files
    output = folder / "y.npy"
    arguments = ["predict", str(folder / "a.memcfg"), str(folder / "x.npy")]
    arguments += ["--output", str(output), "--limit"]
    assert main([*arguments, "100KiB"]) != 0
    said = re.search(r"limit that would do is (\d+) B", capsys.readouterr().err)[1]
    assert int(said) < 1.1 * (folder / "a.memcfg").stat().st_size
    assert main([*arguments, f"{int(said) - 64}B"]) != 0
    assert f"limit that would do is {said} B" in capsys.readouterr().err
    assert main([*arguments, f"{said}B"]) == 0
    np.testing.assert_array_equal(np.load(output), expected)


def test_a_refusal_names_products_by_codes_where_they_need_less(tmp_path, capsys):
    """And nothing that the command has no option for."""
    if not config.logical_device("CPU:0").kernels.has("coded_dense"):
        pytest.skip("the kernels are not native, which multiply by codes")
    random = np.random.default_rng(0)
    model = nn.Sequential([nn.Input((3000,)), nn.Dense(2000), nn.Dense(10)])
    model.set_weights(
        [
            np.where(random.random(w.shape) < 0.05, np.float32(0.125), np.float32(0))
            for w in model.get_weights()
        ]
    )
    compression.CompressedModel(model).save(tmp_path / "a.mcz")
    np.save(tmp_path / "x.npy", np.ones((1, 3000), np.float32))
    arguments = ["predict", str(tmp_path / "a.mcz"), str(tmp_path / "x.npy")]
    assert main([*arguments, "--limit", "2MiB"]) != 0
    told = capsys.readouterr().err
    assert "--products auto fits; outputs then differ by rounding." in told
    assert main([*arguments, "--limit", "2MiB", "--products", "auto"]) == 0
    assert len(capsys.readouterr().out.split()) == 10
    assert main([*arguments, "--limit", "200KiB"]) != 0
    told = capsys.readouterr().err
    assert re.search(r"With --products auto: at least \d+ B", told)
    assert "spill_to" not in told
    assert main([*arguments, "--limit", "200KiB", "--products", "auto"]) != 0
    assert "--products" not in capsys.readouterr().err


def test_a_damaged_weight_is_found_when_it_is_read(files, capsys):
    folder, _ = files
    data = bytearray((folder / "a.memcfg").read_bytes())
    data[len(data) // 2] ^= 4
    (folder / "a.memcfg").write_bytes(data)
    assert main(["predict", str(folder / "a.memcfg"), str(folder / "x.npy")]) == 2
    assert "a.memcfg is damaged: the checksum of" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / "x.npy").write_bytes(b"no"), "is not a .npy file"),
        (lambda folder: (folder / "x.npy").unlink(), "x.npy: No such file"),
        (lambda folder: np.save(folder / "x.npy", np.float32(3)), "has no samples"),
        (
            lambda folder: np.save(folder / "x.npy", np.ones((2, 5), np.float32)),
            "is not for this model",
        ),
        (
            lambda folder: (folder / "a.mcz").write_bytes(b"no"),
            "damaged or not a compressed model",
        ),
    ],
)
def test_wrong_files_are_named_in_one_line(files, capsys, change, words):
    folder, _ = files
    change(folder)
    assert main(["predict", str(folder / "a.mcz"), str(folder / "x.npy")]) == 2
    out, notes = capsys.readouterr()
    assert words in notes
    assert notes.count("\n") == 1
    assert out == ""


def test_other_models_are_refused(capsys):
    with pytest.raises(SystemExit):
        main(["predict", "model.onnx", "x.npy"])
    assert "MODEL is a .mcz or .memcfg file" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [False, True])
def test_a_trained_model_is_compressed(tmp_path, capsys, monkeypatch, terminal):
    if terminal:
        monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for `rich`
    random = np.random.default_rng(0)
    centres = random.normal(size=(3, 20))
    y = random.integers(0, 3, 300)
    x = np.float32(centres[y] + random.normal(0, 0.3, (300, 20)))
    layers = [nn.Input((20,)), nn.Dense(64, "relu"), nn.Dense(3, "softmax")]
    model = nn.Sequential(layers)
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    model.fit(x, y, epochs=5, verbose=0)
    model.save(tmp_path / "a.memcfg")
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    paths = [str(tmp_path / name) for name in ("a.memcfg", "xy.npz", "a.mcz")]
    options = ["--max-accuracy-loss", "0.1", "--epochs", "1", "--limit", "64MiB"]
    options += ["--validation-split", "0.2"]
    assert main(["compress", *paths, *options]) == 0
    out, told = capsys.readouterr()
    assert bool(re.search(r"training copy \d+: epoch 1/1", told)) == terminal
    assert terminal or told == ""
    small = compression.load(tmp_path / "a.mcz")
    assert f"{small.nbytes} B" in out
    assert small.nbytes < small.dense_bytes / 2
    found = small.predict(x).argmax(1)
    assert (found == y).mean() > 0.85
    small.close()


def test_files_to_compress_are_checked(tmp_path, capsys):
    nn.Sequential([nn.Input((4,)), nn.Dense(3)]).save(tmp_path / "a.memcfg")
    np.savez(tmp_path / "xy.npz", x=np.ones((4, 4), np.float32))
    paths = [str(tmp_path / name) for name in ("a.memcfg", "xy.npz", "a.mcz")]
    assert main(["compress", *paths]) == 2
    assert "it has no array 'y'" in capsys.readouterr().err
    np.savez(tmp_path / "xy.npz", x=np.ones((4, 4), np.float32), y=np.zeros(4, int))
    assert main(["compress", *paths]) == 2
    assert "cannot be compressed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["compress", *paths[:2], "a.memcfg"])
    assert "OUTPUT is a .mcz file" in capsys.readouterr().err


def test_an_archive_of_arrays_is_not_samples(files, capsys):
    folder, _ = files
    np.savez(folder / "xy.npz", x=np.zeros((2, 256)), y=np.zeros(2))
    assert main(["predict", str(folder / "a.memcfg"), str(folder / "xy.npz")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "xy.npz is an archive of arrays (x, y): save the samples alone" in error
