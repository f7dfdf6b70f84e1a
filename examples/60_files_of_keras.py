"""Load a model from a file in Keras's format, and train it within a limit.

Needs h5py: pip install "memcfg[h5]". Keras is not needed.
"""

import json
import tempfile
import zipfile
from pathlib import Path

import h5py
import numpy as np

import memcfg as mc

nn = mc.nn
rng = np.random.default_rng(0)


def write_as_keras_does(path):
    """Write the three entries of an archive of Keras: a chain of two layers."""
    layers = [
        {"class_name": "InputLayer", "config": {"batch_shape": [None, 8]}},
        {"class_name": "Dense", "config": {"units": 16, "activation": "relu"}},
        {"class_name": "Dense", "config": {"units": 2, "activation": "softmax"}},
    ]
    for number, layer in enumerate(layers):
        layer["module"] = "keras.layers"
        layer["config"]["name"] = f"layer_{number}"
    described = {
        "module": "keras",
        "class_name": "Sequential",
        "config": {"name": "from_keras", "layers": layers},
        "compile_config": {
            "optimizer": {
                "module": "keras.optimizers",
                "class_name": "Adam",
                "config": {"learning_rate": 0.01},
            },
            "loss": "sparse_categorical_crossentropy",
            "metrics": ["accuracy"],
        },
    }
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        archive.writestr("config.json", json.dumps(described))
        with archive.open("model.weights.h5", "w") as entry:
            weights = path.with_suffix(".h5")
            with h5py.File(weights, "w") as file:
                for name, shape in (("dense", (8, 16)), ("dense_1", (16, 2))):
                    group = file.create_group(f"layers/{name}/vars")
                    group["0"] = rng.normal(0, 0.3, shape).astype("f4")
                    group["1"] = np.zeros(shape[1], "f4")
            entry.write(weights.read_bytes())


x = rng.normal(size=(512, 8)).astype("f4")
y = (x.sum(axis=1) > 0).astype("i4")

with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.keras"
    write_as_keras_does(path)
    model = nn.models.load_model(path)
    model.summary()
    model.fit(x, y, epochs=8, seed=0, verbose=2)
    print("accuracy:", round(model.evaluate(x, y, verbose=0)[1], 2))

    model.save(path)  # which Keras reads
    again = nn.models.load_model(path)
    assert np.array_equal(again.predict(x, verbose=0), model.predict(x, verbose=0))
    assert again.optimizer.iterations == model.optimizer.iterations
