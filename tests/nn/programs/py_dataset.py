import keras
import numpy as np


class Squares(keras.utils.PyDataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        x = np.full((4, 1), index, "float32")
        return x, x**2


model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
history = model.fit(Squares(), epochs=2, verbose=0)
assert len(history.history["loss"]) == 2
