import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
labels = rng.choice(3, 600, p=[0.8, 0.15, 0.05])
x = rng.normal(size=(600, 5)) + 2 * np.eye(3, 5)[labels]
y = keras.utils.to_categorical(labels, 3)

model = keras.Sequential(
    [keras.layers.Dense(16, "relu"), keras.layers.Dense(3, activation="softmax")]
)
model.compile(
    optimizer=keras.optimizers.Lion(learning_rate=0.003),
    loss=keras.losses.CategoricalFocalCrossentropy(gamma=2.0),
    metrics=[
        keras.metrics.F1Score(average="macro", name="f1"),
        keras.metrics.FBetaScore(beta=2.0, average="macro", name="f2"),
        keras.metrics.CategoricalAccuracy(name="accuracy"),
    ],
)
model.fit(x, y, epochs=25, verbose=0, class_weight={0: 1.0, 1: 3.0, 2: 9.0})
logs = model.evaluate(x, y, verbose=0, return_dict=True)
assert logs["accuracy"] > 0.75
assert logs["f1"] > 0.6
assert logs["f2"] > 0.6
