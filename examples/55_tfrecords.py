"""Write images to TFRecord files that together exceed a limit, and train on them."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc
from memcfg import data, nn

FILES, IMAGES, SHAPE = 4, 512, (32, 32, 3)  # of float32: 24 MiB

cpu = mc.config.list_physical_devices("CPU")[0]
limit = mc.config.LogicalDeviceConfiguration(memory_limit=8)  # MiB
mc.config.set_logical_device_configuration(cpu, [limit])
pool = mc.config.logical_device().pool
folder = TemporaryDirectory()


def example(image, label):
    """A message of `tf.train.Example`, as TensorFlow writes it."""
    features = {
        "image": data.Feature(bytes_list=data.BytesList(value=[image.tobytes()])),
        "label": data.Feature(int64_list=data.Int64List(value=[label])),
    }
    return data.Example(features=data.Features(feature=features))


# Images that are brighter on the left or on the right.
for number in range(FILES):
    generator = np.random.default_rng(number)
    path = Path(folder.name, f"images-{number}.tfrecord")
    with data.TFRecordWriter(path) as writer:
        for _ in range(IMAGES):
            image = generator.random(SHAPE, np.float32)
            label = int(generator.integers(2))
            image[:, 16 * label : 16 * label + 16] += 0.2
            writer.write(example(image, label).SerializeToString())

features = {
    "image": data.FixedLenFeature((), bytes),
    "label": data.FixedLenFeature((), np.int64),
}


def decoded(record):
    parsed = data.parse_single_example(record, features)
    return np.frombuffer(parsed["image"], np.float32).reshape(SHAPE), parsed["label"]


# Two threads read two files at once. What is shuffled lies in the pool, too.
files = data.Dataset.list_files(f"{folder.name}/*.tfrecord", seed=1)
records = data.TFRecordDataset(files, num_parallel_reads=2)
batches = records.shuffle(128, seed=1).map(decoded).batch(32).prefetch(2)

nn.set_random_seed(1)
layers = [nn.Conv2D(8, 3, strides=4, activation="relu"), nn.Flatten(), nn.Dense(2)]
model = nn.Sequential([nn.Input(SHAPE), *layers])
loss = nn.SparseCategoricalCrossentropy(from_logits=True)
model.compile(nn.Adam(0.003), loss, metrics=["accuracy"])
history = model.fit(batches, epochs=2, verbose=2)

size = sum(path.stat().st_size for path in Path(folder.name).iterdir())
print(f"\nfiles  {size / 2**20:6.2f} MiB")
print(f"limit  {pool.limit / 2**20:6.2f} MiB")
print(f"peak   {pool.stats().peak_bytes / 2**20:6.2f} MiB")
assert pool.stats().peak_bytes <= pool.limit < size / 2
assert history.history["accuracy"][-1] > 0.9

# One bit of damage is found, and the error says where.
(first, *_) = sorted(Path(folder.name).iterdir())
content = bytearray(first.read_bytes())
content[50_000] ^= 1
first.write_bytes(content)
try:
    list(data.TFRecordDataset(first))
except mc.errors.FormatError as error:
    print(f"\n{str(error).replace(folder.name, '...')}")
folder.cleanup()
