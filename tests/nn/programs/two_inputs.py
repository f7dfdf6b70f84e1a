import keras
import numpy as np

keras.utils.set_random_seed(0)
rng = np.random.default_rng(0)
data = {"image": rng.uniform(size=(200, 6, 6, 1)), "meta": rng.normal(size=(200, 3))}
y = data["image"].mean((1, 2, 3)) * 10 + data["meta"] @ [1, 2, 3]

image = keras.Input(shape=(6, 6, 1), name="image")
meta = keras.Input(shape=(3,), name="meta")
h = keras.layers.Conv2D(4, 3, activation="relu")(image)
h = keras.layers.GlobalAveragePooling2D()(h)
h = keras.layers.concatenate([h, keras.layers.Dense(8, activation="relu")(meta)])
model = keras.Model(
    inputs={"image": image, "meta": meta}, outputs=keras.layers.Dense(1)(h)
)
model.compile(keras.optimizers.Adam(0.02), loss="mean_absolute_error")
history = model.fit(data, y, epochs=25, validation_split=0.1, verbose=0)
assert history.history["val_loss"][-1] < 1.5 < history.history["val_loss"][0]

as_list = keras.Model([image, meta], model.output)
np.testing.assert_allclose(
    as_list.predict([data["image"], data["meta"]], verbose=0),
    model.predict(data, verbose=0),
    rtol=1e-5,
)
