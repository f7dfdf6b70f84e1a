import keras
import numpy as np

layers, ops = keras.layers, keras.ops


class Steps(keras.layers.Layer):
    """A cell over the steps of sequences, written as a loop."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell

    def call(self, x):
        states = self.cell.get_initial_state(batch_size=ops.shape(x)[0])
        for step in range(x.shape[1]):
            output, states = self.cell(x[:, step], states)
        return output


def shapes(states):
    if isinstance(states, (list, tuple)):
        return [shapes(each) for each in states]
    return tuple(states.shape)


x = np.random.default_rng(0).normal(size=(5, 4, 3)).astype("float32")
for make, layer in (
    (lambda: layers.LSTMCell(6), layers.LSTM(6)),
    (lambda: layers.GRUCell(6), layers.GRU(6)),
    (lambda: layers.SimpleRNNCell(6), layers.SimpleRNN(6)),
):
    whole = keras.Sequential([keras.Input((4, 3)), layer])
    by_hand = keras.Sequential([keras.Input((4, 3)), Steps(make())])
    by_hand.set_weights(whole.get_weights())
    np.testing.assert_allclose(
        by_hand.predict(x, verbose=0), whole.predict(x, verbose=0), rtol=1e-4, atol=1e-6
    )
    assert shapes(layer.get_initial_state(2)) == shapes(make().get_initial_state(2))

cells = [layers.LSTMCell(2), layers.GRUCell(3)]
stacked = layers.StackedRNNCells(cells)
assert shapes(stacked.get_initial_state(batch_size=7)) == [[(7, 2), (7, 2)], [(7, 3)]]
output, states = cells[0](np.ones((2, 4), "float32"), cells[0].get_initial_state(2))
assert tuple(output.shape) == (2, 2)
assert shapes(states) == [(2, 2), (2, 2)]
