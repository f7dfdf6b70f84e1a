import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.integers(0, 2, (200, 5))
y = (x.sum(axis=1) >= 3).astype(int)


def accuracy(x, y, **options):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1, "sigmoid")])
    model.compile(
        keras.optimizers.Adam(0.2), "binary_crossentropy", metrics=["accuracy"]
    )
    return model.fit(x, y, epochs=6, shuffle=False, verbose=0, **options).history[
        "accuracy"
    ][-1]


reference = accuracy(x.astype("float32"), y.astype("float32"))
assert reference > 0.9
for inputs in (x, x.astype("float64"), x.astype("uint8"), x.astype("float16")):
    assert abs(accuracy(inputs, y) - reference) < 0.03
for labels in (y.astype(bool), y[:, None], y.astype("uint8"), y.astype("float64")):
    assert abs(accuracy(x.astype(bool), labels) - reference) < 0.03
assert abs(accuracy(x, y, validation_data=(x[:9], y[:9])) - reference) < 0.03
assert abs(accuracy(np.asfortranarray(x * 1.0), y) - reference) < 0.03
assert (
    abs(accuracy(np.repeat(x, 2, axis=0)[::2], np.repeat(y, 2)[::2]) - reference) < 0.03
)
