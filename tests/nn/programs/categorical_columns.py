import keras
import numpy as np

lookup = keras.layers.StringLookup(vocabulary=["red", "green", "blue"])
codes = np.asarray(lookup(np.array(["green", "red", "pink"])))
assert codes.tolist() == [2, 1, 0]
encode = keras.layers.CategoryEncoding(num_tokens=4, output_mode="one_hot")
assert np.asarray(encode(codes)).tolist() == [[0, 0, 1, 0], [0, 1, 0, 0], [1, 0, 0, 0]]
