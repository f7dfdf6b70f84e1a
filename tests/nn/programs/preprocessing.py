import keras
import numpy as np

layers = keras.layers
keras.utils.set_random_seed(0)

text = layers.TextVectorization(max_tokens=10, output_sequence_length=4)
text.adapt(np.array(["a cat sat", "a dog ran", "the cat ran"]))
assert np.asarray(text(np.array(["a cat ran off"]))).shape == (1, 4)
words = layers.StringLookup(vocabulary=["red", "green"])
assert np.asarray(words(np.array(["green", "blue"]))).tolist() == [2, 0]
numbers = layers.IntegerLookup(vocabulary=[7, 9])
assert np.asarray(numbers(np.array([9, 7, 1]))).tolist() == [2, 1, 0]
bins = layers.Discretization(bin_boundaries=[0.0, 1.0])
assert np.asarray(bins(np.array([-1.0, 0.5, 2.0]))).tolist() == [0, 1, 2]
one_hot = layers.CategoryEncoding(num_tokens=3, output_mode="one_hot")
assert np.asarray(one_hot(np.array([2, 0]))).tolist() == [[0, 0, 1], [1, 0, 0]]
hashed = np.asarray(layers.Hashing(num_bins=5)(np.array(["x", "y", "x"])))
assert hashed[0] == hashed[2]
crossed = layers.HashedCrossing(num_bins=6)
pair = np.asarray(crossed((np.array(["x", "y"]), np.array([1, 2]))))
assert pair.shape == (2,)

images = np.random.default_rng(0).uniform(0, 1, (4, 8, 8, 3)).astype("float32")
assert np.asarray(layers.Resizing(4, 6)(images)).shape == (4, 4, 6, 3)
middle = np.asarray(layers.CenterCrop(4, 4)(images))
np.testing.assert_allclose(middle, images[:, 2:6, 2:6], atol=1e-6)
for layer in (
    layers.RandomCrop(6, 6),
    layers.RandomFlip("horizontal"),
    layers.RandomRotation(0.1),
    layers.RandomTranslation(0.1, 0.1),
    layers.RandomZoom(0.2),
    layers.RandomContrast(0.2),
    layers.RandomBrightness(0.2, value_range=(0, 1)),
):
    made = np.asarray(layer(images, training=True))
    assert made.shape[0] == 4
    assert np.isfinite(made).all()

boxes = {"boxes": np.ones((4, 3, 4), "float32"), "labels": np.ones((4, 3), "int32")}
padded = layers.MaxNumBoundingBoxes(5, bounding_box_format="xyxy")(
    {"images": images, "bounding_boxes": boxes}
)
assert np.asarray(padded["bounding_boxes"]["boxes"]).shape == (4, 5, 4)
