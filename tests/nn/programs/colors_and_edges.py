import keras
import numpy as np

image = keras.ops.image
rng = np.random.default_rng(0)
colors = rng.random((4, 6, 8, 3)).astype("float32")
convert = keras.ops.convert_to_numpy
back = convert(image.hsv_to_rgb(image.rgb_to_hsv(colors)))
np.testing.assert_allclose(back, colors, atol=1e-5)
cut = image.crop_images(colors, 1, 2, target_height=3, target_width=4)
np.testing.assert_array_equal(convert(cut), colors[:, 1:4, 2:6])
put = convert(image.pad_images(cut, 1, 2, target_height=6, target_width=8))
np.testing.assert_array_equal(put[:, 1:4, 2:6], colors[:, 1:4, 2:6])
assert put.shape == colors.shape
assert convert(image.ssim(colors, colors, filter_size=3)).tolist() == [1] * 4

inputs = keras.Input((6, 8, 3))
grey = image.rgb_to_grayscale(inputs)
small = image.resize(grey, (3, 4), antialias=True)
model = keras.Model(inputs, [small, image.gaussian_blur(grey)])
small, blurred = model.predict(colors, verbose=0)
by = np.array([0.2989, 0.587, 0.114], "float32")
assert small.shape == (4, 3, 4, 1)
np.testing.assert_allclose(
    convert(image.rgb_to_grayscale(colors)), (colors @ by)[..., None], atol=1e-5
)
assert blurred[:, 1:-1, 1:-1].std() < (colors @ by)[:, 1:-1, 1:-1].std()
