import keras
import numpy as np

rng = np.random.default_rng(0)
labels = rng.integers(0, 2, 96)
time = np.arange(256) / 256
pitch = np.where(labels, 40.0, 12.0)[:, None]
sounds = np.sin(2 * np.pi * pitch * time + rng.uniform(0, 6, (96, 1)))
sounds = (sounds + rng.normal(0, 0.5, sounds.shape)).astype("float32")

mel = keras.layers.MelSpectrogram(
    fft_length=64, sequence_stride=32, sampling_rate=256, num_mel_bins=8, min_freq=1
)
assert np.asarray(mel(sounds)).shape[:2] == (96, 8)


class Loudness(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def call(self, x):
        return keras.ops.mean(x, axis=1)


model = keras.Sequential(
    [
        keras.layers.InputLayer(shape=(256, 1)),
        keras.layers.STFTSpectrogram("log", frame_length=64, frame_step=32),
        Loudness(),
        keras.layers.Dense(2, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
before = model.evaluate(sounds[..., None], labels, verbose=0)
model.fit(sounds[..., None], labels, batch_size=32, epochs=5, verbose=0)
after = model.evaluate(sounds[..., None], labels, verbose=0)
assert after < 0.5 * before
