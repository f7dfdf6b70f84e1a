import contextlib
import io

import keras
import numpy as np

layers = keras.layers
inputs = keras.Input(shape=(28, 28, 1), name="image")
h = layers.Conv2D(32, 3, activation="relu", name="conv")(inputs)
h = layers.MaxPooling2D(2)(h)
h = layers.BatchNormalization(name="norm")(h)
h = layers.Flatten()(h)
outputs = layers.Dense(10, name="logits")(h)
model = keras.Model(inputs, outputs, name="net")
text = io.StringIO()
with contextlib.redirect_stdout(text):
    model.summary()
assert "conv" in text.getvalue()
assert "54,538" in text.getvalue()
assert model.count_params() == 320 + 128 + 54090
assert model.input_shape == (None, 28, 28, 1)
assert model.output_shape == (None, 10)
assert [layer.name for layer in model.layers][1] == "conv"
assert [tuple(w.shape) for w in model.get_layer("norm").weights] == [(32,)] * 4
assert len(model.trainable_variables) == 6
assert model.get_layer(name="conv").filters == 32
assert model.get_layer(index=5).units == 10
assert model.built
assert model.layers[1].built

features = keras.Model(model.input, model.get_layer("conv").output)
assert features.predict(np.zeros((2, 28, 28, 1)), verbose=0).shape == (2, 26, 26, 32)
assert model.get_layer("logits").kernel.shape == (21632 // 4, 10)
assert model.get_layer("norm").input.shape == (None, 13, 13, 32)
