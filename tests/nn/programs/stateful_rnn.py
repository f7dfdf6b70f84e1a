import keras
import numpy as np

keras.utils.set_random_seed(0)
wave = np.sin(np.arange(401) * 0.2)
x = wave[:400].reshape(4, 100, 1)
y = wave[1:401].reshape(4, 100, 1)

inputs = keras.Input(batch_shape=(4, 10, 1))
rnn = keras.layers.SimpleRNN(12, return_sequences=True, stateful=True)
model = keras.Model(inputs, keras.layers.Dense(1)(rnn(inputs)))
model.compile(keras.optimizers.Adam(0.01), loss="mse")
losses = []
for _epoch in range(8):
    rnn.reset_state()
    for begin in range(0, 100, 10):  # truncated back-propagation through time
        part = slice(begin, begin + 10)
        losses.append(model.train_on_batch(x[:, part], y[:, part]))
assert np.mean(losses[-10:]) < 0.02 < np.mean(losses[:10])

rnn.reset_state()
first = model.predict(x[:, :10], batch_size=4, verbose=0)
second = model.predict(x[:, :10], batch_size=4, verbose=0)
assert not np.allclose(first, second)  # the state went on
rnn.reset_state()
again = model.predict(x[:, :10], batch_size=4, verbose=0)
np.testing.assert_allclose(first, again, rtol=1e-5)
