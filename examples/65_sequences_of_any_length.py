"""Classify sequences of any length: batches of a few lengths, each planned exactly.

An axis of None in Input has the length of each batch. A length is planned when it first
occurs, under the one limit; weights and the optimizer's state are shared.
"""

import numpy as np

import memcfg as mc
from memcfg import nn as keras

WORDS, LIMIT = 20, "384KiB"
rng = np.random.default_rng(0)


def sentence():
    """Return words, and whether more than half are below 10."""
    words = rng.integers(1, WORDS, rng.integers(4, 33))
    return words, int((words < 10).mean() > 0.5)


sentences = [sentence() for _ in range(600)]
spec = (mc.data.TensorSpec((None,), "int64"), mc.data.TensorSpec((), "int64"))
data = mc.data.Dataset.from_generator(lambda: iter(sentences), output_signature=spec)
# Three buckets, padded with 0 to 8, 16 and 32 words: three lengths, so three plans.
batches = data.bucket_by_sequence_length(
    lambda words, label: len(words),
    bucket_boundaries=[9, 17, 33],
    bucket_batch_sizes=[32, 16, 8, 1],
    pad_to_bucket_boundary=True,
    drop_remainder=True,
)

mc.config.set_memory_limit("CPU:0", LIMIT)
keras.utils.set_random_seed(1)
x = keras.Input((None,), dtype="int32")
h = keras.layers.Embedding(WORDS, 16, mask_zero=True)(x)
h = h + keras.layers.MultiHeadAttention(2, 8)(h, h)
h = keras.layers.GlobalAveragePooling1D()(h)
h = keras.layers.Dense(16, activation="relu")(h)
model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(h))
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])

for length in (8, 16, 32):
    print(
        f"{length:2} words: 8 samples take {model.plan(8, lengths=length).peak_bytes}"
        f" B; at most {model.largest_batch(lengths=length)} fit in {LIMIT}"
    )
logs = model.fit(batches, epochs=8, verbose=0).history
print(f"accuracy {logs['accuracy'][0]:.2f}, then {logs['accuracy'][-1]:.2f}")
assert logs["accuracy"][-1] > 0.9
report = model.memory_report(verify=True)  # of the last length
assert report.measured_peak_bytes <= 384 << 10

# One sequence of a length that was not seen before: one more plan.
words = rng.integers(1, WORDS, (1, 21))
print(f"a sentence of 21 words: {model.predict(words, verbose=0)[0, 0]:.2f}")
