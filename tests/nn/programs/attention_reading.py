import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
keys = np.stack([rng.permutation(6) for _ in range(400)])
values = rng.normal(size=(400, 6, 1))
wanted = rng.integers(0, 6, (400, 1))
places = np.argsort(keys, axis=1)[range(400), wanted[:, 0]]
y = values[range(400), places]

for attention in (layers.Attention(use_scale=True), layers.AdditiveAttention()):
    query, key = keras.Input((1,), name="query"), keras.Input((6,), name="key")
    value = keras.Input((6, 1), name="value")
    embed = layers.Embedding(6, 8)
    read, scores = attention(
        [embed(query), value, embed(key)], return_attention_scores=True
    )
    model = keras.Model([query, key, value], layers.Flatten()(read))
    model.compile(keras.optimizers.Adam(0.05), "mse")
    model.fit([wanted, keys, values], y, epochs=12, verbose=0)
    assert model.evaluate([wanted, keys, values], y, verbose=0) < 0.1

    reader = keras.Model([query, key, value], scores)
    looks = reader.predict([wanted, keys, values], verbose=0)
    assert looks.shape == (400, 1, 6)
    assert np.mean(looks[:, 0].argmax(axis=1) == places) > 0.95
