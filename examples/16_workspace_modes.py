"""Train one network in every workspace mode: the same numbers, other bytes."""

import numpy as np

import memcfg as mc
from memcfg import nn

generator = np.random.default_rng(0)
x = generator.random((256, 28, 28, 1), np.float32)
y = (x[:, :14].mean(axis=(1, 2, 3)) > x[:, 14:].mean(axis=(1, 2, 3))).astype(int)
pool = mc.config.logical_device().pool


def lenet5(mode: mc.WorkspaceMode) -> nn.Model:
    """Build the same network each time; only the memory differs."""
    nn.set_random_seed(1)
    model = nn.Sequential(
        [
            nn.Conv2D(6, 5, padding="same", activation="relu"),
            nn.MaxPool2D(2),
            nn.Conv2D(16, 5, activation="relu"),
            nn.MaxPool2D(2),
            nn.Flatten(),
            nn.Dense(120, activation="relu"),
            nn.Dense(84, activation="relu"),
            nn.Dense(2),
        ]
    )
    model.compile(
        nn.SGD(0.05, momentum=0.9),
        nn.SparseCategoricalCrossentropy(from_logits=True),
        training_workspace_mode=mode,
        inference_workspace_mode=mode,
    )
    return model


print(f"{'mode':<10} {'training':>12} {'prediction':>12}  bytes at the peak")
peaks, results = {}, set()
for mode in mc.WorkspaceMode:
    model = lenet5(mode)
    pool.reset_peak()
    history = model.fit(x, y, batch_size=64, epochs=2, verbose=0, seed=0)
    training = pool.stats().peak_bytes
    model.close()  # weights move to the host
    pool.reset_peak()
    scores = model.predict(x, batch_size=64, verbose=0)
    peaks[mode] = training
    print(f"{mode:<10} {training:>12,} {pool.stats().peak_bytes:>12,}")
    results.add((*history.history["loss"], scores.tobytes()))
    model.close()

# Where a tensor lives changes no bit of it.
assert len(results) == 1
kinds = mc.WorkspaceMode
assert peaks[kinds.ENABLED] < peaks[kinds.SEPARATE] < peaks[kinds.SINGLE]

# A prediction is an array of its own, or lies in a workspace of the caller's.
model = lenet5(kinds.SEPARATE)
assert not mc.is_attached(model.predict(x, verbose=0))
with mc.workspace("answers") as ws:
    answers = model.predict(x, verbose=0, workspace=ws)
    print(f"\n{answers.shape} answers in workspace {mc.workspace_of(answers).name!r}")
    del answers

# What a step takes, and when: by the pool's books.
model.fit(x, y, batch_size=64, verbose=0)
print(f"\n{model.memory_report(verify=True)}")
