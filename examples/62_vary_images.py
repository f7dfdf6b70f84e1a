"""Vary, mix and equalize images in a pipeline, as Keras's layers do."""

import numpy as np

import memcfg as mc
from memcfg import nn

generator = np.random.default_rng(0)
layers = nn.layers

# Images of two classes: bright squares, or bright frames, at random places.
labels = generator.integers(0, 2, 256)
images = generator.uniform(0, 60, (256, 20, 20, 1)).astype(np.float32)
for image, label in zip(images, labels, strict=True):
    top, left = generator.integers(0, 10, 2)
    image[top : top + 9, left : left + 9] += 150
    if label:
        image[top + 2 : top + 7, left + 2 : left + 7] -= 150

vary = layers.Pipeline(
    [
        layers.RandomFlip("horizontal_and_vertical", seed=1),
        layers.RandomShear(0.1, 0.1, fill_mode="constant", seed=2),
        layers.RandomErasing(factor=0.5, scale=(0.01, 0.05), fill_value=0, seed=3),
    ]
)
mix = layers.CutMix(factor=0.3, seed=4)
even = layers.ContrastLimitedAdaptiveHistogramEqualization(tile_grid_size=(2, 2))


def prepare(image, label):
    """Vary a batch; CutMix mixes one-hot labels, too."""
    batch = {"images": vary(image), "labels": nn.utils.to_categorical(label, 2)}
    batch = mix(batch)
    return even(batch["images"]) / 255, batch["labels"]


train = mc.data.Dataset.from_tensor_slices((images[:192], labels[:192]))
train = train.shuffle(192, seed=5).batch(32).map(prepare).prefetch(2)
held = even(images[192:]) / 255, nn.utils.to_categorical(labels[192:], 2)

model = nn.Sequential(
    [
        nn.Input((20, 20, 1)),
        nn.Conv2D(8, 3, activation="relu"),
        nn.MaxPooling2D(2),
        nn.Conv2D(16, 3, activation="relu"),
        nn.GlobalMaxPooling2D(),
        nn.Dense(2, activation="softmax"),
    ]
)
model.compile(nn.Adam(0.01), "categorical_crossentropy", metrics=["accuracy"])
model.fit(train, epochs=10, verbose=0)
_, accuracy = model.evaluate(*held, verbose=0)
print(f"Accuracy of held-out images: {accuracy:.2f}")
assert accuracy > 0.8
