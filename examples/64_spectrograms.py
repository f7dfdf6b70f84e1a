"""Tell tones apart by their spectrograms, which a first layer learns to improve."""

import hashlib
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from memcfg import nn

# A file of a URL, checked by its hash; here the URL is that of a file.
folder = TemporaryDirectory()
rate, samples = 4000, 1024
generator = np.random.default_rng(0)
hertz = generator.choice([440.0, 880.0, 1320.0], 240)
time = np.arange(samples) / rate
sounds = np.sin(2 * np.pi * hertz[:, None] * time + generator.uniform(0, 6, (240, 1)))
sounds = (sounds + generator.normal(0, 1.5, sounds.shape)).astype(np.float32)
source = Path(folder.name, "tones.npz")
np.savez(source, sounds=sounds, labels=(hertz / 440 - 1).astype(np.int32))

nn.utils.disable_interactive_logging()  # fit and get_file print nothing
path = nn.utils.get_file(
    origin=source.as_uri(),
    file_hash=hashlib.sha256(source.read_bytes()).hexdigest(),
    cache_dir=Path(folder.name, "cache"),
)
with np.load(path) as file:
    sounds, labels = file["sounds"], file["labels"]

# As data: decibels by time and pitch, of all sounds at once.
pitches = nn.layers.MelSpectrogram(
    fft_length=256, sequence_stride=128, sampling_rate=rate, num_mel_bins=24
)(sounds)
print("mel spectrograms:", pitches.shape)

# As a layer: its kernels begin as a Fourier transform, and are trained.
model = nn.Sequential(
    [
        nn.Input((samples, 1)),
        nn.layers.STFTSpectrogram("log", frame_length=128, frame_step=64),
        nn.GlobalAveragePooling1D(),
        nn.Dense(3, activation="softmax"),
    ]
)
model.compile(nn.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(sounds[:180, :, None], labels[:180], batch_size=30, epochs=15)
_, accuracy = model.evaluate(sounds[180:, :, None], labels[180:])
print(f"accuracy of other tones: {accuracy:.2f}")
assert accuracy > 0.9
nn.utils.enable_interactive_logging()
folder.cleanup()
