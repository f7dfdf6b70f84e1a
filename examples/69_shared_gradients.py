"""Train with two workers that send each other few bytes of their gradients.

Each sends the elements that have reached a threshold, as the threshold with a sign, and
keeps the rest for later steps. The threshold adapts until about one element of a
hundred is sent.
"""

from sklearn.datasets import load_digits

import memcfg as mc
from memcfg import nn as keras

digits = load_digits()
x = (digits.data / 16).astype("float32")
y = digits.target
train, test = slice(1400), slice(1400, None)


def made():
    """Return the same compiled model each time."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.003), loss, metrics=["accuracy"])
    return model


for mode in ("all_reduce", "shared_gradients"):
    model = made()
    with mc.parallel.ParallelWrapper(model, workers=2, training_mode=mode) as wrapper:
        wrapper.fit(x[train], y[train], batch_size=64, epochs=20, seed=0, verbose=0)
        for report in wrapper.memory_reports(verify=True):
            assert report.measured_peak_bytes == report.predicted_peak_bytes
        totals = wrapper.encoded_totals
        algorithm = wrapper.threshold_algorithm
    _, accuracy = model.evaluate(x[test], y[test], verbose=0)
    print(f"{mode}: accuracy {accuracy:.3f}")
    if algorithm is not None:
        share = totals.sent_bytes / totals.dense_bytes
        print(f"  {totals.sent_bytes} B sent of {totals.dense_bytes}, {share:.1%}")
        print(f"  the threshold is {algorithm.last_threshold:.2e} in the end")
    model.close()
