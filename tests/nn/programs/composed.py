import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)
x = np.random.default_rng(0).standard_normal((64, 6, 8)).astype("float32")
y = (x[:, :, 0].sum(1) > 0).astype("float32")


class Scaled(layers.Wrapper):
    def call(self, inputs):
        return self.layer(inputs) * 0.5


def build():
    inputs = keras.Input((6, 8))
    h = layers.EinsumDense("btd,de->bte", output_shape=(6, 16), bias_axes="e")(inputs)
    h = layers.RMSNormalization()(h)
    attended = layers.GroupQueryAttention(4, 4, 2)(h, h)
    h = layers.UnitNormalization()(h + attended)
    h = layers.Identity()(layers.Lambda(lambda t: t * 2.0)(h))
    h = layers.SpectralNormalization(layers.Dense(8))(h)
    h = layers.Concatenate()(
        [
            layers.Flatten()(layers.AdaptiveAveragePooling1D(2)(h)),
            layers.Flatten()(layers.AdaptiveMaxPooling1D(2)(h)),
        ]
    )
    return keras.Model(inputs, Scaled(layers.Dense(1))(h))


for optimizer in (keras.optimizers.Lamb(0.02), keras.optimizers.Muon(0.02)):
    model = build()
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    history = model.fit(x, y, epochs=15, verbose=0).history["loss"]
    assert history[-1] < history[0]

images = x.reshape(64, 6, 8, 1)
for layer in (layers.AdaptiveAveragePooling2D((2, 3)), layers.AdaptiveMaxPooling2D(2)):
    pooled = keras.Sequential([keras.Input((6, 8, 1)), layer])
    assert pooled.predict(images, verbose=0).shape[1] == 2
