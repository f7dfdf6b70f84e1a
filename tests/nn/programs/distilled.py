import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 4)).astype("float32")
y = (np.sin(x[:, 0] * 2) + x[:, 1] > 0).astype("int32")


def network(width):
    return keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(width, "relu"), keras.layers.Dense(2)]
    )


teacher, student = network(48), network(12)
logits = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
teacher.compile(keras.optimizers.Adam(0.02), logits, metrics=["accuracy"])
teacher.fit(x, y, epochs=20, verbose=0)
soft = keras.ops.softmax(teacher.predict(x, verbose=0) / 2.0)
soft = keras.ops.convert_to_numpy(soft)

from_soft = keras.losses.CategoricalCrossentropy(from_logits=True)
student.compile(keras.optimizers.Adam(0.02), from_soft, metrics=["accuracy"])
student.fit(x, soft, epochs=25, verbose=0)
same = student.predict(x, verbose=0).argmax(1) == teacher.predict(x, verbose=0).argmax(
    1
)
assert teacher.evaluate(x, y, verbose=0)[1] > 0.9
assert same.mean() > 0.9
