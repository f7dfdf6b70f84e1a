import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((24, 8, 8, 8, 1)).astype("float32")
x[::2, 2:6, 2:6, 2:6] += 1.5
y = (np.arange(24) % 2 == 0).astype("float32")

inputs = keras.Input((8, 8, 8, 1))
h = layers.Conv3D(4, 3, padding="same", activation="relu")(inputs)
h = layers.MaxPooling3D(2)(h)
h = layers.SpatialDropout3D(0.1)(h)
h = layers.Conv3DTranspose(4, 2, strides=2, activation="relu")(h)
h = layers.Cropping3D(1)(layers.ZeroPadding3D(1)(h))
h = layers.UpSampling3D(2)(layers.AveragePooling3D(2)(h))
pooled = [
    layers.GlobalAveragePooling3D()(h),
    layers.GlobalMaxPooling3D()(h),
    layers.Flatten()(layers.AdaptiveAveragePooling3D(2)(h)),
    layers.Flatten()(layers.AdaptiveMaxPooling3D(1)(h)),
]
outputs = layers.Dense(1, activation="sigmoid")(layers.Concatenate()(pooled))
model = keras.Model(inputs, outputs)
model.compile(keras.optimizers.Adam(0.01), "binary_crossentropy", metrics=["accuracy"])
model.fit(x, y, epochs=12, batch_size=8, verbose=0)
assert model.evaluate(x, y, verbose=0)[1] > 0.9

moving = keras.Sequential(
    [keras.Input((3, 4, 4, 4, 1)), layers.ConvLSTM3D(2, 3, padding="same")]
)
assert moving.predict(np.ones((2, 3, 4, 4, 4, 1)), verbose=0).shape == (2, 4, 4, 4, 2)
