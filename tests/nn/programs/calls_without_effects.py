import keras
import numpy as np

x = np.random.default_rng(0).normal(2.0, 1.0, size=(64, 3)).astype("float32")
model = keras.Sequential(
    [
        keras.Input((3,)),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dense(2, kernel_regularizer=keras.regularizers.L2(0.5)),
    ]
)
before = model.get_weights()
doubled = [2 * keras.ops.convert_to_numpy(v) for v in model.trainable_variables]
fixed = [keras.ops.convert_to_numpy(v) for v in model.non_trainable_variables]
_, after = model.stateless_call(doubled, fixed, x, training=True)
for one, other in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(one, other)
mean = keras.ops.convert_to_numpy(after[0])
np.testing.assert_allclose(mean, x.mean(axis=0) / 2, rtol=1e-4)

outputs, _, losses = model.stateless_call(doubled, fixed, x, return_losses=True)
outputs = keras.ops.convert_to_numpy(outputs).copy()
np.testing.assert_allclose(float(losses[0]), 0.5 * (doubled[2] ** 2).sum(), rtol=1e-4)
for variable, value in zip(model.trainable_variables, doubled, strict=True):
    variable.assign(value)
np.testing.assert_allclose(model.predict(x, verbose=0), outputs, rtol=1e-3, atol=1e-5)

dense = model.layers[-1]
ones = [np.ones(tuple(v.shape), "float32") for v in dense.trainable_variables]
result, rest = dense.stateless_call(ones, [], x)
wanted = np.repeat(x.sum(axis=1, keepdims=True) + 1, 2, axis=1)
np.testing.assert_allclose(keras.ops.convert_to_numpy(result), wanted, rtol=1e-4)
assert rest == []
