import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((64, 6, 3)).astype("float32")
y = (x.sum((1, 2)) > 0).astype("float32")

for cell in (
    layers.SimpleRNNCell(8),
    layers.GRUCell(8),
    layers.StackedRNNCells([layers.LSTMCell(8), layers.LSTMCell(8)]),
):
    model = keras.Sequential(
        [keras.Input((6, 3)), layers.RNN(cell), layers.Dense(1, activation="sigmoid")]
    )
    model.compile(keras.optimizers.Adam(0.02), "binary_crossentropy")
    history = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert history[-1] < history[0] * 0.8

stack = layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)], return_state=True)
start = keras.Input((6, 3))
last, of_first, of_second = stack(start)
states = keras.Model(start, {"last": last, "states": [of_first, of_second]})
made = states.predict(x, verbose=0)
assert [each.shape for each in made["states"][0]] == [(64, 3), (64, 3)]
np.testing.assert_allclose(made["last"], made["states"][1], rtol=1e-5)

frames = np.zeros((16, 5, 8, 8, 1), "float32")
for sample in range(16):
    for step in range(5):
        frames[sample, step, (sample + step) % 8, sample % 8] = 1
model = keras.Sequential(
    [
        keras.Input((4, 8, 8, 1)),
        layers.ConvLSTM2D(4, 3, padding="same"),
        layers.Conv2D(1, 3, padding="same", activation="sigmoid"),
    ]
)
model.compile(keras.optimizers.Adam(0.02), "mse")
history = model.fit(frames[:, :4], frames[:, 4], epochs=15, verbose=0).history["loss"]
assert history[-1] < history[0]
rows = keras.Sequential([keras.Input((4, 8, 1)), layers.ConvLSTM1D(2, 3)])
assert rows.predict(frames[:, :4, 0], verbose=0).shape == (16, 6, 2)
