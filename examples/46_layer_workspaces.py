"""Name the workspaces of a model by what arrays are for, as DL4J's users do."""

import tempfile
from pathlib import Path

import numpy as np

import memcfg as mc
from memcfg import nn
from memcfg.workspaces import ArrayType, LayerWorkspaceMgr

generator = np.random.default_rng(0)
x = generator.random((256, 28, 28, 1), np.float32)
y = (x[:, :14].mean(axis=(1, 2, 3)) > x[:, 14:].mean(axis=(1, 2, 3))).astype(int)


def lenet5(**options: object) -> nn.Model:
    """Build the same network each time; only the memory differs."""
    nn.set_random_seed(1)
    layers = [
        nn.Conv2D(6, 5, padding="same", activation="relu"),
        nn.MaxPool2D(2),
        nn.Conv2D(16, 5, activation="relu"),
        nn.MaxPool2D(2),
        nn.Flatten(),
        nn.Dense(84, activation="relu"),
        nn.Dense(2),
    ]
    model = nn.Sequential(layers)
    loss = nn.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(nn.SGD(0.05, momentum=0.9), loss, **options)
    return model


def run(model: nn.Model) -> tuple[list[float], float, bytes]:
    """Train, evaluate and predict, and list the workspaces after each."""
    history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, seed=0)
    print(f"\nafter fit\n{mc.workspaces.summary()}")
    scores = model.evaluate(x, y, batch_size=64, verbose=0)
    outputs = model.predict(x, batch_size=64, verbose=0)
    print(f"\nafter predict\n{mc.workspaces.summary()}")
    return history.history["loss"], scores, outputs.tobytes()


with tempfile.TemporaryDirectory() as folder:
    file = mc.WorkspaceConfig(
        location="mmap",
        path=Path(folder) / "results",
        initial_size="2MiB",
        learning="none",
    )
    at_most = mc.WorkspaceConfig(max_size="4MiB")
    training = (
        LayerWorkspaceMgr()
        .set(ArrayType.ACTIVATIONS, "activations", at_most)
        .set(ArrayType.FF_CACHE, "activations", at_most)
        .set(ArrayType.INPUT, "batches")
        .set(ArrayType.ACTIVATION_GRAD, "gradients")
        .default_workspace("working memory")
    )
    inference = LayerWorkspaceMgr().default_workspace("results", file)
    model = lenet5(layer_workspaces={"training": training, "inference": inference})
    named = run(model)
    model.close()

# Where an array lies changes no bit of it.
model = lenet5()
assert run(model) == named
model.close()

# A limit that is too small is refused before the step, with the smallest that would do.
small = mc.WorkspaceConfig(max_size="64KiB")
manager = LayerWorkspaceMgr().set(ArrayType.ACTIVATIONS, "activations", small)
try:
    lenet5(layer_workspaces=manager).fit(x, y, batch_size=64, verbose=0)
except mc.errors.WorkspaceFullError as error:
    print(f"\n{error}")
