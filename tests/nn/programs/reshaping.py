import keras
import numpy as np

layers = keras.layers
x = np.arange(2 * 4 * 6, dtype="float32").reshape(2, 4, 6)
inputs = keras.Input(shape=(4, 6))
image = layers.Reshape((4, 3, 2))(inputs)
outputs = [
    layers.Flatten()(inputs),
    layers.Permute((2, 1))(inputs),
    layers.Reshape((-1, 8))(inputs),
    layers.RepeatVector(3)(layers.Flatten()(inputs)),
    layers.ZeroPadding2D(((1, 0), (0, 2)))(image),
    layers.Cropping2D(((1, 1), (0, 1)))(image),
    layers.UpSampling2D((2, 1))(image),
    layers.UpSampling1D(2)(inputs),
    layers.GlobalMaxPooling1D()(inputs),
    layers.GlobalAveragePooling1D()(inputs),
]
model = keras.Model(inputs, outputs)
images = x.reshape(2, 4, 3, 2)
wanted = [
    x.reshape(2, 24),
    x.transpose(0, 2, 1),
    x.reshape(2, 3, 8),
    np.repeat(x.reshape(2, 1, 24), 3, axis=1),
    np.pad(images, ((0, 0), (1, 0), (0, 2), (0, 0))),
    images[:, 1:-1, :-1],
    images.repeat(2, axis=1),
    x.repeat(2, axis=1),
    x.max(axis=1),
    x.mean(axis=1),
]
assert [output.shape[1:] for output in model.outputs] == [w.shape[1:] for w in wanted]
for found, right in zip(model.predict(x, verbose=0), wanted, strict=False):
    np.testing.assert_allclose(found, right, rtol=1e-5)
