import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
x = rng.normal(size=(300, 6)).astype("float32")

teacher = keras.Sequential([layers.Dense(4, activation="softmax")])
soft = teacher.predict(x, verbose=0)

student = keras.Sequential(
    [layers.Dense(32, activation="gelu"), layers.Dense(4, activation="softmax")]
)
student.compile(
    optimizer=keras.optimizers.Adamax(learning_rate=0.02),
    loss=keras.losses.KLDivergence(),
    metrics=["kl_divergence", keras.metrics.CategoricalCrossentropy(name="ce")],
)
history = student.fit(x, soft, epochs=20, batch_size=50, verbose=0).history
assert history["loss"][-1] < 0.02 < history["loss"][0]
np.testing.assert_allclose(history["loss"], history["kl_divergence"], rtol=1e-2)
assert history["ce"][-1] < history["ce"][0]

rotate = keras.Sequential([layers.Dense(6, use_bias=False)])
rotate.compile(
    optimizer=keras.optimizers.Nadam(0.02),
    loss=keras.losses.CosineSimilarity(axis=-1),
    metrics=[keras.metrics.CosineSimilarity()],
)
rotate.fit(x, 3 * x[:, ::-1], epochs=20, verbose=0)
loss, similarity = rotate.evaluate(x, keras.utils.normalize(x[:, ::-1]), verbose=0)
assert similarity > 0.97
np.testing.assert_allclose(loss, -similarity, rtol=1e-3)
