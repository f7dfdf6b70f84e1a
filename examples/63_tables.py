"""Encode the columns of a table by FeatureSpace, and train parts at other rates."""

from tempfile import TemporaryDirectory

import numpy as np

import memcfg as mc
from memcfg import nn

generator = np.random.default_rng(0)
rows = 400
table = {
    "age": generator.uniform(20, 80, rows).astype(np.float32),
    "job": generator.choice(["baker", "judge", "pilot"], rows),
    "city": generator.choice([f"city {i}" for i in range(50)], rows),
}
risk = (table["age"] > 50) ^ (table["job"] == "pilot")

space = nn.utils.FeatureSpace(
    features={
        "age": nn.utils.FeatureSpace.float_discretized(num_bins=6),
        "job": "string_categorical",
        "city": nn.utils.FeatureSpace.string_hashed(num_bins=8),
    },
    crosses=[("age", "job")],
    crossing_dim=32,
)
space.adapt(table)
width = len(space({name: column[0] for name, column in table.items()}))
data = mc.data.Dataset.from_tensor_slices((table, risk.astype(np.float32)))
data = data.batch(50).map(lambda row, label: (space(row), label)).cache()

start = nn.Input((width,))
body = nn.Dense(16, activation="relu", name="body")(start)
model = nn.Model(start, nn.Dense(1, activation="sigmoid", name="head")(body))

# Each optimizer has its own rate, state and clipping, of the weights left to it.
slow, fast = nn.SGD(0.05, momentum=0.9), nn.Adam(0.03)
chosen = nn.optimizers.OptimizerMap(slow, {"head/.*": fast})
optimizer = nn.optimizers.MultiOptimizer(chosen)
model.compile(optimizer, "binary_crossentropy", metrics=["accuracy"])
kept = model.fit(data, epochs=25, verbose=0).history
print(f"{width} numbers a row, accuracy {kept['accuracy'][-1]:.2f}")
assert kept["accuracy"][-1] > 0.9

with TemporaryDirectory() as folder:
    picture = nn.utils.plot_model(model, f"{folder}/model.svg", show_shapes=True)
    print(picture.to_string())
