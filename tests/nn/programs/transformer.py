import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)


class TransformerBlock(layers.Layer):
    def __init__(self, dim, heads, **kwargs):
        super().__init__(**kwargs)
        self.attention = layers.MultiHeadAttention(num_heads=heads, key_dim=dim)
        self.dense1 = layers.Dense(2 * dim, activation="relu")
        self.dense2 = layers.Dense(dim)
        self.norm1 = layers.LayerNormalization(epsilon=1e-6)
        self.norm2 = layers.LayerNormalization(epsilon=1e-6)
        self.dropout = layers.Dropout(0.05)

    def call(self, x, training=None):
        h = self.norm1(x + self.attention(x, x))
        return self.norm2(
            h + self.dropout(self.dense2(self.dense1(h)), training=training)
        )


x = np.random.default_rng(0).integers(0, 10, (320, 6))
inputs = keras.Input((6,))
positions = keras.Input((6,))
h = layers.Embedding(10, 16)(inputs) + layers.Embedding(6, 16)(positions)
h = TransformerBlock(16, 2)(h)
model = keras.Model([inputs, positions], layers.Dense(10, activation="softmax")(h))
model.compile(
    keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"]
)
places = np.tile(np.arange(6), (320, 1))
model.fit([x, places], x[:, ::-1], epochs=16, verbose=0)
assert model.evaluate([x, places], x[:, ::-1], verbose=0)[1] > 0.9
