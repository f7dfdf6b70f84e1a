import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(6, 5)).astype("float32")
ops = keras.ops
np.testing.assert_allclose(
    ops.convert_to_numpy(ops.mean(x, axis=0)), x.mean(0), atol=1e-6
)
np.testing.assert_allclose(ops.convert_to_numpy(ops.std(x)), x.std(), rtol=1e-5)
np.testing.assert_allclose(
    ops.convert_to_numpy(ops.cumsum(x, axis=1)), x.cumsum(1), rtol=1e-4, atol=1e-6
)
np.testing.assert_allclose(ops.convert_to_numpy(ops.sort(x)), np.sort(x))
values, places = ops.top_k(x, 2)
assert np.asarray(ops.convert_to_numpy(places)).shape == (6, 2)
np.testing.assert_allclose(
    ops.convert_to_numpy(ops.einsum("ij,kj->ik", x, x)), x @ x.T, rtol=1e-4, atol=1e-5
)
