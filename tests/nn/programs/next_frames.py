import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
size = 24
starts = rng.integers(0, 3, size)
clips = np.zeros((size, 4, 6, 6, 1), "float32")
for clip, start in zip(clips, starts, strict=True):
    for step in range(4):
        clip[step, 2:4, start + step] = 1.0
x, y = clips[:, :3], clips[:, 3]
inputs = keras.Input((3, 6, 6, 1))
h = keras.layers.ConvLSTM2D(4, 3, padding="same")(inputs)
model = keras.Model(inputs, keras.layers.Conv2D(1, 3, padding="same")(h))
model.compile(keras.optimizers.Adam(0.05), "mse")
history = model.fit(x, y, epochs=8, batch_size=24, verbose=0).history["loss"]
assert model.output_shape == (None, 6, 6, 1)
assert history[-1] < 0.7 * history[0]
