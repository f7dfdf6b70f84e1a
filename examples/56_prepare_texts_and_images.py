"""Prepare texts of folders and images with Keras's layers, as steps of a pipeline."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc
from memcfg import nn

generator = np.random.default_rng(0)
folder = TemporaryDirectory()

# Reviews in a folder for each class, as image_dataset_from_directory takes images.
WORDS, FILL = {"good": "Great warm, witty", "bad": "dull LONG flat"}, ["a", "film"]
for label, words in WORDS.items():
    Path(folder.name, label).mkdir()
    for number in range(100):
        some = [*generator.choice(words.split(), 2), *generator.choice(FILL, 3)]
        text = " ".join(generator.permutation(some))
        Path(folder.name, label, f"{number}.txt").write_text(text)

train, held = nn.utils.text_dataset_from_directory(
    folder.name, validation_split=0.2, subset="both", seed=1, batch_size=20
)
classes = train.class_names
vectorization = nn.TextVectorization(output_sequence_length=8)
vectorization.adapt(train.map(lambda text, label: text))
print("words:", ", ".join(vectorization.get_vocabulary()))


def numbers(text, label):
    return vectorization(text), label


nn.set_random_seed(1)
layers = [
    nn.Input((8,), dtype="int32"),
    nn.Embedding(vectorization.vocabulary_size(), 8, mask_zero=True),
    nn.GlobalAveragePooling1D(),
    nn.Dense(len(classes)),
]
model = nn.Sequential(layers)
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(nn.Adam(0.05), loss, metrics=["accuracy"])
model.fit(train.map(numbers), epochs=3, verbose=2)
_, accuracy = model.evaluate(held.map(numbers), verbose=0)
print(f"accuracy of the reviews that were held out: {accuracy:.2f}")
assert accuracy > 0.95
# A model that starts with text prepares it on the host, and saves the words.
whole = nn.Sequential([nn.Input((1,), dtype="string"), vectorization, model])
print("classes:", whole.predict(np.array(["A great film!"]), verbose=0).argmax(1), "\n")
folder.cleanup()
# What ops cannot express runs in the pipeline, and the rest in the model, where it
# varies images only while it trains.
images = generator.integers(0, 256, (256, 36, 36, 3), np.uint8)
labels = generator.integers(0, 2, 256)
images[labels == 1, 12:24, 12:24] //= 4  # dark in the middle
vary = [nn.RandomCrop(32, 32, seed=1), nn.RandomRotation(0.1, seed=2)]


def varied(image, label):
    for layer in vary:
        image = layer(image)
    return image, label


data = mc.data.Dataset.from_tensor_slices((images, labels)).shuffle(256, seed=1)
data = data.map(varied, num_parallel_calls=2).batch(32).prefetch(2)
layers = [
    nn.RandomFlip(seed=3),
    nn.RandomBrightness(0.1, seed=4),
    nn.Rescaling(1 / 255),
]
layers += [nn.Conv2D(8, 3, 2, activation="relu"), nn.Flatten(), nn.Dense(2)]
model = nn.Sequential([nn.Input((32, 32, 3)), *layers])
model.compile(nn.Adam(0.003), loss, metrics=["accuracy"])
history = model.fit(data, epochs=4, verbose=2)
assert history.history["accuracy"][-1] > 0.9
