"""Sounds of folders: WAV files of Python's `wave` in batches."""

from __future__ import annotations

import wave

import numpy as np
import pytest

import memcfg as mc

load = mc.nn.utils.audio_dataset_from_directory
LENGTHS = {"high/0.wav": 8, "high/1.wav": 5, "low/0.wav": 3, "low/1.wav": 9}


def write(path, samples, rate=800, width=2):
    path.parent.mkdir(exist_ok=True)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(samples.shape[1])
        file.setsampwidth(width)
        file.setframerate(rate)
        file.writeframes(samples.astype("<i2").tobytes()[:: 2 // width])


@pytest.fixture
def sounds(tmp_path):
    random = np.random.default_rng(0)
    made = {
        name: random.integers(-(2**15), 2**15, (count, 2))
        for name, count in LENGTHS.items()
    }
    for name, samples in made.items():
        write(tmp_path / name, samples)
    return tmp_path, {k: np.float32(v / 2**15) for k, v in made.items()}


def padded(x, length):
    return np.pad(x[:length], ((0, max(0, length - len(x))), (0, 0)))


def test_batches_get_zeros_up_to_their_longest(sounds, capsys):
    folder, values = sounds
    data = load(folder, shuffle=False, batch_size=3)
    assert capsys.readouterr().out == "Found 4 files belonging to 2 classes.\n"
    (x, y), (last, z) = data
    assert x.dtype == np.float32
    wanted = [padded(each, 8) for each in [*values.values()][:3]]
    np.testing.assert_array_equal(x, wanted)
    assert y.tolist() == [0, 0, 1]
    np.testing.assert_array_equal(last[0], values["low/1.wav"])
    assert z.tolist() == [1]
    assert data.class_names == ["high", "low"]


def test_sounds_of_one_length(sounds):
    folder, values = sounds
    options = {"output_sequence_length": 6, "sampling_rate": 800, "verbose": False}
    data = load(folder, None, shuffle=False, batch_size=None, **options)
    for found, value in zip(data, values.values(), strict=True):
        np.testing.assert_array_equal(found, padded(value, 6))
    train, held = load(folder, validation_split=0.5, subset="both", seed=1, **options)
    assert len(train.file_paths) == len(held.file_paths) == 2
    ((x, _),) = train
    assert x.shape == (2, 6, 2)


def test_what_cannot_be_read(sounds):
    folder, _ = sounds
    with pytest.raises(ValueError, match="ragged must be False"):
        load(folder, ragged=True)
    with pytest.raises(ValueError, match="sampling_rate"):
        load(folder, sampling_rate=0)
    with pytest.raises(ValueError, match="800 samples per second, not 400: resample"):
        list(load(folder, sampling_rate=400, verbose=False))
    write(folder / "low" / "0.wav", np.zeros((4, 1)), width=1)
    with pytest.raises(ValueError, match="8 bits a sample, not 16"):
        list(load(folder, verbose=False))
    (folder / "low" / "0.wav").write_bytes(b"RIFFnothing")
    with pytest.raises(ValueError, match="no WAV file of PCM"):
        list(load(folder, verbose=False))
    with pytest.raises(ValueError, match=r"there are no files of \.wav"):
        load(folder / "low", verbose=False)
